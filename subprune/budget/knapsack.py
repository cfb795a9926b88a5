"""The smallest sum of errors that the limit allows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from subprune.budget.demand import Allocator, Demand
from subprune.budget.hulls import by_knapsack
from subprune.loop.looks import curves

if TYPE_CHECKING:
    from subprune.budget.goal import Counts

__all__ = ["Knapsack"]


@dataclass(frozen=True)
class Knapsack(Allocator):
    """The smallest sum of all layers' reweighted input changes."""

    name: ClassVar[str] = "knapsack"
    looks_at: ClassVar[str] = "the error curves of the dense model"

    def counts(self, demand: Demand) -> Counts:
        orders = demand.outcome(curves)
        return by_knapsack(demand.space, orders)
