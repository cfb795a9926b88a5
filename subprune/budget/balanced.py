"""Budgets between two extremes; see :mod:`subprune.budget.mean`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from subprune.budget.demand import Allocator, Demand
from subprune.budget.mean import CLIP, by_balance
from subprune.loop.looks import curves

if TYPE_CHECKING:
    from subprune.budget.goal import Counts

__all__ = ["Balanced"]


@dataclass(frozen=True)
class Balanced(Allocator):
    """Between knapsack and uniform: their geometric mean, no layer far below its even share."""

    name: ClassVar[str] = "balanced"
    looks_at: ClassVar[str] = "the error curves of the dense model"

    def counts(self, demand: Demand) -> Counts:
        orders = demand.outcome(curves, clip=CLIP)
        return by_balance(demand.space, orders)
