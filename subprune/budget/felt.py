"""Budgets by what the model's output feels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from subprune.budget.demand import Allocator, Demand
from subprune.budget.mean import CLIP, Shape, by_balance
from subprune.loop.looks import curves

if TYPE_CHECKING:
    from subprune.budget.goal import Counts

__all__ = ["Felt"]


@dataclass(frozen=True)
class Felt(Allocator):
    """As balanced, with errors weighted by how much the model's output feels them."""

    name: ClassVar[str] = "output"
    looks_at: ClassVar[str] = "the error curves of the dense model, and gradients of its output"
    needs_metric: ClassVar[bool] = True

    def counts(self, demand: Demand) -> Counts:
        orders = demand.outcome(curves, clip=CLIP, landed=True)
        shape = Shape(absolute=1.0)
        return by_balance(demand.groups, orders, demand.cost, demand.limit, demand.rounding, shape)
