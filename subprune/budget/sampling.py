"""The budget rule of sensitivity sampling (Liebenwein et al. 2020): one error for all layers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from subprune.budget.demand import Allocator, Demand
from subprune.loop.tour import Tour
from subprune.select.sensitivity import DELTA, Sensitivity, distinct, sensitivity
from subprune.structure.groups import in_order

if TYPE_CHECKING:
    from subprune.budget.goal import Counts
    from subprune.budget.space import BudgetSpace
    from subprune.loop.visits import Tick
    from subprune.select.selector import Setting
    from subprune.structure.groups import Group

__all__ = ["SampleSize", "by_sampling", "sensitivities"]

_RANGE = (-9.0, 9.0)  # of log10 of the error
_STEPS = 60


@dataclass(frozen=True)
class SampleSize(Allocator):
    """The expected number of different units in a sample of sensitivity sampling."""

    name: ClassVar[str] = "sampling"
    looks_at: ClassVar[str] = "sensitivities"

    delta: float = DELTA  # allowed probability of failure

    def counts(self, demand: Demand) -> Counts:
        measured = demand.remember(
            "sensitivities", lambda: sensitivities(demand.setting, tick=demand.tick)
        )
        return by_sampling(demand.space, measured, self.delta)


def sensitivities(setting: Setting, *, tick: Tick = lambda group: None) -> dict[str, Sensitivity]:
    """Sensitivities of all units."""
    tour = Tour(setting, setting.groups, pruned=False)
    known = {}
    for group in in_order(setting.groups):
        tick(group)
        known[group.name] = sensitivity(setting.calibration, group, tour.go_to(group).dense)
    return known


def by_sampling(
    space: BudgetSpace, sensitivities: Mapping[str, Sensitivity], delta: float = DELTA
) -> Counts:
    """As many units as the samples for one common error are expected to hit; the least error that
    fits.
    """

    def expected(group: Group, level: float) -> float:
        sensitivity = sensitivities[group.name]
        return distinct(sensitivity.probabilities, sensitivity.draws(10**level, delta))

    def at(level: float) -> Counts:
        return {g.name: space.down(g, math.ceil(expected(g, level) - 1e-9)) for g in space.groups}

    low, high = _RANGE  # the largest model and the smallest
    space.check(at(high))
    if space.fits(at(low)):
        high = low
    for _ in range(_STEPS):  # the least error, by halving, whose sample sizes meet the goal
        middle = (low + high) / 2
        low, high = (low, middle) if space.fits(at(middle)) else (middle, high)
    return space.fill(at(high), lambda g, k: (expected(g, low) - k) / g.n_units)
