"""Connected components of many ties at once, as array operations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["Ids", "components"]

Ids = NDArray[np.int64]


def components(n: int, pairs: Sequence[tuple[Ids, Ids]], known: Ids | None = None) -> Ids:
    """Smallest member of the connected component of each of ``0 … n-1``.

    `known` is an earlier result for some of the pairs; then just the new ones are needed.
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
        a, b = np.minimum(a, b)[open_], np.maximum(a, b)[open_]
        np.minimum.at(parent, b, a)
        # shorten the chains among the roots that moved, then let everything follow once
        while True:
            target = parent[b]
            further = parent[target]
            if np.array_equal(further, target):
                break
            parent[b] = further
        parent = parent[parent]
