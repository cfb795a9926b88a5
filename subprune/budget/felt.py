"""Budgets by what the model's output feels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from subprune.budget.demand import Allocator, Demand
from subprune.budget.mean import CLIP, Shape, by_balance
from subprune.errors import OptionError
from subprune.keywords import must_be
from subprune.loop.looks import curves

if TYPE_CHECKING:
    from subprune.budget.goal import Counts

__all__ = ["Felt"]


@dataclass(frozen=True)
class Felt(Allocator):
    """As balanced, with errors as much as the model's output feels them, and relative ones alike.

    Felt errors alone take too many heads from an encoder, relative ones alone ruin a small vision
    transformer at a quarter of its size; half of each was near the better of the two on both, and
    on ResNet56.
    """

    name: ClassVar[str] = "output"
    looks_at: ClassVar[str] = "the error curves of the dense model, and gradients of its output"
    needs_metric: ClassVar[bool] = True
    share: float = 0.5  # of felt errors, beside errors relative to what a layer gives

    def __post_init__(self) -> None:
        number = isinstance(self.share, int | float) and not isinstance(self.share, bool)
        if not number or not 0 <= self.share <= 1:
            raise OptionError(must_be("share", "a number from 0 to 1", self.share))

    def counts(self, demand: Demand) -> Counts:
        orders = demand.outcome(curves, clip=CLIP, landed=True)
        shape = Shape(absolute=self.share)
        return by_balance(demand.groups, orders, demand.cost, demand.limit, demand.rounding, shape)
