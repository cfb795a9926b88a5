"""Layers that other libraries have wrapped or packed; known by names, nothing is imported for it."""

from __future__ import annotations

from torch import nn

from subprune.errors import OptionError

__all__ = ["check_foreign", "packs_weights"]

# Packages, or parts of them, whose layers hold packed whole numbers.
_PACKING = (
    "bitsandbytes",
    "torchao",
    "auto_gptq",
    "gptqmodel",
    "awq",
    "hqq",
    "quanto",
    "optimum.quanto",
    "eetq",
    "aqlm",
    "vptq",
    "spqr_quant",
    "compressed_tensors",
    "transformers.integrations.bitnet",
    "transformers.integrations.finegrained_fp8",
    "transformers.integrations.fbgemm_fp8",
    "transformers.integrations.mxfp4",
    "transformers.integrations.hqq",
    "transformers.integrations.higgs",
)
_ADAPTERS = {"BaseTunerLayer", "PeftModel", "BaseTuner", "LoraLayer", "LoraModel"}


def packs_weights(kind: type) -> bool:
    """Whether a class of layers or tensors is one of a library for quantised models."""
    home = f"{kind.__module__}."
    return any(home.startswith(f"{package}.") for package in _PACKING)


def check_foreign(model: nn.Module) -> None:
    """Refuse adapters, which would be pruned as if they were layers, and weights that are not
    where the layers look for them.
    """
    for name, module in model.named_modules():
        place = f"{name!r} of the model" if name else "the model"
        kind = type(module)
        if any(base.__name__ in _ADAPTERS for base in kind.__mro__):
            raise OptionError(
                f"{place} holds adapters ({kind.__module__}.{kind.__name__}), whose small matrices "
                "are not layers of the model: call model = model.merge_and_unload() first, and "
                "prune what it gives; new adapters can be trained on the result"
            )
        if getattr(module, "_hf_hook", None) is not None:
            raise OptionError(
                f"{place} is moved or offloaded by hooks of accelerate "
                f"({type(module._hf_hook).__name__}), so that its weights are not in its layers; "
                "load the model without device_map, with the dtype of its files (transformers then "
                "maps these, and they fill no memory), or call "
                "accelerate.hooks.remove_hook_from_submodules(model) if all weights are on one device"
            )
