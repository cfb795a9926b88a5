"""Down the convex hulls of the error curves, to the smallest sum of errors that a limit allows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from subprune.budget.goal import Counts, Limit, Rounding
    from subprune.budget.space import BudgetSpace
    from subprune.select.keep_order import KeepOrder
    from subprune.structure.cost import CostModel

__all__ = ["by_knapsack", "falling"]


def by_knapsack(
    space: BudgetSpace, curves: Mapping[str, KeepOrder], *, absolute: bool = False
) -> Counts:
    """The smallest sum of input changes that the target allows, relative to each layer's or not.

    Starts from the whole model and goes down the convex hulls of the error curves: always the step
    that adds least error for what it saves, with savings counted again, since they depend on the
    neighbours' widths.
    """
    errors = {g.name: falling(curves[g.name], absolute) for g in space.groups}
    hulls = {g.name: _hull(errors[g.name], space.rounding.of(g)) for g in space.groups}
    counts = {g.name: g.n_units for g in space.groups}
    space.check({name: hull[0][0] for name, hull in hulls.items()})
    at = {name: len(hull) - 1 for name, hull in hulls.items()}
    for limit in space.limit.each:  # what is met stays met: models only become smaller
        _descend(hulls, at, counts, space.cost, limit)
    return space.fill(counts, lambda g, k: float(errors[g.name][k]))


def _descend(
    hulls: Mapping[str, list[tuple[int, float]]],
    at: dict[str, int],
    counts: Counts,
    cost: CostModel,
    limit: Limit,
) -> None:
    """Go down the hulls until one limit is met; changes `counts`, and where each group is `at`."""
    size = limit.size(cost, counts)
    while size > limit.most:
        # Of every group, one step down its hull: error added for each parameter or FLOP saved.
        steps = []
        for name, i in at.items():
            if i > 0:
                (low, more), (_, less) = hulls[name][i - 1], hulls[name][i]
                smaller = limit.size(cost, {**counts, name: low})
                steps.append(((more - less) / max(1, size - smaller), name, low, smaller))
        _, name, counts[name], size = min(steps)
        at[name] -= 1


def falling(order: KeepOrder, absolute: bool = False) -> np.ndarray:
    """The error left by every number of units, never rising; absolute: not relative to ‖Y‖².

    Of an order that speaks for several groups, the sum of their errors.
    """
    if absolute and order.absolute is not None:
        return np.asarray(np.minimum.accumulate(order.absolute.numpy()))
    errors: np.ndarray = np.minimum.accumulate(order.errors.numpy())
    return errors * order.energy if absolute else errors * order.groups


def _hull(errors: np.ndarray, rounding: Rounding, points: int = 128) -> list[tuple[int, float]]:
    """Vertices (k, error) of the lower convex hull of a curve, from the smallest width to the full
    one.
    """
    n = len(errors) - 1
    step = max(1, n // points)
    allowed = sorted({rounding.up(k, n) for k in range(1, n + 1, step)} | {n})
    # Points come from the left; one that lies above the line past it is no corner of the hull.
    hull: list[tuple[int, float]] = []
    for k in allowed:
        hull.append((k, float(errors[k])))
        while len(hull) > 2 and _bends_up(hull[-3:]):
            hull.pop(-2)
    return hull


def _bends_up(three: list[tuple[int, float]]) -> bool:
    """Whether the middle point lies on or above the line through the others."""
    (k0, e0), (k1, e1), (k2, e2) = three
    return (e2 - e0) * (k1 - k0) <= (e1 - e0) * (k2 - k0)
