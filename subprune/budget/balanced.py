"""Budgets between two extremes: the smallest sum of errors, and the same fraction everywhere.

Error curves are relative to what a layer receives. Where a few directions carry most of that energy (a language
model's massive activations), a handful of units explains nearly all of it, and the smallest sum of errors strips
the layer of everything else it does. Equal fractions never do this, but ignore what the curves know. The geometric
mean of both was the best of the three on ResNet56, and no group falls far below its even share.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from subprune.budget.rules import by_knapsack, equal_fractions
from subprune.budget.target import Counts, Rounding, Target, fill, largest
from subprune.greedy import KeepOrder
from subprune.structure import Group
from subprune.structure.cost import CostModel

__all__ = ["LEAST_SHARE", "by_balance"]

LEAST_SHARE = 0.5
"""No group keeps fewer units than this share of what equal fractions would leave it."""

_LEVELS = np.geomspace(1e-3, 1e3, 2001).tolist()  # factors on the mean, 0.7% apart


def by_balance(
    groups: Sequence[Group],
    curves: Mapping[str, KeepOrder],
    cost: CostModel,
    target: Target,
    rounding: Rounding,
) -> Counts:
    """The geometric mean of the knapsack's widths and of equal fractions, scaled to the target."""
    even = equal_fractions(groups, cost, target, rounding)
    cheapest = by_knapsack(groups, curves, cost, target, rounding)
    means = {g.name: math.sqrt(even[g.name] * cheapest[g.name]) for g in groups}

    def at(level: float) -> Counts:
        return {g.name: _width(g, level * means[g.name]) for g in groups}

    def _width(group: Group, wanted: float) -> int:
        own = rounding.of(group)
        least = own.down(LEAST_SHARE * even[group.name], group.n_units)
        return max(least, own.down(round(wanted), group.n_units))

    errors = {g.name: np.minimum.accumulate(curves[g.name].errors.numpy()) for g in groups}
    counts = largest(_LEVELS, at, cost, target)
    return fill(counts, groups, cost, target, rounding, lambda g, k: float(errors[g.name][k]))
