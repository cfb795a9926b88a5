"""How the outputs of two models compare: in their classes, their numbers, their right answers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from subprune.data.tokens import IGNORED
from subprune.measure.answers import Reading, answered, fitting, read
from subprune.measure.language import Surprise, attended, next_tokens, surprise, tokens_of

if TYPE_CHECKING:
    from subprune.data.batch import Batch
    from subprune.program.program import Program
    from subprune.program.ranks import Ranks

__all__ = ["Comparison", "Tally", "compare", "vector_cosines"]

# What a `Tally` adds up over batches, besides `right` and `surprise`.
_ADDED = (
    *("gap", "energy", "cosines", "vectors", "same", "answers", "inputs", "batches"),
    *("labelled", "counted"),
)
_CHUNK = 2**18  # numbers compared in float64 at a time: they stay in the cache


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """How outputs before and after compare on some inputs."""

    inputs: int  # inputs compared
    answers: int  # predictions compared: inputs, pixels or tokens
    kind: str  # "input", "pixel", "token", "position": what one answer is about; "" for numbers
    agreement: float  # share of answers with the same class; nan for regression
    output_change: float  # ‖after − before‖² / ‖before‖²
    accuracy: tuple[float, float] | None = None  # on labelled inputs, before and after
    counted: int = 0  # answers with a label
    # of a causal language model, before and after, over the predicted tokens
    perplexity: tuple[float, float] | None = None
    tokens: int = 0
    cosine: float | None = None  # mean of those between vectors before and after

    @property
    def judged(self) -> bool:
        """Whether there is a figure for what such a model is for."""
        known = self.accuracy is not None or self.perplexity is not None
        return known or self.cosine is not None

    @property
    def relative_error(self) -> float:
        """‖after − before‖ / ‖before‖"""
        return math.sqrt(self.output_change) if self.output_change >= 0 else math.nan


def compare(
    before: Iterable[Tensor],
    after: Iterable[Tensor],
    batches: Sequence[Batch],
    program: Program | None = None,
    causal: bool = False,
) -> Comparison:
    """Outputs of two models compared, batch by batch; `program` is a recorded run of the first,
    which is `causal` if `subprune.measure.causality.predicts_next` says so.

    What the outputs mean is read as `subprune.measure.answers.read` says: classes for each input,
    pixel or token, or numbers, for which agreement is nan. Infinite outputs (masked logits) must be
    the same in both; the change is that of the finite ones, and infinite where they do not match.
    Accuracy is there if every batch has one class number for each answer; -100 is not counted, and
    padding, which `program` knows, counts nowhere. A causal model's answers are about the next
    token, and it has a perplexity.
    """
    tally = Tally(program, causal)
    for a, b, batch in zip(before, after, batches, strict=True):
        tally.add(a, b, batch)
    return tally.result()


class Tally:
    """Counts for a `Comparison`, batch by batch: several can be kept over the same outputs."""

    def __init__(self, program: Program | None = None, causal: bool = False) -> None:
        self.program, self.causal = program, causal
        self.reading: Reading | None = None
        self.gap = self.energy = 0.0
        self.same = self.answers = self.inputs = 0
        self.batches = self.labelled = self.counted = 0
        self.right = [0, 0]
        self.surprise = (Surprise(), Surprise())
        self.cosines, self.vectors = 0.0, 0

    def add(
        self, before: Tensor, after: Tensor, batch: Batch, known: dict[str, Any] | None = None
    ) -> None:
        """Add the outputs of one batch.

        known: what another tally of the same kind has found out about `before`, and the batch.
        """
        known = {} if known is None else known
        if self.reading is None:  # what a model does is stronger evidence than how it is built
            words = Reading(before.ndim - 1, "token")
            self.reading = words if self.causal else read(before, batch, self.program)
        self.inputs += batch.size
        self.batches += 1
        labels, wanted = batch.labels, None
        if self.causal:  # labels are about the token after
            wanted, batch = (
                next_tokens(batch, tuple(before.shape[:-1])),
                replace(batch, labels=None),
            )
        where = answered(before.shape, batch, self.reading, self.program)
        if wanted is not None and labels is not None:
            labels, valid = wanted, (wanted != IGNORED).unsqueeze(-1)
            where = valid if where is None else where & valid
        # Numbers first, which every output has; then classes, where they are read as such.
        gap, energy = _energies(*(_counted(x, where) for x in (before, after)))
        self.gap, self.energy = self.gap + gap, self.energy + energy
        if self.reading.vectors:
            self._add_vectors(before, after, batch)
        if self.reading.dim is None:
            return
        if "classes" not in known:
            known["classes"] = self.reading.classes(before)
        one, other = known["classes"], self.reading.classes(after)
        if labels is not None and not fitting(labels, before, self.reading.dim):
            labels = None
        if wanted is not None:
            if "surprise" not in known:
                known["surprise"] = surprise(before, wanted)
            self.surprise[0].add(*known["surprise"])
            self.surprise[1].add(*surprise(after, wanted))
        if where is not None:
            valid = where.amax(self.reading.dim) if self.reading.dim < before.ndim else where
            valid = valid.expand(one.shape)
            one, other = one[valid], other[valid]
            labels = None if labels is None else labels[valid]
        self.same += int((one == other).sum())
        self.answers += one.numel()
        if labels is not None:
            self.labelled += 1
            self.counted += int((labels != IGNORED).sum())
            self.right[0] += int((one == labels).sum())
            self.right[1] += int((other == labels).sum())

    def _add_vectors(self, before: Tensor, after: Tensor, batch: Batch) -> None:
        """Cosines of vectors [..., d]; padding is left out."""
        cosines = vector_cosines(before, after)
        tokens = tokens_of(batch, tuple(cosines.shape))
        if tokens is not None:
            cosines = cosines[attended(batch, *tokens).to(cosines.device)]
        self.cosines += float(cosines.sum())
        self.vectors += cosines.numel()

    def over(self, ranks: Ranks) -> Tally:
        """The same of the batches of all ranks."""
        if ranks.count == 1:
            return self
        numbers = [getattr(self, name) for name in _ADDED]
        numbers += [*self.right, *(x for s in self.surprise for x in (s.total, s.tokens))]
        sums = torch.tensor(numbers, dtype=torch.float64)
        ranks.sum([sums])
        total, added = Tally(self.program, self.causal), iter(sums.tolist())
        for name in _ADDED:
            setattr(total, name, type(getattr(total, name))(next(added)))  # counts stay whole
        total.right = [int(next(added)) for _ in total.right]
        for surprised in total.surprise:
            surprised.add(next(added), int(next(added)))
        kinds = ranks.share(None if self.reading is None else vars(self.reading))
        total.reading = next((Reading(**kind) for kind in kinds if kind is not None), None)
        return total

    def result(self) -> Comparison:
        """What all batches say together."""
        known = self.counted > 0 and self.labelled == self.batches
        accuracy = (self.right[0] / self.counted, self.right[1] / self.counted) if known else None
        kind = self.reading.kind if self.reading is not None else ""
        agreement = self.same / self.answers if self.answers else math.nan
        one, other = self.surprise
        return Comparison(
            inputs=self.inputs,
            answers=self.answers,
            kind=kind,
            agreement=agreement,
            output_change=_ratio(self.gap, self.energy),
            accuracy=accuracy,
            counted=self.counted if known else 0,
            perplexity=(one.perplexity, other.perplexity) if one.tokens else None,
            tokens=one.tokens,
            cosine=self.cosines / self.vectors if self.vectors else None,
        )


def _counted(x: Tensor, where: Tensor | None) -> Tensor:
    """The entries at positions that count; where all of the last dimension do, row by row."""
    if where is None:
        return x
    if where.ndim == x.ndim and where.shape[-1] == 1:
        return x[where[..., 0].expand(x.shape[:-1])]
    return x[where.expand(x.shape)]


def vector_cosines(before: Tensor, after: Tensor) -> Tensor:
    """Cosines of the angles between vectors [..., d]: [...] float64; two zero vectors are alike."""
    a, b = before.double(), after.double()
    lengths = a.norm(dim=-1) * b.norm(dim=-1)
    both_zero = (a.norm(dim=-1) == 0) & (b.norm(dim=-1) == 0)
    cosines = (a * b).sum(-1) / lengths.where(lengths > 0, 1.0)
    return torch.where(both_zero, 1.0, cosines)


def _energies(before: Tensor, after: Tensor) -> tuple[float, float]:
    """‖after − before‖² and ‖before‖² of finite entries;
    the first is infinite where others differ.
    """
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
