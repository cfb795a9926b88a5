"""Connected components of many ties at once, as array operations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["Ids", "components"]

Ids = NDArray[np.int64]


def components(n: int, pairs: Sequence[tuple[Ids, Ids]], known: Ids | None = None) -> Ids:
    """Smallest member of the connected component of each of ``0 … n-1``: [n].

    pairs: arrays a, b of equal length; a[i] and b[i] are in one component. `known` is an earlier
    result for some of the pairs; then only the new ones are needed.

    Every round hangs the larger root of each open pair under the smaller one, for all pairs at
    once. Of several pairs with the same larger root the smallest partner wins; the others stay open
    for the next round.
    """
    parent = np.arange(n, dtype=np.int64)
    if known is not None:
        parent[: known.size] = known
    if not pairs:
        return parent
    a = np.concatenate([p[0] for p in pairs])
    b = np.concatenate([p[1] for p in pairs])
    while True:
        a, b = parent[a], parent[b]  # roots: every entry of `parent` is one here
        open_ = a != b
        if not open_.any():
            return parent
        # a: the smaller roots, b: the larger ones
        a, b = np.minimum(a, b)[open_], np.maximum(a, b)[open_]
        np.minimum.at(parent, b, a)
        # shorten the chains among the roots that moved, then let everything follow once
        while True:
            next_root = parent[b]
            after_next = parent[next_root]
            if np.array_equal(after_next, next_root):
                break
            parent[b] = after_next
        parent = parent[parent]
