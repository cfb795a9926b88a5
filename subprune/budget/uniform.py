"""The same fraction of units everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from subprune.budget.demand import Allocator, Demand
from subprune.budget.goal import Counts, Limit, Rounding, fill, largest

if TYPE_CHECKING:
    from subprune.structure.cost import CostModel
    from subprune.structure.groups import Group

__all__ = ["Uniform", "equal_fractions"]


@dataclass(frozen=True)
class Uniform(Allocator):
    """The same fraction of units in every layer."""

    name: ClassVar[str] = "uniform"

    def counts(self, demand: Demand) -> Counts:
        return equal_fractions(demand.groups, demand.cost, demand.limit, demand.rounding)


def equal_fractions(
    groups: Sequence[Group], cost: CostModel, limit: Limit, rounding: Rounding
) -> Counts:
    """The largest common fraction that meets the goal; then single units, narrowest group first."""
    levels = sorted({0.0} | {k / g.n_units for g in groups for k in range(1, g.n_units + 1)})

    def at(level: float) -> Counts:
        return {g.name: rounding.of(g).down(level * g.n_units, g.n_units) for g in groups}

    counts = largest(levels, at, cost, limit)
    return fill(counts, groups, cost, limit, rounding, lambda g, k: -k / g.n_units)
