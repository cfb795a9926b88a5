"""Freed memory is given back to the system: of no use to the next layer, but maybe to somebody else.

Freeing is left to the C library as the caller has set it up: nothing here changes a setting of the process.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache

__all__ = ["give_back"]


@cache
def _trim() -> Callable[[int], int] | None:
    """`malloc_trim` of the GNU C library, None where there is another."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        return ctypes.CDLL("libc.so.6").malloc_trim
    except (OSError, AttributeError):
        return None


def give_back() -> None:
    """Return freed memory to the system, the gaps between what is in use too."""
    trim = _trim()
    if trim is not None:
        trim(0)
