"""One ranking of all units of all groups, and a cut through it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from subprune.budget.demand import Allocator, Demand
from subprune.budget.explicit import check_fraction
from subprune.errors import DataError
from subprune.loop.looks import comparable_scores

if TYPE_CHECKING:
    from subprune.budget.goal import Counts, Rounding
    from subprune.budget.space import BudgetSpace
    from subprune.structure.groups import Group

__all__ = ["Score", "by_score", "top_fraction"]


@dataclass(frozen=True)
class Score(Allocator):
    """One ranking over all layers; for methods with scores that compare: act-grad, weight-norm,
    flap, random.
    """

    name: ClassVar[str] = "score"
    looks_at: ClassVar[str] = "the method's scores"
    pools_units: ClassVar[bool] = True

    def counts(self, demand: Demand) -> Counts:
        scores = demand.outcome(comparable_scores)
        keep = demand.goal.keep
        if isinstance(keep, int | float):
            return top_fraction(demand.groups, scores, keep, demand.rounding)
        return by_score(demand.space, scores)


def by_score(space: BudgetSpace, scores: Mapping[str, Tensor]) -> Counts:
    """The units with the highest scores, as many as the goal allows;
    at least one in every group.
    """
    falling = _falling(space.groups, scores)
    at = _cut(space.groups, scores, space.rounding)
    total = sum(g.n_units for g in space.groups)
    counts = space.largest([float(t) for t in range(total + 1)], at)
    return space.fill(counts, lambda g, k: float(falling[g.name][k]))


def top_fraction(
    groups: Sequence[Group], scores: Mapping[str, Tensor], keep: float, rounding: Rounding
) -> Counts:
    """The top fraction of all units; at least one in every group."""
    check_fraction(keep, groups, rounding)
    total = sum(g.n_units for g in groups)
    return _cut(groups, scores, rounding)(float(int(keep * total + 1e-9)))


def _falling(
    groups: Sequence[Group], scores: Mapping[str, Tensor]
) -> dict[str, NDArray[np.float64]]:
    """Scores of each group from high to low."""
    falling = {}
    for g in groups:
        values = np.asarray(scores[g.name].detach().cpu().numpy(), dtype=np.float64)
        if values.shape != (g.n_units,) or not np.isfinite(values).all():
            raise DataError(
                f"scores of group {g.name!r} must be {g.n_units} finite numbers, "
                f"got shape {values.shape}"
            )
        falling[g.name] = np.sort(values)[::-1]
    return falling


def _cut(
    groups: Sequence[Group], scores: Mapping[str, Tensor], rounding: Rounding
) -> Callable[[float], Counts]:
    """Counts of each group among the top t units; equal scores go to the earlier group."""
    falling = _falling(groups, scores)
    # All units of all groups in one row, by falling score: the group that each belongs to.
    owner = np.repeat(np.arange(len(groups)), [g.n_units for g in groups])
    merged = np.concatenate([falling[g.name] for g in groups])
    ranked = owner[np.argsort(-merged, kind="stable")]

    def at(t: float) -> Counts:
        taken = np.bincount(ranked[: int(t)], minlength=len(groups))
        return {
            g.name: rounding.of(g).down(int(k), g.n_units)
            for g, k in zip(groups, taken, strict=True)
        }

    return at
