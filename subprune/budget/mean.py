"""Budgets between two extremes: the smallest sum of errors, and the same fraction everywhere.

Error curves are relative to what a layer receives. Where a few tokens carry most of that energy (a
language model's massive activations), a handful of units explains nearly all of it, and the
smallest sum of errors strips the layer of everything else it does. Hence three precautions. The
curves are those of typical rows: none counts with more than a few times the median energy. Widths
are the geometric mean of those with the smallest sum of errors and of equal fractions: on ResNet56
better than either. And no group falls far below its even share, which is rounded up, so that groups
of few large units (three heads) are not the first to lose one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from subprune.budget.hulls import by_knapsack, falling
from subprune.measure.answers import read_program
from subprune.statistics.metric import draws_answers

if TYPE_CHECKING:
    from subprune.budget.demand import Demand
    from subprune.budget.goal import Counts
    from subprune.budget.space import BudgetSpace
    from subprune.select.keep_order import KeepOrder
    from subprune.structure.groups import Group

__all__ = ["CLIP", "LEAST_SHARE", "Shape", "by_balance", "even_share", "usual_shape"]

LEAST_SHARE = 0.5
"""No group keeps fewer units than this share of what equal fractions would leave it …"""

FEW, LEAST_OF_FEW = 8, 0.7
"""… and one of fewer units than `FEW`, where a single unit is a large share, no fewer than this."""

_LEVELS = np.geomspace(1e-3, 1e3, 2001).tolist()  # factors on the mean, 0.7% apart

CLIP = 10.0  # times the median energy that a row of data counts with at most


@dataclass(frozen=True)
class Shape:
    """How budgets lie between the extremes, and how they lean."""

    # Between equal fractions (0) and the smallest sum of errors (1): the geometric mean.
    mix: float = 0.5
    # Errors relative to what each layer gives (0), or absolute ones (1); between: the mean again.
    absolute: float = 0.0
    # Widths grow along the network, by exp(±tilt) at its ends: above 0 in favour of later groups.
    tilt: float = 0.0


_EVEN = Shape()


def usual_shape(demand: Demand) -> Shape:
    """How budgets by what the output feels lie, unless somebody has decided.

    Of a language model, that is what KL divergence grows by, and the smallest sum decides alone.
    """
    calibration = demand.calibration
    reading = read_program(calibration.programs[0], calibration.batches[0])
    informed = draws_answers(reading) and bool(demand.setting.metric)
    return Shape(absolute=1.0, mix=1.0) if informed else Shape(absolute=0.5)


def by_balance(space: BudgetSpace, curves: Mapping[str, KeepOrder], shape: Shape = _EVEN) -> Counts:
    """Widths of a shape between the knapsack's and equal fractions, scaled to the goal."""
    even = even_share(space)
    means = _means(space, curves, shape, even)

    # Widths are `factor` times the means, none below its least share of the even ones; the largest
    # factor that meets the goal is taken.
    def width(group: Group, factor: float) -> int:
        share = LEAST_OF_FEW if group.n_units < FEW else LEAST_SHARE
        least = min(even[group.name], space.up(group, math.ceil(share * even[group.name])))
        return max(least, space.down(group, round(factor * means[group.name])))

    def at(factor: float) -> Counts:
        return {g.name: width(g, factor) for g in space.groups}

    errors = {g.name: falling(curves[g.name], shape.absolute >= 0.5) for g in space.groups}
    counts = space.largest(_LEVELS, at)
    return space.fill(counts, lambda g, k: float(errors[g.name][k]))


def _means(
    space: BudgetSpace, curves: Mapping[str, KeepOrder], shape: Shape, even: Counts
) -> dict[str, float]:
    """The widths of a shape before they are scaled."""
    # The logarithm of a weighted geometric mean is the weighted mean of logarithms: first of the
    # knapsacks by relative and by absolute errors, then of that and equal fractions.
    kinds = {False: 1 - shape.absolute, True: shape.absolute}
    cheapest = {
        absolute: by_knapsack(space, curves, absolute=absolute)
        for absolute, weight in kinds.items()
        if weight > 0
    }
    last = max(1, len(space.groups) - 1)
    means = {}
    for i, group in enumerate(space.groups):
        logs = sum(kinds[a] * math.log(counts[group.name]) for a, counts in cheapest.items())
        mean = (1 - shape.mix) * math.log(even[group.name]) + shape.mix * logs
        means[group.name] = math.exp(mean + shape.tilt * (2 * i / last - 1))
    return means


def even_share(space: BudgetSpace) -> Counts:
    """The largest common fraction that meets the goal, in every group rounded up."""

    def at(level: float) -> Counts:
        return {g.name: space.up(g, math.ceil(level * g.n_units - 1e-9)) for g in space.groups}

    return space.largest(space.fractions, at)
