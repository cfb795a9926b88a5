"""One threshold on the error for all layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from subprune.budget.demand import Allocator, Demand
from subprune.budget.goal import Counts, Limit, Rounding, fill, largest
from subprune.loop.looks import curves

if TYPE_CHECKING:
    from subprune.select.keep_order import KeepOrder
    from subprune.structure.cost import CostModel
    from subprune.structure.groups import Group

__all__ = ["Error", "by_error"]


@dataclass(frozen=True)
class Error(Allocator):
    """The same reweighted input change in every layer."""

    name: ClassVar[str] = "error"
    looks_at: ClassVar[str] = "the error curves of the dense model"

    def counts(self, demand: Demand) -> Counts:
        orders = demand.outcome(curves)
        return by_error(demand.groups, orders, demand.cost, demand.limit, demand.rounding)


def by_error(
    groups: Sequence[Group],
    curves: Mapping[str, KeepOrder],
    cost: CostModel,
    limit: Limit,
    rounding: Rounding,
) -> Counts:
    """One threshold on the relative input change for all groups, as small as the goal allows."""
    errors = {g.name: np.minimum.accumulate(curves[g.name].errors.numpy()) for g in groups}
    levels = np.unique(np.concatenate(list(errors.values())))[::-1]

    def at(level: float) -> Counts:
        counts = {}
        for g in groups:
            curve = errors[g.name]
            enough = np.flatnonzero(curve <= level)
            counts[g.name] = rounding.of(g).up(
                int(enough[0]) if enough.size else g.n_units, g.n_units
            )
        return counts

    counts = largest([float("inf"), *levels.tolist()], at, cost, limit)
    return fill(counts, groups, cost, limit, rounding, lambda g, k: float(errors[g.name][k]))
