"""Budget rules that need no data beyond the error curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from subprune.budget.target import Counts, Rounding, Target, fill, largest
from subprune.errors import BudgetError, closest
from subprune.messages import Message
from subprune.select.greedy import KeepOrder
from subprune.structure import Group
from subprune.structure.cost import CostModel

__all__ = ["by_error", "equal_fractions", "explicit", "fraction", "missed"]


def explicit(
    groups: Sequence[Group], budgets: Mapping[str, int], rounding: Rounding | None = None
) -> Counts:
    """Checked ``{group: k}``; groups that are not named stay whole."""
    known = {g.name: g for g in groups}
    for name, k in budgets.items():
        if name not in known:
            raise BudgetError(
                Message(
                    "{budgets=} names {group!r}, which is not prunable: {hint}allowed are {allowed}",
                    group=name,
                    hint=closest(name, known),
                    allowed=", ".join(known),
                )
            )
        least, most = known[name].least, known[name].n_units
        if isinstance(k, bool) or not isinstance(k, int) or not least <= k <= most:
            raise BudgetError(
                Message(
                    "{budgets:item} must be an integer from {least} to {most}, the number of units, "
                    "got {got!r}",
                    budgets=name,
                    least=least,
                    most=most,
                    got=k,
                )
            )
        multiple = 1 if rounding is None else rounding.of(known[name]).to
        if k % multiple and k != known[name].n_units:
            raise BudgetError(
                Message(
                    "{budgets:item} must be a multiple of {multiple}, the model's own code takes no "
                    "other widths there; got {got}, the nearest is {nearest}",
                    budgets=name,
                    multiple=multiple,
                    got=k,
                    nearest=max(multiple, round(k / multiple) * multiple),
                )
            )
    return dict(budgets)


def fraction(groups: Sequence[Group], keep: float, rounding: Rounding) -> Counts:
    """The same fraction of units in every group, rounded down, at least one."""
    check_fraction(keep, groups, rounding)
    return {g.name: rounding.of(g).down(keep * g.n_units, g.n_units) for g in groups}


def check_fraction(keep: float, groups: Sequence[Group], rounding: Rounding) -> None:
    """Refuse what is no fraction, and one that rounding leaves without any effect."""
    if isinstance(keep, bool) or not isinstance(keep, int | float) or not 0 < keep <= 1:
        why = "{keep:name} must be a fraction above 0 and at most 1, got {got!r}"
        raise BudgetError(Message(why, got=keep))
    widest = max((g.n_units for g in groups), default=0)
    if keep < 1 and widest > 1 and all(g.n_units <= rounding.of(g).to for g in groups):
        multiple = max(rounding.of(g).to for g in groups)
        own = (
            f", and the model's own code runs with multiples of {multiple}"
            if multiple > rounding.to
            else ""
        )
        raise BudgetError(
            Message(
                "{keep=} cannot be reached with {round_to=}{own}: the widest group has {widest} "
                "units, so all would stay whole; give a {round_to:name} below {widest}",
                keep=keep,
                round_to=rounding.to,
                own=own,
                widest=widest,
            )
        )


def missed(
    keep: float, units: Mapping[str, int], counts: Mapping[str, int], together: bool = False
) -> str:
    """In words, where more than the fraction stays (of all units `together`: a global ranking);
    empty if nowhere.
    """
    if together:
        units, counts = {"all groups": sum(units.values())}, {"all groups": sum(counts.values())}
    over = [
        f"{k} of {units[n]} units in {n}" for n, k in counts.items() if k > keep * units[n] + 1e-9
    ]
    if not over:
        return ""
    more = f" and {len(over) - 5} more" if len(over) > 5 else ""
    return Message(
        "target missed: {keep=}, but no group goes below one unit, or {round_to:name} of them; it "
        "kept {over}{more}",
        keep=keep,
        over=", ".join(over[:5]),
        more=more,
    )


def equal_fractions(
    groups: Sequence[Group], cost: CostModel, target: Target, rounding: Rounding
) -> Counts:
    """The largest common fraction that meets the target; then single units, narrowest group first."""
    levels = sorted({0.0} | {k / g.n_units for g in groups for k in range(1, g.n_units + 1)})

    def at(level: float) -> Counts:
        return {g.name: rounding.of(g).down(level * g.n_units, g.n_units) for g in groups}

    counts = largest(levels, at, cost, target)
    return fill(counts, groups, cost, target, rounding, lambda g, k: -k / g.n_units)


def by_error(
    groups: Sequence[Group],
    curves: Mapping[str, KeepOrder],
    cost: CostModel,
    target: Target,
    rounding: Rounding,
) -> Counts:
    """One threshold on the relative input change for all groups, as small as the target allows."""
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

    counts = largest([float("inf"), *levels.tolist()], at, cost, target)
    return fill(counts, groups, cost, target, rounding, lambda g, k: float(errors[g.name][k]))


def by_knapsack(
    groups: Sequence[Group],
    curves: Mapping[str, KeepOrder],
    cost: CostModel,
    target: Target,
    rounding: Rounding,
) -> Counts:
    """The smallest sum of relative input changes that the target allows.

    Starts from the whole model and goes down the convex hulls of the error curves: always the step
    that adds least error for what it saves, with savings counted anew, since they depend on the
    neighbours' widths.
    """
    errors = {g.name: np.minimum.accumulate(curves[g.name].errors.numpy()) for g in groups}
    hulls = {g.name: _hull(errors[g.name], rounding.of(g)) for g in groups}
    counts = {g.name: g.n_units for g in groups}
    target.check(cost, {g.name: hulls[g.name][0][0] for g in groups})
    at = {name: len(hull) - 1 for name, hull in hulls.items()}
    size = target.size(cost, counts)
    while size > target.limit:
        steps = []
        for name, i in at.items():
            if i > 0:
                (low, more), (_, less) = hulls[name][i - 1], hulls[name][i]
                smaller = target.size(cost, {**counts, name: low})
                steps.append(((more - less) / max(1, size - smaller), name, low, smaller))
        _, name, counts[name], size = min(steps)
        at[name] -= 1
    return fill(counts, groups, cost, target, rounding, lambda g, k: float(errors[g.name][k]))


def _hull(errors: np.ndarray, rounding: Rounding, points: int = 128) -> list[tuple[int, float]]:
    """Vertices (k, error) of the lower convex hull of a curve, from the smallest width to the full
    one.
    """
    n = len(errors) - 1
    step = max(1, n // points)
    allowed = sorted({rounding.up(k, n) for k in range(1, n + 1, step)} | {n})
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
