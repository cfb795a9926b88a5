"""What belongs to the whole process: random numbers, PyTorch's switches, functions and hooks."""

from __future__ import annotations

import contextlib
import logging
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.modules import module as nn_module

__all__ = ["LOG", "WHOLE", "ProcessState", "quiet"]

WHOLE = tuple(
    name for name in ("linear", "scaled_dot_product_attention", "grouped_mm") if hasattr(F, name)
)
"""Functions of ``torch.nn.functional`` that are replaced while a run is recorded."""

LOG = "torch._subclasses.fake_tensor"
"""Name of the logger that is silenced meanwhile."""

_HOOKS = tuple(
    n for n, x in vars(nn_module).items() if n.startswith("_global_") and isinstance(x, dict)
)
"""Tables of hooks on all modules."""


@contextlib.contextmanager
def quiet(level: int) -> Iterator[None]:
    """Neither warnings nor logged messages up to this level are shown."""
    before = logging.root.manager.disable
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(level)
        try:
            yield
        finally:
            logging.disable(before)


class ProcessState:
    """The process as it is now, to be put back."""

    def __init__(self) -> None:
        self.settings, self.numbers = _settings(), _random_numbers()

    def restore(self) -> None:
        """Restore what has changed."""
        for read, write, before in self.settings:
            if read() != before:
                write(before)
        for write, before in self.numbers:
            write(before)


def _settings() -> list[tuple[Callable[[], Any], Callable[[Any], Any], Any]]:
    """How to read a setting, how to write it, and what it is now."""
    mha, log = torch.backends.mha, logging.getLogger(LOG)
    ways: list[tuple[Callable[[], Any], Callable[[Any], Any]]] = [
        (torch.is_grad_enabled, torch.set_grad_enabled),
        (torch.get_default_dtype, torch.set_default_dtype),
        (torch.get_num_threads, torch.set_num_threads),
        (mha.get_fastpath_enabled, mha.set_fastpath_enabled),
        (lambda: log.level, log.setLevel),
        (lambda: logging.root.manager.disable, logging.disable),
        (lambda: tuple(getattr(F, name) for name in WHOLE), _set_functions),
        (lambda: [dict(getattr(nn_module, name)) for name in _HOOKS], _set_hooks),
    ]
    return [(read, write, read()) for read, write in ways]


def _set_functions(functions: tuple[Any, ...]) -> None:
    for name, function in zip(WHOLE, functions, strict=True):
        setattr(F, name, function)


def _set_hooks(tables: list[dict[int, Any]]) -> None:
    for name, entries in zip(_HOOKS, tables, strict=True):
        getattr(nn_module, name).clear()
        getattr(nn_module, name).update(entries)


def _random_numbers() -> list[tuple[Callable[[Any], Any], Any]]:
    """How to set the state of every source of random numbers, and what it is now."""
    sources: list[tuple[Callable[[Any], Any], Any]] = [
        (torch.set_rng_state, torch.get_rng_state()),
        (random.setstate, random.getstate()),
        (np.random.set_state, np.random.get_state()),  # noqa: NPY002  (old code draws from it)
    ]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        sources.append((torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all()))
    return sources
