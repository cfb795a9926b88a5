"""Budgets by what the model's output feels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from subprune.budget.demand import Allocator, Demand
from subprune.budget.mean import CLIP, by_balance, usual_shape
from subprune.errors import OptionError
from subprune.keywords import must_be
from subprune.loop.looks import curves

if TYPE_CHECKING:
    from subprune.budget.goal import Counts

__all__ = ["Felt"]


@dataclass(frozen=True)
class Felt(Allocator):
    """As balanced, with felt errors (as much as the model's output feels them) and relative ones.

    Felt errors alone take too many heads from an encoder, relative ones alone ruin a small vision
    transformer at a quarter of its size; half of each was near the better of the two on both, and
    on ResNet56. Of a language model, what is felt is what KL divergence grows by: its smallest sum
    decides alone, and neither relative errors nor equal fractions have a say.
    """

    name: ClassVar[str] = "output"
    looks_at: ClassVar[str] = "the error curves of the dense model, and gradients of its output"
    needs_metric: ClassVar[bool] = True
    # None: as is usual for such a model.
    share: float | None = None  # of felt errors; the rest are relative to what a layer gives
    mix: float | None = None  # from equal fractions (0) to the smallest sum of errors (1)

    def __post_init__(self) -> None:
        for name, value in (("share", self.share), ("mix", self.mix)):
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if value is not None and not (number and 0 <= value <= 1):
                raise OptionError(must_be(name, "None, or a number from 0 to 1", value))

    def counts(self, demand: Demand) -> Counts:
        orders = demand.outcome(curves, clip=CLIP, landed=True)
        shape = usual_shape(demand)
        shape = shape if self.share is None else replace(shape, absolute=self.share)
        shape = shape if self.mix is None else replace(shape, mix=self.mix)
        return by_balance(demand.space, orders, shape)
