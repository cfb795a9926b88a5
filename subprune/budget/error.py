"""One threshold on the error for all layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from subprune.budget.demand import Allocator, Demand
from subprune.loop.looks import curves

if TYPE_CHECKING:
    from subprune.budget.goal import Counts
    from subprune.budget.space import BudgetSpace
    from subprune.select.keep_order import KeepOrder

__all__ = ["Error", "by_error"]


@dataclass(frozen=True)
class Error(Allocator):
    """The same reweighted input change in every layer."""

    name: ClassVar[str] = "error"
    looks_at: ClassVar[str] = "the error curves of the dense model"

    def counts(self, demand: Demand) -> Counts:
        orders = demand.outcome(curves)
        return by_error(demand.space, orders)


def by_error(space: BudgetSpace, curves: Mapping[str, KeepOrder]) -> Counts:
    """One threshold on the relative input change for all groups, as small as the goal allows."""
    errors = {g.name: np.minimum.accumulate(curves[g.name].errors.numpy()) for g in space.groups}
    levels = np.unique(np.concatenate(list(errors.values())))[::-1]

    def at(level: float) -> Counts:
        counts = {}
        for g in space.groups:
            enough = np.flatnonzero(errors[g.name] <= level)
            counts[g.name] = space.up(g, int(enough[0]) if enough.size else g.n_units)
        return counts

    counts = space.largest([float("inf"), *levels.tolist()], at)
    return space.fill(counts, lambda g, k: float(errors[g.name][k]))
