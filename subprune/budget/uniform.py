"""The same fraction of units everywhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from subprune.budget.demand import Allocator, Demand

if TYPE_CHECKING:
    from subprune.budget.goal import Counts
    from subprune.budget.space import BudgetSpace

__all__ = ["Uniform", "equal_fractions"]


@dataclass(frozen=True)
class Uniform(Allocator):
    """The same fraction of units in every layer."""

    name: ClassVar[str] = "uniform"

    def counts(self, demand: Demand) -> Counts:
        return equal_fractions(demand.space)


def equal_fractions(space: BudgetSpace) -> Counts:
    """The largest common fraction that meets the goal; then single units, narrowest group first."""

    def at(level: float) -> Counts:
        return {g.name: space.down(g, level * g.n_units) for g in space.groups}

    counts = space.largest(space.fractions, at)
    return space.fill(counts, lambda g, k: -k / g.n_units)
