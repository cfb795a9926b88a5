"""Budgets by equal accuracy (Kuzmin et al. 2019): every layer may cost the same drop when pruned
alone.

For each group the accuracy P(k) with only that group pruned to k units is measured on a
verification set, at fixed fractions. Only what lies after the group's consumers is run again, on
values kept from one dense pass. Without labels, accuracy is replaced by agreement with the dense
model's own predictions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from subprune.budget.cache import Cache
from subprune.budget.target import Counts, Rounding, Target, fill, largest
from subprune.errors import DataError
from subprune.loop.ranking import rankers, ranking_of
from subprune.loop.walk import alone
from subprune.measure.answers import IGNORED, Reading, read_program
from subprune.messages import Message
from subprune.select.registry import Method, Ranker
from subprune.statistics.calibrate import Calibration, Passage
from subprune.structure import Group
from subprune.structure.cost import CostModel

__all__ = ["FRACTIONS", "AccuracyCurve", "accuracy_curves", "equal_accuracy"]

FRACTIONS = (0.01, 0.05, 0.075, *(round(0.05 * i, 2) for i in range(2, 21)))


@dataclass(frozen=True)
class AccuracyCurve:
    """Share of right answers with one group pruned to k units, at the measured k."""

    counts: tuple[int, ...]  # ascending, the last is all units
    values: tuple[float, ...]

    def monotone(self, units: int) -> np.ndarray:
        """P(k) for k = 0 … units, never falling: capped at the last value, falling points left out."""
        kept_k, kept_p = [0], [0.0]
        for k, p in zip(self.counts, self.values, strict=True):
            p = min(p, self.values[-1])
            if p >= kept_p[-1]:
                kept_k.append(k)
                kept_p.append(p)
        return np.maximum.accumulate(np.interp(np.arange(units + 1), kept_k, kept_p))


def measured_counts(units: int, fractions: Sequence[float] = FRACTIONS) -> list[int]:
    """The numbers of units that stand for the fractions: rounded down, at least one, each once."""
    return sorted({max(1, int(f * units + 1e-9)) for f in fractions} | {units})


def accuracy_curves(
    calibration: Calibration,
    verification: Calibration,
    groups: Sequence[Group],
    method: Method,
    *,
    reweight: bool = True,
    labels: bool = True,
    fractions: Sequence[float] = FRACTIONS,
    cache: Cache | None = None,
    tick: Callable[[str, Group], None] = lambda stage, group: None,
    **choices: Any,
) -> dict[str, AccuracyCurve]:
    """P(k) of every group; `labels=False` measures agreement with the dense model instead."""
    known = cache.read() if cache is not None else {}
    found = {g.name: AccuracyCurve(*known[g.name]) for g in groups if g.name in known}
    if len(found) == len(groups):
        return found
    reading = _reading(verification)
    own = verification.start().answers(reading.classes)
    goal = _labels(verification, own) if labels else own
    whole = _share(own, goal)
    run = verification.start()
    passage = Passage(run, groups)
    for ranker in rankers(calibration, groups, method, tick=tick, **choices):
        if ranker.group.name in found:
            continue
        curve = _curve(ranker, method, passage, reading, goal, whole, reweight, fractions)
        found[ranker.group.name] = curve
        if cache is not None:
            cache.write(ranker.group.name, (curve.counts, curve.values))
    return found


def _curve(
    ranker: Ranker,
    method: Method,
    passage: Passage,
    reading: Reading,
    goal: Sequence[Tensor],
    whole: float,
    reweight: bool,
    fractions: Sequence[float],
) -> AccuracyCurve:
    """One group: rank once, then switch to each number of units and finish the verification run
    from there.

    `whole` is the share with all units, which needs no run.
    """
    group = ranker.group
    ranking = ranking_of(ranker, method.order(ranker))
    start = passage.go_to(group) or passage.run
    counts = measured_counts(group.n_units, fractions)
    values = []
    for k in counts[:-1]:
        probe = start.fork()
        state = alone(ranker, ranking, k, reweight)
        probe.tensors, probe.override = state.tensors, {**probe.override, **state.override}
        values.append(_share(probe.answers(reading.classes), goal))
    return AccuracyCurve(tuple(counts), (*values, whole))


def _share(found: Sequence[Tensor], goal: Sequence[Tensor]) -> float:
    """Share of right answers; those whose label says so are not counted."""
    right = sum(int((x == y).sum()) for x, y in zip(found, goal, strict=True))
    return right / sum(int((y != IGNORED).sum()) for y in goal)


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
    found = [b.labels for b in verification.batches if b.labels is not None]
    if len(found) < len(verification.batches):
        raise DataError(
            Message(
                "equal accuracy needs labels: give {verify_data:name} with labels, or use "
                "{allocate=}, which compares with the dense model's own predictions",
                allocate="equal-agreement",
            )
        )
    for labels, own in zip(found, answers, strict=True):
        if labels.shape != own.shape or not bool((labels != IGNORED).any()):
            raise DataError(
                Message(
                    "equal accuracy needs one label for every answer, of shape {wanted}; "
                    "{verify_data:name} has labels of shape {got}, or all of them are {ignored}, "
                    "which are not counted",
                    wanted=tuple(own.shape),
                    got=tuple(labels.shape),
                    ignored=IGNORED,
                )
            )
    return found


def equal_accuracy(
    groups: Sequence[Group],
    curves: Mapping[str, AccuracyCurve],
    cost: CostModel,
    target: Target,
    rounding: Rounding,
    fractions: Sequence[float] = FRACTIONS,
) -> Counts:
    """The highest common accuracy that meets the target; what is left goes to the largest fraction
    first.

    Each group takes the smallest measured number of units that reaches the accuracy: in the paper,
    budgets come from a fixed set of fractions, and the line between two measured points decides
    nothing. A small group's fraction may be well above its share of units (1 of 6 units stands for
    the fraction 0.2), and counts when the rest is handed out.
    """
    steps = {g.name: (0, *curves[g.name].counts) for g in groups}
    smooth = {g.name: curves[g.name].monotone(g.n_units)[list(steps[g.name])] for g in groups}
    levels = np.unique(np.concatenate(list(smooth.values())))

    def at(level: float) -> Counts:
        first = {
            name: int(np.searchsorted(values, level - 1e-12)) for name, values in smooth.items()
        }
        return {g.name: rounding.of(g).up(steps[g.name][first[g.name]], g.n_units) for g in groups}

    counts = largest([0.0, *levels.tolist()], at, cost, target)
    chosen = {g.name: _fraction(counts[g.name], g.n_units, fractions) for g in groups}
    return fill(counts, groups, cost, target, rounding, lambda g, k: chosen[g.name])


def _fraction(k: int, units: int, fractions: Sequence[float]) -> float:
    """The smallest fraction that stands for k units; their share if there is none."""
    return min((f for f in fractions if int(f * units + 1e-9) == k), default=k / units)
