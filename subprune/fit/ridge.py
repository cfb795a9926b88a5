"""New weights of a layer once the kept units are known, regularised, and judged on inputs it was
not fitted to.

The fit minimises ``‖Y − B_S X‖² + λ·ḡ·‖X − W_S‖²``: least squares, drawn toward the old weights W
by a ridge relative to ḡ, the mean energy of a kept column. A column that is hardly ever active
keeps its old weight: the data says nothing better, and a weight fitted to its noise would be large
and wrong on other inputs.

A strength λ is tried on all inputs but one fold and judged on that fold; the one with the least
error over all folds is used. The model itself is then fitted to all inputs. The fits without a fold
are kept too: together they are a version of the model that has not seen the fold, to be judged on
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from subprune.fit.least_squares import relative_error, solve
from subprune.statistics.folds import FoldedStatistics
from subprune.statistics.statistics import Statistics

__all__ = ["FOLDS", "STRENGTHS", "Fitted", "fit", "fold_count"]

FOLDS = 4
"""Folds of the calibration inputs: each is judged by a fit to the other three."""

STRENGTHS = (1e-6, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""Strengths of the ridge that are tried, relative to the mean energy of a column.

The weakest is about the rounding of statistics that were multiplied in float32: it changes no
direction that data tells of, and keeps weights from growing along those that only rounding does.
"""

_UNJUDGED = 1e-3
"""The strength where nothing can be held out to judge one."""


def fold_count(folds: int | None, ridge: float | None, reweight: bool) -> int:
    """Into how many folds the inputs are divided: as asked, but the plain fit sees all of them at
    once.
    """
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
    columns = whole.columns(kept)
    strength, held_out = _UNJUDGED if ridge is None else float(ridge), float("nan")
    versions: tuple[Tensor, ...] = ()
    if folded.folds > 1:
        trials = [_Trial(folded, fold, columns, old) for fold in range(folded.folds)]
        strength = _best_strength(trials) if ridge is None else strength
        versions = tuple(trial.weight(strength) for trial in trials)
        energy = sum(trial.energy for trial in trials)
        held_out = sum(trial.error(strength) for trial in trials) / energy if energy else 0.0
    final = solve(whole, kept, ridge=strength, toward=old)
    return Fitted(
        weight=final.weight,
        versions=versions,
        ridge=strength,
        energy=whole.energy,
        error=final.error,
        held_out=held_out,
        growth=_growth(columns, final.weight, old),
        columns=final.columns,
        rank=final.rank,
        rows=whole.rows,
    )


class _Trial:
    """Fits to all inputs but one fold, judged on that fold; each strength is tried when it is asked
    for.
    """

    def __init__(self, folded: FoldedStatistics, fold: int, columns: Tensor, old: Tensor) -> None:
        self.columns, self.old = columns, old
        self.seen, self.unseen = folded.without(fold).part(columns), folded.only(fold).part(columns)
        self.energy = self.unseen.energy
        self._known: dict[float, tuple[Tensor, float]] = {}

    def _fit(self, strength: float) -> tuple[Tensor, float]:
        """The weights [q, m] of the kept columns, and what they leave of the fold's energy."""
        if strength not in self._known:
            every = self.seen.units.unique().tolist()
            weight = solve(self.seen, every, ridge=strength, toward=self.old[self.columns]).weight
            self._known[strength] = weight, relative_error(self.unseen, weight) * self.energy
        return self._known[strength]

    def error(self, strength: float) -> float:
        """What the fit leaves of the fold's energy."""
        return self._fit(strength)[1]

    def weight(self, strength: float) -> Tensor:
        """The fitted weights [d, m]."""
        new = torch.zeros(self.old.shape, dtype=torch.float64, device=self.seen.gram.device)
        new[self.columns] = self._fit(strength)[0]
        return new


def _best_strength(trials: Sequence[_Trial]) -> float:
    """The strength with the least held-out error: the best for the first fold, or a neighbour that
    all prefer.
    """
    errors = [trials[0].error(strength) for strength in STRENGTHS]
    best = errors.index(min(errors))
    near = STRENGTHS[max(0, best - 1) : best + 2]
    return min(near, key=lambda strength: sum(trial.error(strength) for trial in trials))


def _growth(columns: Tensor, new: Tensor, old: Tensor) -> float:
    before = float(torch.linalg.vector_norm(old.to(new)[columns]))
    return float(torch.linalg.vector_norm(new[columns])) / before if before else float("nan")
