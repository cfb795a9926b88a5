"""New weights of a layer once the kept units are known, regularised, and judged on inputs it was not fitted to.

The fit minimises ``‖Y − B_S X‖² + λ·Σ_j G_jj·‖X_j − W_j‖²``: least squares, drawn toward the old weights W by a
ridge that is relative to each column's own energy. A strength λ is tried on all inputs but one fold and judged
on that fold; the one with the least error over all folds is used. The model itself is then fitted to all
inputs. The fits without a fold are kept too: together they are a version of the model that has not seen the
fold, to be judged on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from subprune.folds import FoldedStatistics
from subprune.reweight import Reweighting, relative_error, solve
from subprune.statistics import Statistics

__all__ = ["FOLDS", "STRENGTHS", "Fitted", "fit", "fold_count"]

FOLDS = 4
"""Folds of the calibration inputs: each is judged by a fit to the other three."""

STRENGTHS = (0.0, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""Strengths of the ridge that are tried, relative to each column's energy."""

_UNJUDGED = 1e-3
"""The strength where nothing can be held out to judge one."""


def fold_count(folds: int | None, ridge: float | None, reweight: bool) -> int:
    """Into how many folds the inputs are divided: as asked, but the plain fit sees all of them at once."""
    if folds is not None:
        return folds
    return FOLDS if reweight and ridge != 0 else 1


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """The new weights of one block of a consumer; d columns, m outputs."""

    weight: Tensor  # [d, m] float64, of the model itself; zero rows for dropped columns
    versions: tuple[Tensor, ...]  # the same fitted without each fold; empty with one fold
    ridge: float  # strength that was used
    energy: float  # ‖Y‖² over all inputs
    error: float  # share of it left on the inputs that were fitted
    held_out: float  # share of it left on inputs that were not; nan with one fold
    growth: float  # ‖new weights‖ / ‖old weights‖, on the kept columns
    columns: int  # kept columns
    rank: int  # independent ones among them
    rows: int  # rows seen


def fit(
    folded: FoldedStatistics,
    whole: Statistics,
    kept: Sequence[int],
    old: Tensor,
    ridge: float | None,
) -> Fitted:
    """Weights for the columns of the units `kept` and the columns without a unit.

    whole: ``folded.whole()``, which the caller has already. old: [d, m], the present weights. ridge: None
    chooses the strength.
    """
    strengths = (ridge,) if ridge is not None else STRENGTHS
    trials: list[_Trial] = []
    if folded.folds > 1:
        trials = [_trial(folded, fold, kept, old, strengths) for fold in range(folded.folds)]
        totals = [sum(t.left[i] for t in trials) for i in range(len(strengths))]
        best = min(range(len(strengths)), key=totals.__getitem__)
    else:
        best, strengths = 0, (_UNJUDGED if ridge is None else ridge,)
    final = solve(whole, kept, ridge=strengths[best], toward=old)
    energy = sum(t.energy for t in trials)
    return Fitted(
        weight=final.weight,
        versions=tuple(t.weights[best] for t in trials),
        ridge=strengths[best],
        energy=whole.energy,
        error=final.error,
        held_out=(totals[best] / energy if energy else 0.0) if trials else float("nan"),
        growth=_growth(whole, kept, final, old),
        columns=final.columns,
        rank=final.rank,
        rows=whole.rows,
    )


@dataclass(frozen=True)
class _Trial:
    """One fold: the weights fitted without it for every strength, and what each leaves of its energy."""

    weights: list[Tensor]
    left: list[float]
    energy: float


def _trial(folded: FoldedStatistics, fold: int, kept: Sequence[int], old: Tensor, strengths: Sequence[float]) -> _Trial:
    seen, unseen = folded.without(fold), folded.only(fold)
    weights = [solve(seen, kept, ridge=strength, toward=old).weight for strength in strengths]
    left = [relative_error(unseen, weight) * unseen.energy for weight in weights]
    return _Trial(weights, left, unseen.energy)


def _growth(stats: Statistics, kept: Sequence[int], new: Reweighting, old: Tensor) -> float:
    columns = stats.columns(kept)
    before = float(torch.linalg.vector_norm(old.to(new.weight)[columns]))
    after = float(torch.linalg.vector_norm(new.weight[columns]))
    return after / before if before else float("nan")
