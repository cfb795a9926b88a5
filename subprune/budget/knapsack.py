"""The smallest sum of errors that the limit allows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from subprune.budget.demand import Allocator, Demand
from subprune.budget.goal import Counts
from subprune.budget.hulls import by_knapsack

__all__ = ["Knapsack"]


@dataclass(frozen=True)
class Knapsack(Allocator):
    """The smallest sum of all layers' reweighted input changes."""

    name: ClassVar[str] = "knapsack"
    looks_at: ClassVar[str] = "the error curves of the dense model"

    def counts(self, demand: Demand) -> Counts:
        curves = demand.curves()
        return by_knapsack(demand.groups, curves, demand.cost, demand.limit, demand.rounding)
