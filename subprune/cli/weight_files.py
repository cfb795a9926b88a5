"""The weights of ``--weights``, put into a model; no code in the file is run."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from subprune.errors import DataError
from subprune.io.storage import load as load_pruned
from subprune.zoo.weights import check_fit, listed, load_weights

__all__ = ["ENDINGS", "with_weights"]

ENDINGS = (".safetensors", ".pt", ".pth", ".bin")
"""Names that files of weights may have."""

_WRAPPERS = ("state_dict", "model_state_dict", "model")
_SAVE = "save model.state_dict() with torch.save or safetensors.torch.save_file"


def with_weights(model: nn.Module, path: Path) -> nn.Module:
    """The model with the weights of the file: itself, or, from a file of ours, a smaller one."""
    _check(path)
    if path.suffix != ".safetensors":
        _fill(model, _read_pickle(path), path)
        return model
    if _saved_by_us(path):
        return load_pruned(model, path)
    load_weights(model, path)
    return model


def _check(path: Path) -> None:
    """Refuse what cannot be a file of weights, before it is opened."""
    if path.is_dir():
        raise DataError(
            f"--weights {path} is a folder; give a file in it that ends in {_either(ENDINGS)}"
        )
    if not path.is_file():
        raise DataError(
            f"--weights {path} is not a file; check the path, which starts at {str(Path.cwd())!r}"
        )
    if path.suffix not in ENDINGS:
        raise DataError(
            f"--weights {path} ends in {path.suffix!r}; give a file that ends in {_either(ENDINGS)}"
        )
    if not path.stat().st_size:
        raise DataError(f"--weights {path} is empty (0 bytes); save or download it again")


def _either(names: tuple[str, ...]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"


def _saved_by_us(path: Path) -> bool:
    try:
        with safe_open(str(path), framework="pt") as file:
            return str((file.metadata() or {}).get("format", "")).startswith("subprune-")
    except (SafetensorError, OSError, ValueError) as error:
        raise DataError(
            f"--weights {path} is damaged or not a safetensors file ({error}); save it with "
            "safetensors.torch.save_file, or name a file of torch.save .pt"
        ) from error


def _read_pickle(path: Path) -> dict[str, Tensor]:
    """Tensors of a checkpoint, read with ``weights_only=True``: no code in the file is run."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (
        UnpicklingError,
        RuntimeError,
        EOFError,
        ValueError,
        KeyError,
        OSError,
        AttributeError,
        TypeError,
        IndexError,
        ImportError,
        AssertionError,
        OverflowError,
        MemoryError,
        UnicodeError,
    ) as error:
        raise DataError(_refusal(path, error)) from error
    for key in _WRAPPERS:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if (
        not isinstance(content, Mapping)
        or not content
        or not all(isinstance(x, Tensor) for x in content.values())
    ):
        raise DataError(
            f"--weights {path} holds no dictionary of tensors, but {_described(content)}; {_SAVE}"
        )
    return {str(k).removeprefix("module."): x for k, x in content.items()}


def _described(content: object) -> str:
    """What a file holds, in a few words."""
    if not isinstance(content, Mapping):
        return f"an object of type {type(content).__name__}"
    if not content:
        return "an empty dictionary"
    names = [str(name)[:40] for name, x in content.items() if not isinstance(x, Tensor)]
    return f"a dictionary with other things in it ({listed(names)})"


def _refusal(path: Path, error: Exception) -> str:
    """Why a file cannot be read; of PyTorch's long advice on pickles only what it found."""
    match = re.search(r"Unsupported global: GLOBAL ([\w.]+)", str(error))
    if match:
        return (
            f"--weights {path} holds a pickled {match[1]}, perhaps a whole model; reading that would "
            f"run code from the file, so only tensors are read: {_SAVE}"
        )
    if not zipfile.is_zipfile(path):
        return (
            f"--weights {path} is damaged or not a checkpoint of PyTorch; give a file that torch.save "
            f"wrote, best of model.state_dict(), or a .safetensors file"
        )
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error).strip().split("\n")[0])
    return (
        f"--weights {path} cannot be read as plain tensors ({type(error).__name__}: {text[:200]}); "
        f"{_SAVE}"
    )


def _fill(model: nn.Module, state: dict[str, Tensor], path: Path) -> None:
    shapes = {name: tuple(x.shape) for name, x in state.items()}
    check_fit(f"--weights {path}", type(model).__name__, shapes, model.state_dict())
    model.load_state_dict(state, strict=False)
