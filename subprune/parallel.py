"""Independent pieces of work on several cores.

Many small operations gain nothing from threads inside each of them. Here whole pieces run side by side, each on one
core, as many as `torch.get_num_threads()` allows; PyTorch lets go of the interpreter while it computes.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import torch

__all__ = ["each", "later", "one_thread"]

Item = TypeVar("Item")
Found = TypeVar("Found")

_pools: dict[tuple[int, int], ThreadPoolExecutor] = {}  # by process and number of threads
_inside = threading.local()


def _workers() -> int:
    """Pieces that may run at once from here; a piece of work does not share itself out again."""
    return 1 if getattr(_inside, "worker", False) else torch.get_num_threads()


def _start() -> None:
    _inside.worker = True
    torch.set_num_threads(1)  # of this thread


def _pool(workers: int) -> ThreadPoolExecutor:
    key = (os.getpid(), workers)
    if key not in _pools:
        _pools[key] = ThreadPoolExecutor(workers, "subprune", initializer=_start)
    return _pools[key]


def later(function: Callable[[], Found]) -> Future[Found]:
    """Begin a piece of work and go on; its `result()` waits for it. On one core it is done at once."""
    if _workers() > 1:
        return _pool(_workers()).submit(_as_here(function))
    done: Future[Found] = Future()
    try:
        done.set_result(function())
    except BaseException as error:
        done.set_exception(error)
    return done


def each(function: Callable[[Item], Found], items: Sequence[Item], worthwhile: bool = True) -> list[Found]:
    """The function of every item, in order. The first error is raised when all have ended."""
    if not worthwhile or len(items) < 2 or _workers() < 2:
        return [function(item) for item in items]
    pool = _pool(_workers())
    futures = [pool.submit(_as_here(function), item) for item in items]
    errors = [error for future in futures if (error := future.exception()) is not None]
    if errors:
        raise errors[0]
    return [future.result() for future in futures]


@contextlib.contextmanager
def one_thread(wanted: bool = True) -> Iterator[None]:
    """Operations too small for threads run without: waiting for each other costs them more than the work."""
    before = torch.get_num_threads()
    if not wanted or before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _as_here(function: Callable[..., Found]) -> Callable[..., Found]:
    """The function in the caller's gradient mode, which other threads do not share."""
    grad = torch.is_grad_enabled()

    def run(*args: Any) -> Found:
        with torch.set_grad_enabled(grad):
            return function(*args)

    return run
