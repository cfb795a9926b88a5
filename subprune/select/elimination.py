"""Residual statistics while units are added one by one: the numerical heart of greedy selection.

Adding a unit is one block step of Cholesky on ``G`` and the same elimination on ``C``; how that is
done without reading large matrices at every step is in :mod:`subprune.select.blocks`.

All columns are scaled to unit energy first, which makes every tolerance relative to a column's own
original diagonal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from subprune.select.blocks import Block, make_block
from subprune.select.halves import whitening

if TYPE_CHECKING:
    from subprune.statistics.statistics import Statistics

__all__ = ["Elimination", "without_fixed"]


class Elimination:
    """The statistics of several consumers, given the units added so far."""

    def __init__(self, stats: Sequence[Statistics], n_units: int, tolerance: float | None) -> None:
        self.n_units = n_units
        self.energy = float(sum(s.energy for s in stats))
        self.blocks: list[Block] = []
        self.fixed_gain = 0.0  # what the columns without a unit, always kept, explain
        for s in stats:
            threshold = s.tolerance if tolerance is None else tolerance
            gram, cross, units, gain = without_fixed(s, threshold)
            self.fixed_gain += gain
            if len(units):
                self.blocks.append(make_block(gram, cross, units, n_units, threshold))

    def gains(self) -> Tensor:
        """F(i | S) for every unit i: [n_units] float64 on the CPU; about 0 for the units in S."""
        total = torch.zeros(self.n_units, dtype=torch.float64)
        for block in self.blocks:
            total[block.ids] += block.gains().cpu()
        return total

    def noise(self) -> Tensor | None:
        """By how much each of the gains may be wrong, where that is known: [n_units] float64."""
        total = None
        for block in self.blocks:
            noise = block.noise()
            if noise is not None:
                total = torch.zeros(self.n_units, dtype=torch.float64) if total is None else total
                total[block.ids] += noise.cpu()
        return total

    def exact_gain(self, unit: int) -> float:
        """F(unit | S) from the unit's own rows, free of the rounding in gains."""
        return sum(block.exact_gain(unit) for block in self.blocks)

    def add(self, unit: int) -> tuple[float, int]:
        """Add a unit to S; returns its gain and how many independent columns it brought."""
        results = [block.add(unit) for block in self.blocks]
        return sum(gain for gain, _ in results), sum(rank for _, rank in results)


def without_fixed(s: Statistics, tolerance: float) -> tuple[Tensor, Tensor, Tensor, float]:
    """Scale all columns to unit energy and eliminate those without a unit.

    Returns G [d', d'], C [d', m] and units [d'] of the remaining columns, and the energy that the
    eliminated ones explain.
    """
    diagonal = s.gram.diagonal()
    # Columns that are zero keep the scale 0: they stay zero and never gain anything.
    scale = torch.where(diagonal > 0, diagonal.clamp_min(0).rsqrt(), 0.0)
    free = (s.units >= 0).nonzero().flatten()
    fixed = (s.units < 0).nonzero().flatten()
    free_gram = (
        s.gram if len(free) == s.width else s.gram.index_select(0, free).index_select(1, free)
    )
    gram = (free_gram * scale[free]).mul_(scale[free, None])
    cross = s.cross[free] * scale[free, None]
    gain = 0.0
    if len(fixed):
        # One block step: with T whitening the fixed columns, L = TᵀG_fixed,free and Z = TᵀC_fixed,
        # and what remains is G − LᵀL and C − LᵀZ.
        root = whitening(s.gram[fixed][:, fixed], tolerance).matrix  # [f, rank]
        left = root.T @ (s.gram[fixed][:, free] * scale[free])  # [rank, d']
        right = root.T @ s.cross[fixed]  # [rank, m]
        gram.addmm_(left.T, left, alpha=-1)
        cross.addmm_(left.T, right, alpha=-1)
        gain = float(right.square().sum())
    return gram, cross, s.units[free], gain
