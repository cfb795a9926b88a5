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

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from subprune.fit.fit import Figures, weight_growth
from subprune.fit.solver import Factors, Solution, energy_change, relative_error, solve
from subprune.program import parallel

if TYPE_CHECKING:
    from subprune.program.ranks import Ranks
    from subprune.statistics.folds import FoldedStatistics
    from subprune.statistics.statistics import Statistics

__all__ = ["FOLDS", "STRENGTHS", "Fitted", "FoldFactors", "cross_fit", "together"]

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")

FoldFactors = dict[int | None, Factors]
"""What solves for a layer's kept columns: by the fold that is left out, None for all inputs."""

FOLDS = 4
"""Folds of the calibration inputs: each is judged by a fit to the other three."""

STRENGTHS = (1e-6, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""Strengths of the ridge that are tried, relative to the mean energy of a column.

The weakest is about the rounding of statistics that were multiplied in float32: it changes no
direction that data tells of, and keeps weights from growing along those that only rounding does.
"""

_UNFELT = 1e-6
"""Outputs that count with less than this share of what the most important one does are left."""

_OUTPUTS = 128
"""Outputs that say which strength is best, evenly spread, where there are more."""

_KEPT = 128 * 2**20
"""Bytes of factors that stay for other targets, not counting those of the strength in use."""

_TINY, _WIDE = 128, 2048
"""Columns up to which a fit takes less time than handing it to another core; and from which on
matrices are large, and made again rather than kept.
"""

_UNJUDGED = 1e-3
"""The strength where nothing can be held out to judge one."""


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """The new weights of one block of a consumer; d columns, m outputs."""

    weight: Tensor  # [d, m] float64, of the model itself; zero rows for dropped columns
    versions: tuple[Tensor, ...]  # the same fitted without each judged fold; empty with one fold
    shift: Tensor | None  # [m] float64, to be added to the bias; None where none is fitted
    shifts: tuple[Tensor, ...]  # the same without each fold; empty where there is none
    ridge: float  # strength that was used
    energy: float  # ‖Y‖² over all inputs
    error: float  # share of it left on the inputs that were fitted
    held_out: float  # share of it left on inputs that were not; nan with one fold
    growth: float  # ‖new weights‖ / ‖old weights‖, on the kept columns
    columns: int  # kept columns
    rank: int  # independent ones among them
    rows: int  # rows seen

    def divided(self, scale: Tensor, old: Tensor, columns: Tensor) -> Fitted:
        """The fit of targets that were multiplied by scale [m], for those that were not.

        Outputs that nobody feels (scale 0) keep the old weights [d, m] on the columns [q] that
        stay.
        """
        factor = scale.to(self.weight)
        alive = factor.abs() > _UNFELT * factor.abs().max()  # [m]
        inverse = torch.where(alive, 1 / factor.where(alive, 1), 0)  # 0 for outputs nobody feels
        rest = torch.zeros_like(self.weight)
        rest[columns] = torch.where(alive, 0, old.to(rest)[columns])

        def back(weight: Tensor) -> Tensor:
            return weight * inverse + rest

        return replace(
            self,
            weight=back(self.weight),
            versions=tuple(back(weight) for weight in self.versions),
            shift=None if self.shift is None else self.shift * inverse,
            shifts=tuple(shift * inverse for shift in self.shifts),
        )


def cross_fit(
    folded: FoldedStatistics,
    whole: Statistics,
    kept: Sequence[int],
    old: Tensor,
    strengths: Sequence[float],
    intercept: bool = False,
    factors: FoldFactors | None = None,
    judged: int | None = None,
    measured: bool = True,
) -> Fitted:
    """Weights for the columns of the units `kept` and the columns without a unit.

    whole: ``folded.whole()``, which the caller has already. old: [d, m], the present weights.
    strengths: of the ridge, in rising order; of several, the best on held-out inputs is taken.
    intercept: fit a constant too, which the ridge does not draw anywhere. factors: of the same
    inputs, where they were fitted before; afterwards those of the strength used. judged: of how many
    folds, the first, a fit without the fold is kept and judged on it; None: of all. measured:
    whether errors are wanted, which take as long as the weights; else they are nan.
    """
    # How strong the ridge is, and what each fold's fit leaves of it; then a fit to all inputs.
    known: FoldFactors = {} if factors is None else factors
    columns, ranks = whole.columns(kept), folded.ranks
    strength, held_out = strengths[0] if len(strengths) == 1 else _UNJUDGED, float("nan")
    versions: tuple[Tensor, ...] = ()
    shifts: tuple[Tensor, ...] = ()
    if folded.folds > 1:
        part = folded.part(columns)
        trials = [
            _FoldTrial(part, fold, columns, old, intercept, known.setdefault(fold, {}))
            for fold in range(folded.folds)
        ]
        strength = _best_strength(trials, strengths, ranks)
        settled = _each(
            lambda trial: trial.settle(strength, measured), trials[:judged], columns, ranks
        )
        versions = tuple(weight for *_, weight, _ in settled)
        if intercept:
            shifts = tuple(shift for *_, shift in settled if shift is not None)
        energy = sum(energy for _, energy, *_ in settled)
        residual = sum(residual for residual, *_ in settled)
        held_out = residual / energy if energy else 0.0
    own = known.setdefault(None, {})
    final = solve(
        whole,
        kept,
        ridge=strength,
        toward=old,
        intercept=intercept,
        measured=measured,
        factors=own,
    )
    if sum(factor.bytes for fold in known.values() for factor in fold.values()) > _KEPT:
        for fold in known.values():  # they are large: those that were only tried go
            for other in [key for key in fold if key != (strength, intercept)]:
                del fold[other]
    return Fitted(
        weight=final.weight,
        versions=versions,
        shift=final.shift,
        shifts=shifts,
        ridge=strength,
        energy=whole.energy,
        error=final.error,
        held_out=held_out,
        growth=weight_growth(columns, final.weight, old),
        columns=final.columns,
        rank=final.rank,
        rows=whole.rows,
    )


class _FoldTrial:
    """Fits to all inputs but one fold, judged on that fold; each strength is tried when it is asked
    for.

    folded: of the columns [q] alone.
    """

    def __init__(
        self,
        folded: FoldedStatistics,
        fold: int,
        columns: Tensor,
        old: Tensor,
        intercept: bool,
        factors: Factors,
    ) -> None:
        self.columns, self.old, self.intercept, self.factors = columns, old, intercept, factors
        self.folded, self.fold = folded, fold
        self.toward = old[columns]  # [q, m]
        self._known: dict[float, Solution] = {}
        self._changes: dict[float, float] = {}
        self._statistics: tuple[Statistics, Statistics] | None = None
        self.energy = 0.0  # of the fold; known once the statistics are

    def both(self) -> tuple[Statistics, Statistics]:
        """The statistics of the kept columns: without the fold, and of the fold alone."""
        if self._statistics is None:
            self._statistics = self.folded.without(self.fold), self.folded.only(self.fold)
            self.energy = self._statistics[1].energy
        return self._statistics

    @property
    def wide(self) -> bool:
        """Whether matrices are large, and trials made one after another."""
        return len(self.columns) > _WIDE

    def best(self) -> float:
        """The strength that changed the fold's energy most, of those tried so far."""
        return min(self._changes, key=lambda strength: self._changes[strength])

    def tidy(self, strength: float, *, statistics: bool = True) -> None:
        """Of large matrices, keep only what solves with this strength; not the statistics either,
        unless they are needed at once.
        """
        if not self.wide:
            return
        if statistics:
            self._statistics = None
        for key in [key for key in self.factors if key[0] != strength]:
            del self.factors[key]

    def _fit(self, strength: float) -> Solution:
        """For the kept columns [q]."""
        if strength not in self._known:
            self._known[strength] = self._solved(self.both()[0], strength, self.toward)
        return self._known[strength]

    def _solved(self, seen: Statistics, strength: float, toward: Tensor) -> Solution:
        return solve(
            seen,
            seen.units.unique().tolist(),
            ridge=strength,
            toward=toward,
            intercept=self.intercept,
            ranked=False,
            measured=False,
            factors=self.factors,
        )

    def change(self, strength: float) -> float:
        """What the fit does to the fold's energy; of many outputs, to that of some."""
        outputs = self.old.shape[1]
        if strength not in self._changes:
            if outputs <= _OUTPUTS:
                fit, unseen = self._fit(strength), self.both()[1]
            else:
                some = torch.linspace(0, outputs - 1, _OUTPUTS).round().long()
                seen, unseen = (_some_outputs(stats, some) for stats in self.both())
                fit = self._solved(seen, strength, self.toward[:, some])
            self._changes[strength] = energy_change(unseen, fit.weight, fit.shift)
        return self._changes[strength]

    def settle(self, strength: float, measured: bool) -> tuple[float, float, Tensor, Tensor | None]:
        """Fit with this strength, for good: what that leaves of the fold's energy, if it is
        measured, that energy, the fitted weights [d, m], and the fitted constant [m], if there is
        one.
        """
        fit, residual = self._fit(strength), float("nan")
        if measured:
            residual = relative_error(self.both()[1], fit.weight, fit.shift) * self.energy
        self.tidy(strength)
        new = torch.zeros(self.old.shape, dtype=torch.float64, device=fit.weight.device)
        new[self.columns] = fit.weight
        return residual, self.energy, new, fit.shift

    def know(self, changes: Mapping[float, float]) -> None:
        """What other ranks have found out about strengths."""
        self._changes.update(changes)


def _some_outputs(stats: Statistics, outputs: Tensor) -> Statistics:
    """The statistics of some outputs; ‖Y‖² stays that of all."""
    at = outputs.to(stats.cross.device)
    return replace(stats, cross=stats.cross[:, at], target_sums=stats.target_sums[at])


def _best_strength(trials: Sequence[_FoldTrial], strengths: Sequence[float], ranks: Ranks) -> float:
    """The strength with the least held-out error.

    The best for the first fold, or a neighbour that all prefer.
    """
    if len(strengths) == 1:
        return strengths[0]
    first, columns = trials[0], trials[0].columns
    first.both()  # which all of its trials need

    def change(strength: float) -> float:
        error = first.change(strength)
        if first.wide:
            first.tidy(first.best(), statistics=False)
        return error

    changes = _each(change, strengths, columns, ranks)
    first.know(dict(zip(strengths, changes, strict=True)))
    # The first fold tries all strengths; the others only those next to its best one.
    best = changes.index(min(changes))
    near = strengths[max(0, best - 1) : best + 2]

    def changes_near(trial: _FoldTrial) -> list[float]:
        errors = [trial.change(strength) for strength in near]
        trial.tidy(strengths[best])
        return errors

    by_fold = _each(changes_near, trials, columns, ranks)
    totals = [sum(both) for both in zip(*by_fold, strict=True)]
    return near[totals.index(min(totals))]


def _each(
    work: Callable[[Item], Outcome], items: Sequence[Item], columns: Tensor, ranks: Ranks
) -> list[Outcome]:
    """The work on every item, several at once where their matrices are neither tiny nor large; of
    a job, some by each rank.
    """
    if ranks.count > 1 and len(columns) >= _TINY:
        return ranks.each(work, items)
    side_by_side = _TINY <= len(columns) <= _WIDE and columns.device.type == "cpu"
    return parallel.each(work, items, side_by_side)


def together(fits: Sequence[Fitted]) -> Figures:
    """What the fits of all consumers of a group say together."""
    # A layer whose old weights are all zero grows by no number.
    growths = [f.growth for f in fits if not math.isnan(f.growth)]
    total = sum(f.energy for f in fits)
    return Figures(
        error=sum(f.error * f.energy for f in fits) / total if total else 0.0,
        held_out=sum(f.held_out * f.energy for f in fits) / total if total else 0.0,
        ridge=tuple(f.ridge for f in fits),
        growth=max(growths, default=float("nan")),
        rows=min(f.rows for f in fits),
        rank=sum(f.rank for f in fits),
        columns=sum(f.columns for f in fits),
    )
