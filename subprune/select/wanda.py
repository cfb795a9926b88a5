"""Size of a unit's outgoing weights times that of what they read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from subprune.select.scores import by_unit
from subprune.select.selector import Ranking, Selector, View, order_by

__all__ = ["Wanda"]


@dataclass(frozen=True)
class Wanda(Selector):
    """Σ |weight|·‖input‖₂ over a unit's columns.

    Wanda's score of single weights (Sun et al. 2024, arXiv 2306.11695), summed over units as the
    structured variant Wanda-sp of the FLAP paper does (arXiv 2312.11983).
    """

    name: ClassVar[str] = "wanda"
    needs_runs: ClassVar[bool] = True
    runs_divide: ClassVar[bool] = True

    def rank(self, view: View) -> Ranking:
        """By falling score."""
        total = torch.zeros(view.n_units, dtype=torch.float64)
        for statistics, weight in view.blocks():
            norms = statistics.gram.diagonal().clamp_min(0).sqrt()  # [d]
            columns = norms * weight.abs().double().sum(1).to(norms.device)
            total += by_unit(columns, statistics.units, view.n_units).cpu()
        return Ranking(order_by(total))
