"""Statistics of few rows, made more like those that many rows would give.

With fewer rows than columns, a few columns explain all the others exactly: a layer behind a pooled
map, of which every input is one row, looks as if most of its inputs could go for nothing. Sample
correlations are larger than true ones, and are shrunk towards zero by the oracle approximating
shrinkage of Chen, Wiesel, Eldar and Hero (2010); what each column has of energy stays.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from subprune.statistics.statistics import Statistics

__all__ = ["shrunk"]

FEW = 4
"""Rows for each column, from which on statistics are left as they are."""

_RIDGE = 1e-4  # of a column's energy: weights of fewest energy, where many would do


def shrunk(stats: Statistics) -> Statistics:
    """The statistics with smaller correlations between columns, where rows are few.

    Y is taken to be B·W as before, W the smallest that explains it.
    """
    diagonal = stats.gram.diagonal()
    on = diagonal > 0
    if stats.rows >= FEW * stats.width or int(on.sum()) < 2:
        return stats
    share = _share(stats, on)
    ridged = stats.gram.clone()
    ridged.diagonal().add_(torch.where(on, _RIDGE * diagonal, 1.0))
    weight = torch.linalg.solve(ridged, stats.cross)  # [d, m]
    gram = (1 - share) * stats.gram
    gram.diagonal().copy_(diagonal)
    cross = (1 - share) * stats.cross + share * diagonal[:, None] * weight
    explained, before = (float((weight * c).sum()) for c in (cross, stats.cross))
    energy = max(0.0, stats.energy - before + explained)
    return replace(stats, gram=gram, cross=cross, energy=energy)


def _share(stats: Statistics, on: torch.Tensor) -> float:
    """By how much correlations of the columns that are on shrink, from 0 to 1."""
    d, n = int(on.sum()), stats.rows
    scale = torch.where(on, stats.gram.diagonal().clamp_min(1e-300).rsqrt(), 0.0)
    squares = float((stats.gram * scale * scale[:, None]).square().sum())  # d at least
    excess = (n + 1 - 2 / d) * (squares - d)
    return 1.0 if excess <= 0 else min(1.0, ((1 - 2 / d) * squares + d * d) / excess)
