"""A model is borrowed for a run and given back as it was."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from torch import nn

__all__ = ["eval_mode", "follow", "quiet", "unchanged"]


@contextlib.contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Whatever a forward run leaves behind on the modules (caches, computed weights) is taken off again.

    Buffers that it wrote into are not; the runs here get copies of these.
    """
    tables = ("_parameters", "_buffers", "_modules")
    saved = [(m, dict(vars(m)), {name: dict(vars(m)[name]) for name in tables}) for m in model.modules()]
    try:
        yield
    finally:
        for module, attributes, contents in saved:
            vars(module).clear()
            vars(module).update(attributes)
            for name, entries in contents.items():
                if vars(module)[name] != entries:
                    vars(module)[name].clear()
                    vars(module)[name].update(entries)


@contextlib.contextmanager
def follow(model: nn.Module, running: list[str]) -> Iterator[None]:
    """Keep the names of the modules that are running in a list; after an error it says where."""
    names = {id(m): n for n, m in model.named_modules()}

    def enter(module: nn.Module, args: Any) -> None:
        running.append(names.get(id(module), type(module).__name__))

    def leave(module: nn.Module, args: Any, result: Any) -> None:
        running.pop()

    hooks = [
        nn.modules.module.register_module_forward_pre_hook(enter),
        nn.modules.module.register_module_forward_hook(leave),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextlib.contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Borrow the model in eval mode; give every module its own mode back."""
    modes = [(m, m.training) for m in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """PyTorch logs a traceback when a run on fake tensors fails; the error that is raised says it all."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)
