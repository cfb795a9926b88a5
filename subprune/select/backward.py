"""Backward elimination on the reweighted input change: all units, less the one missed least.

With ``P = G⁻¹`` and ``X = P·C``, the least-squares solution on all columns, removing the columns J
of a unit costs ``tr(X_Jᵀ P_JJ⁻¹ X_J)``, and leaves ``P − P_:J P_JJ⁻¹ P_J:`` and
``X − P_:J P_JJ⁻¹ X_J``. Greedy builds up from nothing; this starts from what the layer has now, so
that units which only matter together are not overlooked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from subprune.select.greedy import TIE, follow
from subprune.select.selector import Ranking, Selector, View

if TYPE_CHECKING:
    from subprune.statistics.statistics import Statistics

__all__ = ["Backward", "backward_order", "damped_inverse"]


@dataclass(frozen=True)
class Backward(Selector):
    """Each time the unit goes whose removal costs least, all others refitted."""

    name: ClassVar[str] = "backward"

    def rank(self, view: View) -> Ranking:
        """The units that go last come first, with their error curve."""
        order = backward_order(view.statistics, view.n_units)
        return Ranking(order, curve=follow(view.statistics, view.n_units, order))


def backward_order(stats: Sequence[Statistics], n_units: int) -> tuple[int, ...]:
    """The units, the one removed last first; of equal costs the highest unit goes first."""
    solutions = [_Solution(s, n_units) for s in stats]
    remaining = torch.ones(n_units, dtype=torch.bool)
    removed: list[int] = []
    while len(removed) < n_units:
        costs = sum((s.costs() for s in solutions), torch.zeros(n_units, dtype=torch.float64))
        costs[~remaining] = torch.inf
        least = float(costs.min())
        unit = int((costs <= least + TIE * abs(least)).nonzero()[-1])
        for solution in solutions:
            solution.remove(unit)
        remaining[unit] = False
        removed.append(unit)
    return tuple(reversed(removed))


class _Solution:
    """P [d, d] and X [d, m] of one consumer, as units go."""

    def __init__(self, stats: Statistics, n_units: int) -> None:
        self.inverse = damped_inverse(stats)
        self.weight = self.inverse @ stats.cross
        self.n_units = n_units
        columns = [(stats.units == u).nonzero().flatten() for u in range(n_units)]
        # Units with equally many columns are looked at together.
        self.widths: dict[int, tuple[Tensor, Tensor]] = {}
        for width in sorted({len(c) for c in columns} - {0}):
            units = torch.tensor([u for u, c in enumerate(columns) if len(c) == width])
            stacked = torch.stack([c for c in columns if len(c) == width])  # [units, width]
            self.widths[width] = units, stacked
        self.columns = columns
        self.here = torch.tensor([len(c) > 0 for c in columns])

    def costs(self) -> Tensor:
        """What removing each unit adds to the error: [n_units]; 0 for units that are gone."""
        costs = torch.zeros(self.n_units, dtype=torch.float64)
        for units, columns in self.widths.values():
            alive = self.here[units]
            present = columns[alive]  # [q, width]
            blocks = self.inverse[present[:, :, None], present[:, None, :]]  # [q, width, width]
            weights = self.weight[present]  # [q, width, m]
            solved = torch.linalg.solve(blocks, weights)
            costs[units[alive]] = (weights * solved).sum((1, 2)).cpu()
        return costs

    def remove(self, unit: int) -> None:
        """Refit the other columns without the unit's."""
        columns = self.columns[unit]
        if not len(columns):
            return
        block = self.inverse[columns][:, columns]
        tall = self.inverse[:, columns].clone()  # [d, width]
        step = torch.linalg.solve(block, tall.T)  # P_JJ⁻¹ P_J:, [width, d]
        self.weight -= step.T @ self.weight[columns]
        self.inverse -= tall @ step
        self.here[unit] = False


def damped_inverse(stats: Statistics) -> Tensor:
    """P [d, d], with as much on the diagonal as the rounding of the products.

    Columns that depend on each other stay solvable. Those less their means are rounded as coarsely
    as they were before, which can be more than their own size tells: then it takes more.
    """
    gram = stats.gram.clone()
    total = added = stats.tolerance * float(gram.diagonal().mean()) or 1.0
    while True:
        gram.diagonal().add_(added)
        lower, info = torch.linalg.cholesky_ex(gram)
        if not int(info):
            return torch.cholesky_inverse(lower)
        added = 9 * total
        total += added
