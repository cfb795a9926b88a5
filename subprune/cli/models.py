"""The model that a command is about: a built-in name or a Python callable, with weights from a
file.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from pickle import UnpicklingError
from types import ModuleType
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from subprune.cli import blame
from subprune.cli.hubs import LIBRARIES, Loaded, named_model, pretrained
from subprune.errors import DataError, OptionError, closest
from subprune.io.storage import load as load_pruned
from subprune.zoo.models import build, model_names, shipped_lenet
from subprune.zoo.weights import load_weights

__all__ = ["Loaded", "call", "find_callable", "is_code", "load", "load_model"]

SHIPPED_MODEL = "lenet-mnist"
_MISSING = (ModuleNotFoundError, FileNotFoundError)
_WRAPPERS = ("state_dict", "model_state_dict", "model")


def is_code(spec: str) -> bool:
    """Whether ``--model`` names something in Python."""
    return ":" in spec and spec.partition(":")[0] not in LIBRARIES


def load_model(spec: str, weights: Path | None, trained: bool = True) -> nn.Module:
    """`load` for those who want the model alone."""
    return load(spec, weights, trained).model


def load(
    spec: str, weights: Path | None, trained: bool = True, *, download: bool = False
) -> Loaded:
    """The model of ``--model`` with the weights of ``--weights``, in eval mode; random weights are
    not `trained`.
    """
    library, _, name = spec.partition(":")
    if library in LIBRARIES and name:
        loaded = named_model(library, name, trained and weights is None, download)
    elif (Path(spec) / "config.json").is_file():
        loaded = pretrained(spec, spec)
    else:
        loaded = Loaded(_own_model(spec, trained and weights is None))
    model = loaded.model if weights is None else _with_weights(loaded.model, weights)
    return replace(loaded, model=model.eval())


def _own_model(spec: str, trained: bool) -> nn.Module:
    """A built-in model, or what a callable gives; `trained`: random weights do not do."""
    if ":" in spec:
        made = call(find_callable(spec, "--model"), spec, "--model")
        if not isinstance(made, nn.Module):
            raise OptionError(
                f"--model {spec} gave a {type(made).__name__}; it must give a torch.nn.Module"
            )
        return made
    if spec == SHIPPED_MODEL:
        return shipped_lenet()[0]
    if spec in model_names():
        if trained:
            raise OptionError(
                f"--model {spec} alone has random weights; give trained ones with --weights FILE "
                f"(.safetensors or .pt), or use --model {SHIPPED_MODEL}, which comes with them"
            )
        return build(spec)
    known = [SHIPPED_MODEL, *model_names()]
    raise OptionError(
        f"--model {spec!r}: {closest(spec, known)}give package.module:callable, file.py:callable, "
        f"timm:NAME, torchvision:NAME, hf:FOLDER_OR_ID, a folder of transformers, or one of "
        f"{', '.join(known)}"
    )


def find_callable(spec: str, option: str) -> Any:
    """What ``package.module:name`` or ``file.py:name`` stands for; the working folder can be
    imported from.
    """
    place, _, name = spec.rpartition(":")
    if not place or not name.replace(".", "").isidentifier():
        raise OptionError(
            f"{option} {spec!r} must look like package.module:callable or file.py:callable"
        )
    try:
        item: Any = _module(place)
        for part in name.split("."):
            item = getattr(item, part)
    except AttributeError as error:
        names = (
            [n for n in vars(item) if not n.startswith("_")] if isinstance(item, ModuleType) else []
        )
        raise OptionError(
            f"{option} {spec}: {closest(name, names)}there is no {name!r} in {place}"
        ) from error
    except _MISSING as error:
        raise OptionError(
            f"{option} {spec}: {place} cannot be imported: {blame.cause(error)}"
        ) from error
    except (Exception, SystemExit) as error:
        raise OptionError(
            f"{option} {spec}: {place} cannot be imported: {blame.cause(error)} "
            f"({blame.place(error)}); --debug shows the traceback"
        ) from error
    return item


def _module(place: str) -> ModuleType:
    if place.endswith(".py"):
        path = Path(place)
        if not path.is_file():
            raise FileNotFoundError(f"there is no file {place!r}")
        return _file_module(path)
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    return importlib.import_module(place)


_FILES: dict[tuple[Path, int], ModuleType] = {}  # by place and time of the last change


def _file_module(path: Path) -> ModuleType:
    """A Python file as a module. It runs once, however often it is named: it may register methods."""
    key = path.resolve(), path.stat().st_mtime_ns
    if key in _FILES:
        return _FILES[key]
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
    _FILES[key] = module
    return module


def call(item: Any, spec: str, option: str) -> Any:
    """The object itself, or what it returns; an error inside it is named."""
    if isinstance(item, nn.Module) or not callable(item):
        return item
    try:
        return item()
    except (Exception, SystemExit) as error:
        raise OptionError(
            f"{option} {spec} failed in {blame.place(error)}: {blame.cause(error)}; "
            "--debug shows the traceback"
        ) from error


def _with_weights(model: nn.Module, path: Path) -> nn.Module:
    if not path.is_file():
        raise DataError(f"--weights {path} is not a file; give a .safetensors or .pt file")
    if path.suffix == ".safetensors":
        if _saved_by_us(path):
            return load_pruned(model, path)
        load_weights(model, path)
        return model
    if path.suffix not in (".pt", ".pth", ".bin"):
        raise DataError(
            f"--weights {path} ends in {path.suffix!r}; allowed are "
            ".safetensors, .pt, .pth and .bin"
        )
    _fill(model, _read_pickle(path), path)
    return model


def _saved_by_us(path: Path) -> bool:
    try:
        with safe_open(str(path), framework="pt") as file:
            return str((file.metadata() or {}).get("format", "")).startswith("subprune-")
    except (SafetensorError, OSError, ValueError) as error:
        raise DataError(
            f"--weights {path} is damaged or not a safetensors file: {error}"
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
        raise DataError(
            f"--weights {path} cannot be read as plain tensors ({_cause(error)}); save "
            "model.state_dict() alone, best as safetensors"
        ) from error
    for key in _WRAPPERS:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if (
        not isinstance(content, Mapping)
        or not content
        or not all(isinstance(x, Tensor) for x in content.values())
    ):
        raise DataError(f"--weights {path} holds no dictionary of tensors; save model.state_dict()")
    return {str(k).removeprefix("module."): x for k, x in content.items()}


def _cause(error: Exception) -> str:
    """In one line without control characters; of PyTorch's long advice on pickles only what it
    found.
    """
    match = re.search(r"Unsupported global: GLOBAL ([\w.]+)", str(error))
    if match:
        return f"it holds a pickled {match[1]}, and no code is run to read a file"
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error).strip().split("\n")[0])
    return f"{type(error).__name__}: {text[:200]}"


def _fill(model: nn.Module, state: dict[str, Tensor], path: Path) -> None:
    wanted = model.state_dict()
    missing, extra = sorted(wanted.keys() - state.keys()), sorted(state.keys() - wanted.keys())
    other = [k for k in wanted.keys() & state.keys() if wanted[k].shape != state[k].shape]
    missing = [k for k in missing if not k.endswith("num_batches_tracked")]
    if missing or extra or other:
        raise DataError(
            f"--weights {path} does not fit {type(model).__name__}: missing {missing[:3]}, unknown "
            f"{extra[:3]}, other shape {other[:3]}; build the model the file was saved from"
        )
    model.load_state_dict(state, strict=False)
