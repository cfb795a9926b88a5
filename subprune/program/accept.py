"""Which models can be pruned; the others are refused by name, with what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.nn.parameter import is_lazy

from subprune.errors import DataError, OptionError
from subprune.program.foreign import check_foreign, packs_weights

__all__ = ["check_kind", "check_model", "kind_of"]

_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def check_model(model: nn.Module) -> None:
    """Refuse what cannot be pruned faithfully: wrappers, and weights that cannot be refitted."""
    check_kind(model)
    for name, x in [*model.named_parameters(), *model.named_buffers()]:
        _check_tensor(name, x)


def check_kind(model: nn.Module) -> None:
    """Refuse modules that cannot be recorded or cut, whatever their weights are."""
    if not isinstance(model, nn.Module):
        raise OptionError(
            f"model must be a torch.nn.Module, got {kind_of(model)}; {_remedy(model)}"
        )
    _check_wrapper(model)
    check_foreign(model)
    for name, module in model.named_modules():
        place = f"{name!r} of the model" if name else "the model"
        if isinstance(module, torch.jit.ScriptModule | torch.jit.ScriptFunction):
            raise OptionError(
                f"{place} is scripted or traced ({type(module).__name__}), so that "
                "its layers cannot be cut; give the Python module that it was made "
                "from, and script the result"
            )
        tensors = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
        if any(is_lazy(x) for x in tensors):
            raise OptionError(
                f"{place} is a {type(module).__name__} that has no weights yet; call the model "
                "once with an example input, and load trained weights"
            )
        kind = _quantised_class([module, *tensors])
        if kind is not None:
            raise OptionError(
                f"{place} is quantised ({kind.__module__}.{kind.__name__}), so that its weights "
                "cannot be refitted; prune the model in float32, then quantise the result"
            )


def kind_of(other: object) -> str:
    """What was given in the place of a model."""
    if isinstance(other, type):
        return f"the class {other.__name__}"
    return f"an object of type {type(other).__name__}"


def _remedy(other: object) -> str:
    """How to come from it to a model."""
    if isinstance(other, type):
        return f"make one, {other.__name__}(…), and load trained weights into it"
    if isinstance(other, str | PathLike | Mapping):
        return "build the model and load the weights with model.load_state_dict"
    if isinstance(other, Tensor):
        return "the model comes first, then the data"
    return "give the model itself"


def _check_wrapper(model: nn.Module) -> None:
    """What stands around the model itself and would not survive."""
    kind = type(model).__name__
    if isinstance(model, DataParallel | DistributedDataParallel):
        raise OptionError(f"the model is wrapped in {kind}; give model.module, and wrap the result")
    _check_sharded(model)
    if kind == "OptimizedModule":
        raise OptionError("the model was compiled by torch.compile; give model._orig_mod instead")
    for name, module in model.named_modules():
        if isinstance(module, DistributedDataParallel) or getattr(module, "device_ids", None):
            wrapper = type(module).__name__
            raise OptionError(
                f"{name!r} of the model is wrapped in {wrapper}; give it {name}.module"
            )
    if isinstance(model, torch.fx.GraphModule) and "eval" in vars(model):  # a stand-in that raises
        raise OptionError(
            "the model was made by torch.export, which fixes how it is run; give the Python "
            "module that it was made from, and export the result with subprune.export"
        )


def _check_sharded(model: nn.Module) -> None:
    """Refuse FSDP, of both kinds: every process has only a part of each weight."""
    for name, module in model.named_modules():
        classes = [c.__name__ for c in type(module).__mro__]
        pieces = [type(p).__name__ for p in module.parameters(recurse=False)]
        if {"FullyShardedDataParallel", "FSDPModule"} & set(classes) or "DTensor" in pieces:
            place = f"{name!r} of the model" if name else "the model"
            raise OptionError(
                f"{place} is sharded by FSDP, so that this process has a part of its weights only; "
                "build the model without FSDP, load the full state dict into it "
                "(torch.distributed.checkpoint.state_dict.get_model_state_dict with "
                "full_state_dict=True), and shard the result"
            )


def _quantised_class(parts: Sequence[nn.Module | Tensor]) -> type | None:
    """The class of a layer whose weights are packed whole numbers, or of such weights in an
    ordinary layer; None if there is none.
    """
    return next((type(x) for x in parts if _is_quantised(type(x))), None)


def _is_quantised(kind: type) -> bool:
    origin = kind.__module__
    if packs_weights(kind):
        return True
    if "FloatFunctional" in kind.__name__:  # adds in float, in models yet to be quantised
        return False
    return origin.startswith("torch.") and ".quantized" in origin


def _check_tensor(name: str, x: Tensor) -> None:
    if x.is_quantized:
        raise OptionError(f"{name} is quantised ({x.dtype}); prune the model in float32 first")
    if x.is_meta:
        raise OptionError(
            f"{name} is on the meta device and has no values; build the model on a real device (or "
            'call model.to_empty(device="cpu")) and load trained weights'
        )
    if x.layout != torch.strided:
        raise OptionError(f"{name} is stored as {x.layout}; make it dense with .to_dense() first")
    if x.is_floating_point() and x.dtype not in _DTYPES:
        allowed = ", ".join(str(dtype)[6:] for dtype in _DTYPES)
        raise OptionError(
            f"{name} is {x.dtype}, which nothing can be fitted in; allowed are {allowed}: convert "
            "the model first, with model.bfloat16() for instance"
        )
    if x.is_floating_point() and not all(bool(torch.isfinite(part).all()) for part in _parts(x)):
        layer = name.rpartition(".")[0]
        raise DataError(f"the weights of layer {layer!r} ({name}) contain NaN or infinity")


_PART = 2**22  # numbers that are looked at together


def _parts(x: Tensor) -> Sequence[Tensor]:
    """A large tensor in rows: what is asked of each number takes memory too."""
    if x.numel() <= _PART:
        return [x]
    return x.split(max(1, _PART * len(x) // x.numel()))
