"""Independent pieces of work on several cores.

Many small operations gain nothing from threads inside each of them. Here whole pieces run side by
side, each on one core, as many as `torch.get_num_threads()` allows; PyTorch releases the
interpreter's lock while it computes.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

import torch

__all__ = ["each", "later", "one_thread", "settled"]

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")

_pools: dict[tuple[int, int], ThreadPoolExecutor] = {}  # by process and number of threads
_making = threading.Lock()
_inside = threading.local()


def _workers() -> int:
    """Pieces that may run at once from here; a piece of work is not divided again."""
    return 1 if getattr(_inside, "worker", False) else torch.get_num_threads()


def _start() -> None:
    _inside.worker = True
    torch.get_num_threads()  # a thread takes over the process's number when it first asks: now
    torch.set_num_threads(1)  # of this thread, and of threads to come


def _pool(workers: int) -> ThreadPoolExecutor:
    key = (os.getpid(), workers)
    with _making:
        if key not in _pools:
            _pools[key] = _started(workers)
        return _pools[key]


def _started(workers: int) -> ThreadPoolExecutor:
    """A pool whose threads all run already: threads to come have the caller's number again."""
    pool = ThreadPoolExecutor(workers, "subprune", initializer=_start)
    ready = threading.Barrier(workers + 1)
    try:
        for _ in range(workers):
            pool.submit(ready.wait)
        ready.wait()
    except BaseException:
        ready.abort()
        pool.shutdown(wait=True)
        raise
    finally:
        torch.set_num_threads(workers)
    return pool


def _begun() -> set[Future[Any]]:
    """What this thread has begun and what has not ended."""
    if not hasattr(_inside, "begun"):
        _inside.begun = set()
    begun: set[Future[Any]] = _inside.begun
    return begun


def _submit(function: Callable[..., Outcome], *args: Any) -> Future[Outcome]:
    future = _pool(_workers()).submit(_as_here(function), *args)
    begun = _begun()
    begun.add(future)
    future.add_done_callback(begun.discard)
    return future


@contextlib.contextmanager
def settled() -> Iterator[None]:
    """After an error, nothing that was begun inside goes on: it may use what is being restored."""
    before = set(_begun())
    try:
        yield
    except BaseException:
        unfinished = set(_begun()) - before
        for future in unfinished:
            future.cancel()
        wait(unfinished)
        raise


def later(function: Callable[[], Outcome], worthwhile: bool = True) -> Future[Outcome]:
    """Begin a piece of work and go on; its `result()` waits for it.

    On one core, or where that is not worthwhile, it is done at once.
    """
    if worthwhile and _workers() > 1:
        return _submit(function)
    done: Future[Outcome] = Future()
    try:
        done.set_result(function())
    except Exception as error:  # Ctrl-C is not deferred
        done.set_exception(error)
    return done


def each(
    function: Callable[[Item], Outcome], items: Sequence[Item], worthwhile: bool = True
) -> list[Outcome]:
    """The function of every item, in order. The first error is raised when all have ended."""
    if not worthwhile or len(items) < 2 or _workers() < 2:
        return [function(item) for item in items]
    futures = [_submit(function, item) for item in items]
    errors = [error for future in futures if (error := future.exception()) is not None]
    if errors:
        raise errors[0]
    return [future.result() for future in futures]


@contextlib.contextmanager
def one_thread(wanted: bool = True) -> Iterator[None]:
    """Run operations that are too small for several threads on one: waiting for each other would
    take longer than the work.
    """
    before = torch.get_num_threads()
    if not wanted or before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _as_here(function: Callable[..., Outcome]) -> Callable[..., Outcome]:
    """The function in the caller's gradient mode, which other threads do not share."""
    grad = torch.is_grad_enabled()

    def run(*args: Any) -> Outcome:
        with torch.set_grad_enabled(grad):
            return function(*args)

    return run
