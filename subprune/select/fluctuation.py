"""How much what is read of a unit moves around its mean: the rest, a constant can give."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from subprune.select.scores import by_unit
from subprune.select.selector import Ranking, Selector, View, order_by

if TYPE_CHECKING:
    from subprune.statistics.statistics import Statistics

__all__ = ["Fluctuation"]

_ALIKE = 1e-9  # columns whose deviation is less than this share of the largest differ by rounding


@dataclass(frozen=True)
class Fluctuation(Selector):
    """Variance of a unit's columns times the squared norm of the weights that read them.

    The metric of FLAP (An et al. 2024, arXiv 2312.11983), with mean 0 and deviation 1 over the
    columns of a group, so that units of all groups can be compared; of several columns, the mean.
    """

    name: ClassVar[str] = "fluctuation"
    needs_runs: ClassVar[bool] = True
    runs_divide: ClassVar[bool] = True

    @property
    def comparable(self) -> bool:
        return True

    def rank(self, view: View) -> Ranking:
        """By falling score."""
        columns: list[Tensor] = []
        units: list[Tensor] = []
        for statistics, weight in view.blocks():
            mine = statistics.units.cpu() >= 0
            energy = weight.double().square().sum(1).cpu()  # [d]
            columns.append((_variances(statistics).cpu() * energy)[mine])
            units.append(statistics.units.cpu()[mine])
        every, owners = torch.cat(columns), torch.cat(units)
        counts = by_unit(torch.ones_like(every), owners, view.n_units)
        means = by_unit(every, owners, view.n_units) / counts.clamp(min=1)
        return Ranking(order_by(means), _standardised(means, every))


def _variances(statistics: Statistics) -> Tensor:
    """Of every column: [d]; of one that is constant but for rounding, zero."""
    energy = statistics.gram.diagonal()
    around = energy - statistics.sums.square() / statistics.rows
    flat = around <= statistics.tolerance * energy
    return torch.where(flat, 0.0, around) / statistics.rows


def _standardised(means: Tensor, columns: Tensor) -> Tensor:
    """Less the mean of all columns, over their standard deviation; zero where all are alike."""
    deviation = float(columns.std(correction=0)) if len(columns) else 0.0
    if deviation <= _ALIKE * float(columns.abs().max() if len(columns) else 0.0):
        return torch.zeros_like(means)
    return (means - columns.mean()) / deviation
