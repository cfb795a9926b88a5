"""What becomes of freed memory: kept for the next layer, or given back to the system at once.

A forward run frees and takes blocks of the same sizes all the time. The C library of Linux returns large ones at once,
and every page of the next block is mapped and cleared anew, which takes a fifth of the time of a small network.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
from collections.abc import Callable, Iterator
from functools import cache

__all__ = ["give_back", "keep_freed"]

_TRIM, _PAD, _MAP = -1, -2, -3  # numbers of the settings in <malloc.h>
_KEPT = {_TRIM: 2**31 - 1, _PAD: 2**26, _MAP: 2**30}
_USUAL = {_TRIM: 2**26, _PAD: 2**17, _MAP: 2**25}  # where the library's own adjustment ends in a process like this

_lock = threading.Lock()
_users = 0


@cache
def _settings() -> tuple[Callable[[int, int], int], Callable[[int], int]] | None:
    """`mallopt` and `malloc_trim` of the GNU C library, None where there is another."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        library = ctypes.CDLL("libc.so.6")
        return library.mallopt, library.malloc_trim
    except (OSError, AttributeError):
        return None


def give_back() -> None:
    """Return freed memory to the system, the gaps between what is in use too."""
    found = _settings()
    if found is not None and _users == 0:
        found[1](0)


@contextlib.contextmanager
def keep_freed() -> Iterator[None]:
    """Inside, memory that is freed stays with the process; afterwards it is given back."""
    global _users
    found = _settings()
    if found is None:
        yield
        return
    change, give_back = found
    with _lock:
        _users += 1
        for number, value in _KEPT.items():
            change(number, value)
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                for number, value in _USUAL.items():
                    change(number, value)
                give_back(0)
