"""Budgets by equal accuracy (Kuzmin et al. 2019): every layer may cost the same drop when pruned
alone.

For each group the accuracy P(k) with only that group pruned to k units is measured on a
verification set, at fixed fractions. Only what lies after the group's consumers is run again, on
values kept from one dense pass. Without labels, accuracy is replaced by agreement with the dense
model's own predictions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from torch import Tensor

from subprune.budget.cache import Cache
from subprune.budget.demand import Allocator, Demand
from subprune.data.tokens import IGNORED
from subprune.errors import DataError
from subprune.loop.looks import alone, looks
from subprune.measure.answers import Reading, answered, read_program
from subprune.messages import Message
from subprune.statistics.runs import Passage, Run

if TYPE_CHECKING:
    from subprune.budget.goal import Counts
    from subprune.budget.space import BudgetSpace
    from subprune.fit.fit import Fit
    from subprune.loop.recipe import Recipe
    from subprune.loop.visits import Tick, Visit
    from subprune.select.selector import Setting
    from subprune.statistics.calibration import Calibration
    from subprune.structure.groups import Group

__all__ = [
    "FRACTIONS",
    "AccuracyCurve",
    "EqualAccuracy",
    "EqualAgreement",
    "accuracy_curves",
    "equal_accuracy",
]

FRACTIONS = (0.01, 0.05, 0.075, *(round(0.05 * i, 2) for i in range(2, 21)))


@dataclass(frozen=True)
class EqualAgreement(Allocator):
    """The same drop in agreement with the dense model for every layer pruned alone; needs no
    labels.
    """

    name: ClassVar[str] = "equal-agreement"
    looks_at: ClassVar[str] = "agreement curves"
    measures_answers: ClassVar[bool] = True
    labels: ClassVar[bool] = False

    def counts(self, demand: Demand) -> Counts:
        curves = demand.remember(self.name, lambda: self._curves(demand))
        return equal_accuracy(demand.space, curves)

    def _curves(self, demand: Demand) -> dict[str, AccuracyCurve]:
        verification = demand.verification or demand.calibration.whole()
        cache = None
        if demand.cache is not None:
            setting, names = demand.setting, [g.name for g in demand.groups]
            recipe = demand.recipe.on_dense()
            key = (recipe, recipe.selector.version, self.labels, names, setting.seed)
            pool = [] if setting.pool is None else [setting.pool]
            cache = Cache(demand.cache, *key, demand.calibration, verification, *pool)
        return accuracy_curves(
            demand.setting,
            demand.recipe,
            verification,
            labels=self.labels,
            cache=cache,
            tick=demand.tick,
        )


@dataclass(frozen=True)
class EqualAccuracy(EqualAgreement):
    """The same drop in accuracy for every layer pruned alone; needs verification data with
    labels.
    """

    name: ClassVar[str] = "equal-accuracy"
    looks_at: ClassVar[str] = "accuracy curves"
    needs_verification: ClassVar[bool] = True
    labels: ClassVar[bool] = True


@dataclass(frozen=True)
class AccuracyCurve:
    """Share of right answers with one group pruned to k units, at the measured k."""

    counts: tuple[int, ...]  # ascending, the last is all units
    values: tuple[float, ...]

    def monotone(self, units: int) -> np.ndarray:
        """P(k) for k = 0 … units, never falling: capped at the last value,
        falling points left out.
        """
        kept_k, kept_p = [0], [0.0]
        for k, p in zip(self.counts, self.values, strict=True):
            p = min(p, self.values[-1])
            if p >= kept_p[-1]:
                kept_k.append(k)
                kept_p.append(p)
        return np.maximum.accumulate(np.interp(np.arange(units + 1), kept_k, kept_p))

    @staticmethod
    def together(curves: Sequence[AccuracyCurve]) -> AccuracyCurve:
        """The mean of groups of as many units, which were measured at the same numbers."""
        values = np.mean([curve.values for curve in curves], axis=0)
        return AccuracyCurve(curves[0].counts, tuple(values.tolist()))


def measured_counts(units: int, fractions: Sequence[float] = FRACTIONS) -> list[int]:
    """The numbers of units that stand for the fractions: rounded down, at least one, each once."""
    return sorted({max(1, int(f * units + 1e-9)) for f in fractions} | {units})


def accuracy_curves(
    setting: Setting,
    recipe: Recipe,
    verification: Calibration,
    *,
    labels: bool = True,
    fractions: Sequence[float] = FRACTIONS,
    cache: Cache | None = None,
    tick: Tick = lambda group: None,
) -> dict[str, AccuracyCurve]:
    """P(k) of every group; `labels=False` measures agreement with the dense model instead.

    Fits are plain here: nothing is held out.
    """
    ranks = setting.calibration.ranks
    stored = ranks.first(cache.read) if cache is not None else {}
    known = {g.name: AccuracyCurve(*stored[g.name]) for g in setting.groups if g.name in stored}
    missing = [g for g in setting.groups if g.name not in known]
    if not missing:
        return known
    reading = _reading(verification)
    predictions = verification.start().answers(reading.classes)
    answers = _labels(verification, predictions) if labels else predictions
    right_answers = _that_count(verification, reading, answers)
    # The calibration run ranks the groups one after another; the verification run goes along, and
    # is finished from each group once for every number of units.
    probe = _Probe(
        verification,
        missing,
        reading,
        right_answers,
        recipe.fit.plain(),
        _share(predictions, right_answers),
    )
    for visit in looks(setting, recipe, groups=missing, tick=tick):
        curve = probe.curve(visit, measured_counts(visit.group.n_units, fractions))
        known[visit.group.name] = curve
        if cache is not None and ranks.rank == 0:
            cache.write(visit.group.name, (curve.counts, curve.values))
        del visit
    return known


class _Probe:
    """The verification run on its way past the groups, finished once for every budget tried.

    whole: the share of right answers with all units, which needs no run.
    """

    def __init__(
        self,
        verification: Calibration,
        groups: Sequence[Group],
        reading: Reading,
        goal: Sequence[Tensor],
        fit: Fit,
        whole: float,
    ) -> None:
        self.run = verification.start()
        self.passage = Passage(self.run, groups)
        self.tensors = dict(self.run.tensors)
        self.reading, self.goal, self.fit, self.whole = reading, goal, fit, whole

    def curve(self, visit: Visit, counts: Sequence[int]) -> AccuracyCurve:
        """One group: switch to each number of units and finish the run from there."""
        start = self.passage.go_to(visit.group) or self.run
        values = [self._value(visit, k, start) for k in counts[:-1]]
        return AccuracyCurve(tuple(counts), (*values, self.whole))

    def _value(self, visit: Visit, k: int, start: Run) -> float:
        """The share of right answers with k units."""
        trial = start.fork()
        trial.tensors, override = alone(visit, k, self.fit, self.tensors, start.programs[0])
        trial.override = {**trial.override, **override}
        return _share(trial.answers(self.reading.classes), self.goal)


def _share(answers: Sequence[Tensor], right_answers: Sequence[Tensor]) -> float:
    """Share of right answers; those whose label says so are not counted."""
    right = sum(int((x == y).sum()) for x, y in zip(answers, right_answers, strict=True))
    return right / sum(int((y != IGNORED).sum()) for y in right_answers)


def _that_count(
    verification: Calibration, reading: Reading, answers: Sequence[Tensor]
) -> list[Tensor]:
    """The answers, with `IGNORED` for those that do not count."""
    marked = []
    for program, batch, right in zip(
        verification.programs, verification.batches, answers, strict=True
    ):
        shape = program.values[program.answer].shape
        where = answered(shape, batch, reading, program)
        if where is not None and reading.dim is not None:
            valid = where.amax(reading.dim) if reading.dim < len(shape) else where
            right = right.masked_fill(~valid.expand(right.shape), IGNORED)
        marked.append(right)
    return marked


def _reading(verification: Calibration) -> Reading:
    reading = read_program(verification.programs[0], verification.batches[0])
    if reading.dim is None:
        raise DataError(
            Message(
                "equal accuracy and equal agreement compare classes, and the model's outputs are "
                "numbers; give {allocate=} another rule, such as 'balanced' or 'uniform'"
            )
        )
    return reading


def _labels(verification: Calibration, answers: Sequence[Tensor]) -> list[Tensor]:
    labels_of_batches = [b.labels for b in verification.batches if b.labels is not None]
    if len(labels_of_batches) < len(verification.batches):
        raise DataError(
            Message(
                "equal accuracy needs labels: give {verify_data:name} with labels, or use "
                "{allocate=}, which compares with the dense model's own predictions",
                allocate="equal-agreement",
            )
        )
    for labels, answer in zip(labels_of_batches, answers, strict=True):
        if labels.shape != answer.shape or not bool((labels != IGNORED).any()):
            raise DataError(
                Message(
                    "equal accuracy needs one label for every answer, of shape {wanted}; "
                    "{verify_data:name} has labels of shape {got}, or all of them are {ignored}, "
                    "which are not counted",
                    wanted=tuple(answer.shape),
                    got=tuple(labels.shape),
                    ignored=IGNORED,
                )
            )
    return labels_of_batches


def equal_accuracy(
    space: BudgetSpace,
    curves: Mapping[str, AccuracyCurve],
    fractions: Sequence[float] = FRACTIONS,
) -> Counts:
    """The highest common accuracy that meets the goal; what is left goes to the largest fraction
    first.

    Each group takes the smallest measured number of units that reaches the accuracy: in the paper,
    budgets come from a fixed set of fractions, and the line between two measured points decides
    nothing. A small group's fraction may be well above its share of units (1 of 6 units stands for
    the fraction 0.2), and counts when the rest is distributed.
    """
    # By group: the numbers of units that were measured, and the accuracy at each, never falling.
    groups = space.groups
    steps = {g.name: (0, *curves[g.name].counts) for g in groups}
    smooth = {g.name: curves[g.name].monotone(g.n_units)[list(steps[g.name])] for g in groups}
    levels = np.unique(np.concatenate(list(smooth.values())))

    def at(level: float) -> Counts:
        first = {
            name: int(np.searchsorted(values, level - 1e-12)) for name, values in smooth.items()
        }
        return {g.name: space.up(g, steps[g.name][first[g.name]]) for g in groups}

    counts = space.largest([0.0, *levels.tolist()], at)
    chosen = {g.name: _fraction(counts[g.name], g.n_units, fractions) for g in groups}
    return space.fill(counts, lambda g, k: chosen[g.name])


def _fraction(k: int, units: int, fractions: Sequence[float]) -> float:
    """The smallest fraction that stands for k units; their share if there is none."""
    return min((f for f in fractions if int(f * units + 1e-9) == k), default=k / units)
