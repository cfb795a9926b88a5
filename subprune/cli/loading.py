"""The model that a command is about: a built-in name or a Python callable, with weights from a
file.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from subprune.cli import blame
from subprune.cli.hubs import LIBRARIES, Loaded, named_model, pretrained
from subprune.cli.weight_files import ENDINGS, with_weights
from subprune.errors import OptionError, closest
from subprune.zoo.models import build, model_names, shipped_lenet

__all__ = ["call", "find_callable", "is_code", "load", "load_model"]

SHIPPED_MODEL = "lenet-mnist"
_EXAMPLES = {
    "timm": "timm:resnet50",
    "torchvision": "torchvision:resnet50",
    "hf": "hf:FOLDER_OR_ID",
}


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
    if library in LIBRARIES and not name:
        raise OptionError(
            f"--model {spec!r} lacks a name after the colon, as in {_EXAMPLES[library]}"
        )
    if library in LIBRARIES:
        loaded = named_model(library, name, trained and weights is None, download)
    elif (Path(spec) / "config.json").is_file():
        loaded = pretrained(spec, spec)
    else:
        loaded = Loaded(_own_model(spec, trained and weights is None))
    model = loaded.model if weights is None else with_weights(loaded.model, weights)
    return replace(loaded, model=model.eval())


def _own_model(spec: str, trained: bool) -> nn.Module:
    """A built-in model, or what a callable gives; `trained`: random weights do not do."""
    if ":" in spec:
        made = call(find_callable(spec, "--model"), spec, "--model")
        if not isinstance(made, nn.Module):
            raise OptionError(
                f"--model {spec} must give a torch.nn.Module, but gave an object of type "
                f"{type(made).__name__}"
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
    meant = _meant(spec)
    if meant:
        raise OptionError(f"--model {spec!r} {meant}")
    raise OptionError(
        f"--model {spec!r} is not known: {closest(spec, known)}give package.module:callable, file.py:callable, "
        f"timm:NAME, torchvision:NAME, hf:FOLDER_OR_ID, a folder of transformers, or one of "
        f"{', '.join(known)}"
    )


def _meant(spec: str) -> str:
    """What a file or folder is, given alone, and how it can be used; empty for other words."""
    path = Path(spec)
    if path.suffix == ".py":
        return (
            f"is a Python file; name the function or class in it that makes the model, {spec}:NAME"
        )
    if path.suffix in ENDINGS:
        return (
            f"is a file of weights, and a model is made by code; give --model file.py:callable "
            f"--weights {spec}"
        )
    if path.is_dir():
        return (
            "is a folder without config.json; give one that save_pretrained of the transformers "
            "library wrote, or file.py:callable"
        )
    return ""


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
            f"{option} {spec}: there is no {name!r} in {place}; "
            f"{closest(name, names) or 'check the name'}".rstrip()
        ) from error
    except (Exception, SystemExit) as error:
        raise OptionError(f"{option} {spec}: {_not_imported(place, error)}") from error
    return item


def _not_imported(place: str, error: BaseException) -> str:
    """Why a file or module cannot be imported: it is not there, or something in it failed."""
    if isinstance(error, _NoFile):
        return f"there is no file {place!r}; check the path, which starts at {str(Path.cwd())!r}"
    if isinstance(error, ModuleNotFoundError) and (error.name or "") in _with_parents(place):
        return (
            f"there is no module {error.name!r}, neither in {str(Path.cwd())!r} nor installed; "
            "check the name, or give file.py:callable"
        )
    where = "" if isinstance(error, SyntaxError) else f" ({blame.place(error)})"
    return f"importing {place} failed: {blame.cause(error)}{where}; --debug shows the traceback"


def _with_parents(module: str) -> list[str]:
    """``a.b.c``: a, a.b and a.b.c."""
    parts = module.split(".")
    return [".".join(parts[: i + 1]) for i in range(len(parts))]


class _NoFile(FileNotFoundError):
    """The Python file that an option names."""


def _module(place: str) -> ModuleType:
    if place.endswith(".py"):
        path = Path(place)
        if not path.is_file():
            raise _NoFile(place)
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
    needed = _needed_arguments(item)
    if needed:
        raise OptionError(
            f"{option} {spec} needs arguments ({', '.join(needed)}), and is called without any; name "
            "a function without arguments that calls it with the right ones"
        )
    try:
        return item()
    except (Exception, SystemExit) as error:
        raise OptionError(
            f"{option} {spec} failed in {blame.place(error)}: {blame.cause(error)}; "
            "--debug shows the traceback"
        ) from error


def _needed_arguments(item: Any) -> list[str]:
    """Arguments without a default, as far as they are known."""
    try:
        parameters = inspect.signature(item).parameters.values()
    except (TypeError, ValueError):
        return []
    return [
        p.name
        for p in parameters
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
