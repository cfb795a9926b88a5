"""The budget rule of sensitivity sampling (Liebenwein et al. 2020): one error for all layers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from subprune.budget.target import Counts, Rounding, Target, fill
from subprune.select.sensitivity import DELTA, Sensitivity, distinct
from subprune.structure import Group
from subprune.structure.cost import CostModel

__all__ = ["by_sampling"]

_RANGE = (-9.0, 9.0)  # of log10 of the error
_STEPS = 60


def by_sampling(
    groups: Sequence[Group],
    sensitivities: Mapping[str, Sensitivity],
    cost: CostModel,
    target: Target,
    rounding: Rounding,
    delta: float = DELTA,
) -> Counts:
    """As many units as the samples for one common error are expected to hit; the least error that
    fits.
    """

    def expected(group: Group, level: float) -> float:
        own = sensitivities[group.name]
        return distinct(own.probabilities, own.draws(10**level, delta))

    def at(level: float) -> Counts:
        return {
            g.name: rounding.of(g).down(math.ceil(expected(g, level) - 1e-9), g.n_units)
            for g in groups
        }

    low, high = _RANGE  # the largest model and the smallest
    target.check(cost, at(high))
    if target.fits(cost, at(low)):
        high = low
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if target.fits(cost, at(middle)) else (middle, high)
    return fill(
        at(high), groups, cost, target, rounding, lambda g, k: (expected(g, low) - k) / g.n_units
    )
