"""How the outputs of two models compare: in their classes, their numbers, their right answers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from subprune.answers import IGNORED, Reading, fitting, read
from subprune.data import Batch
from subprune.program import Program

__all__ = ["Comparison", "compare"]

NAN = float("nan")
_CHUNK = 2**22  # numbers compared in float64 at a time


@dataclass(frozen=True)
class Comparison:
    """How outputs before and after compare on some inputs."""

    inputs: int  # inputs compared
    answers: int  # predictions compared: inputs, pixels or tokens
    kind: str  # "input", "pixel", "token", "position": what one answer is about; "" for numbers
    agreement: float  # share of answers with the same class; nan for regression
    output_change: float  # ‖after − before‖² / ‖before‖²
    accuracy: tuple[float, float] | None = None  # on labelled inputs, before and after

    @property
    def relative_error(self) -> float:
        """‖after − before‖ / ‖before‖"""
        return math.sqrt(self.output_change) if self.output_change >= 0 else NAN


def compare(
    before: Iterable[Tensor],
    after: Iterable[Tensor],
    batches: Sequence[Batch],
    program: Program | None = None,
) -> Comparison:
    """Outputs of two models compared, batch by batch; `program` is a recorded run of the first.

    What the outputs mean is read as `subprune.answers.read` says: classes for each input, pixel or
    token, or numbers, for which agreement is nan. Infinite outputs (masked logits) must be the same
    in both; the change is that of the finite ones, and infinite where they do not match. Accuracy
    is there if every batch has one class number for each answer; -100 is not counted.
    """
    reading: Reading | None = None
    gap = energy = 0.0
    same = total = labelled = counted = inputs = 0
    right = [0, 0]
    for a, b, batch in zip(before, after, batches, strict=True):
        if reading is None:
            reading = read(a, batch, program)
        inputs += batch.size
        more = _energies(a, b)
        gap, energy = gap + more[0], energy + more[1]
        if reading.dim is None:
            continue
        one, other = reading.classes(a), reading.classes(b)
        same += int((one == other).sum())
        total += one.numel()
        labels = batch.labels
        if labels is not None and fitting(labels, a, reading.dim):
            labelled += 1
            counted += int((labels != IGNORED).sum())
            right = [n + int((x == labels).sum()) for n, x in zip(right, (one, other), strict=True)]
    accuracy = None
    if counted and labelled == len(batches):
        accuracy = (right[0] / counted, right[1] / counted)
    kind = reading.kind if reading is not None else ""
    agreement = same / total if total else NAN
    return Comparison(inputs, total, kind, agreement, _ratio(gap, energy), accuracy)


def _energies(before: Tensor, after: Tensor) -> tuple[float, float]:
    """‖after − before‖² and ‖before‖² of finite entries; the first is infinite where others differ."""
    gap = energy = 0.0
    for a, b in zip(before.reshape(-1).split(_CHUNK), after.reshape(-1).split(_CHUNK), strict=True):
        a, b = (torch.view_as_real(x).double() if x.is_complex() else x.double() for x in (a, b))
        finite = a.isfinite() & b.isfinite()
        if not bool(finite.all()):
            matching = (a == b) | (a.isnan() & b.isnan())
            gap = gap if bool((finite | matching).all()) else math.inf
            a, b = a[finite], b[finite]
        gap += float((b - a).square().sum())
        energy += float(a.square().sum())
    return gap, energy


def _ratio(gap: float, energy: float) -> float:
    if energy:
        return gap / energy
    return 0.0 if gap == 0 else math.inf
