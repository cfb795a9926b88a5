"""What units that go would have given together, weights as they are: the criterion of ThiNet.

The columns of removed units T give ``B_T·W_T``; its energy is the sum over pairs of removed units
of ``K[u, v] = tr(W_uᵀ G_uv W_v)``, so that one matrix of units by units serves every step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from subprune.select.greedy import TIE
from subprune.select.scores import by_unit
from subprune.select.selector import Ranking, Selector, View

__all__ = ["Contribution"]


@dataclass(frozen=True)
class Contribution(Selector):
    """Each time the unit goes with which all that are gone give least (Luo et al. 2017, arXiv
    1707.06342).
    """

    name: ClassVar[str] = "contribution"
    needs_runs: ClassVar[bool] = True
    runs_divide: ClassVar[bool] = True

    def rank(self, view: View) -> Ranking:
        """The units that go last come first."""
        return Ranking(_order(_shared_energy(view)))


def _shared_energy(view: View) -> Tensor:
    """K [n_units, n_units], summed over the layers that read the units."""
    total = torch.zeros(view.n_units, view.n_units, dtype=torch.float64)
    for statistics, weight in view.blocks():
        w = weight.double().to(statistics.gram.device)
        pairs = statistics.gram * (w @ w.T)  # [d, d]
        rows = by_unit(pairs, statistics.units, view.n_units)  # [d, n_units]
        total += by_unit(rows.T, statistics.units, view.n_units).cpu()
    return total


def _order(energy: Tensor) -> tuple[int, ...]:
    """Of equal costs the highest unit goes first."""
    costs = energy.diagonal().clone()
    removed: list[int] = []
    while len(removed) < len(costs):
        least = float(costs.min())
        unit = int((costs <= least + TIE * abs(least)).nonzero()[-1])
        costs += 2 * energy[unit]
        costs[unit] = torch.inf
        removed.append(unit)
    return tuple(reversed(removed))
