"""A complete picture of what a caller hands over, and errors put into every call that happens
meanwhile.
"""

from __future__ import annotations

import logging
import random
import sys
import threading
from pathlib import Path
from types import CodeType, FrameType, SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from zoo_odd import Memory

import subprune
from subprune.program.program import flat_tensors

PACKAGE = str(Path(subprune.__file__).parent)
OBJECTS = (Memory, SimpleNamespace)


def picture(model: nn.Module, data: Any = ()) -> dict[str, Any]:
    """Objects by identity, tensors by value and version, and everything global."""
    return {
        "model": _modules(model),
        "tensors": _tensors(model),
        "data": _values(data),
        "process": _process(),
    }


def _modules(model: nn.Module) -> list[Any]:
    """Classes, modes, attributes, and the contents of dicts, lists and sets, all by identity and in
    order.
    """
    return [
        (id(m), type(m), m.training, {name: _held(x) for name, x in vars(m).items()})
        for m in model.modules()
    ]


def _held(x: Any) -> Any:
    if isinstance(x, dict):
        return id(x), [(key, _held(value)) for key, value in x.items()]
    if isinstance(x, list | set | tuple):
        return id(x), [_held(value) for value in x]
    if isinstance(x, torch.Generator):
        return id(x), x.get_state().numpy().tobytes()
    if isinstance(x, random.Random | np.random.Generator):
        return id(x), str(x.getstate() if isinstance(x, random.Random) else x.bit_generator.state)
    if isinstance(x, OBJECTS):
        return id(x), _held(vars(x)), _values_and_versions(flat_tensors(vars(x)))
    return x if isinstance(x, bool | int | float | str) else id(x)


def _tensors(model: nn.Module) -> list[Any]:
    plain = [
        x
        for m in model.modules()
        for x in flat_tensors([v for v in vars(m).values() if not _is_table(v)])
    ]
    return _values_and_versions([*model.parameters(), *model.buffers(), *plain])


def _values_and_versions(tensors: list[Tensor]) -> list[Any]:
    return [
        (type(x), x.dtype, x.requires_grad, id(x.grad), x._version, x.detach().numpy().tobytes())
        for x in tensors
    ]


def _is_table(x: Any) -> bool:
    return isinstance(x, dict) and any(isinstance(value, nn.Module) for value in x.values())


def _values(data: Any) -> list[Any]:
    return [(id(x), x._version, x.numpy().tobytes()) for x in flat_tensors(data)]


def _process() -> dict[str, Any]:
    hooks = nn.modules.module
    return {
        "functions": (F.linear, F.scaled_dot_product_attention),
        "fast path": torch.backends.mha.get_fastpath_enabled(),
        "grad": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "dtype": (torch.get_default_dtype(), torch.get_default_device()),
        "threads": (torch.get_num_threads(), threads_of_new_threads()),
        "random": (torch.get_rng_state().numpy().tobytes(), random.getstate(), _numpy_state()),
        "hooks": [
            list(getattr(hooks, name))
            for name in vars(hooks)
            if name.startswith("_global_") and isinstance(getattr(hooks, name), dict)
        ],
        "modes": list(_get_current_dispatch_mode_stack()),
        "logging": (
            logging.getLogger("torch._subclasses.fake_tensor").level,
            logging.root.manager.disable,
            logging.root.level,
        ),
    }


def _numpy_state() -> list[Any]:
    return [x.tobytes() if isinstance(x, np.ndarray) else x for x in np.random.get_state()]  # noqa: NPY002  (what old code draws from)


def threads_of_new_threads() -> int:
    """What a thread that the caller starts next would get."""
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    return found[0]


class Calls:
    """Counts the calls of the package's own functions, generators' resumptions too, and raises at
    one of them.
    """

    def __init__(
        self, at: tuple[CodeType, int] | None = None, error: type[BaseException] = Exception
    ) -> None:
        self.at, self.error = at, error
        self.counts: dict[CodeType, int] = {}
        self.raised = False

    def _see(self, frame: FrameType, event: str, arg: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(PACKAGE):
            return
        number = self.counts[code] = self.counts.get(code, 0) + 1
        if (code, number) == self.at:
            self.raised = True
            raise self.error("put in by the test")

    def __enter__(self) -> Calls:
        self.before = sys.gettrace()
        sys.settrace(self._see)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self.before)


def places(counts: dict[CodeType, int], part: int, parts: int) -> list[tuple[CodeType, int]]:
    """Every nth function, each at its first call, its last, or one between, in turn.

    Comprehensions are parts of functions, and an error in one that is being closed would reach
    nobody.
    """
    named = [c for c in counts if not c.co_name.endswith(("comp>", "expr>"))]
    chosen = sorted(named, key=lambda c: (c.co_filename, c.co_firstlineno, c.co_name))[part::parts]
    return [(c, (1, counts[c], (counts[c] + 1) // 2)[(i + part) % 3]) for i, c in enumerate(chosen)]
