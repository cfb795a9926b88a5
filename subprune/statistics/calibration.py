"""A model, its calibration batches, and the program of every batch shape."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.utils._pytree import tree_flatten

from subprune.data.batch import Batch, signature
from subprune.data.division import folded
from subprune.data.layouts import lay_out
from subprune.data.tokens import masks
from subprune.data.views import with_views
from subprune.errors import DataError
from subprune.program.program import Program, flat_tensors, model_tensors
from subprune.program.ranks import ALONE, Ranks
from subprune.program.record import record_given
from subprune.statistics.runs import RankShare, Run
from subprune.structure.grouping import analyse

if TYPE_CHECKING:
    from subprune.structure.groups import Structure

__all__ = ["ALL_BYTES", "JUDGED_BYTES", "VALUE_BYTES", "Calibration"]

VALUE_BYTES, ALL_BYTES = 64 * 2**20, 2**30
"""Batches in which a value is larger than this are divided, if the model takes fewer inputs; and
those in which all values are together, which the metric's gradients need.
"""

JUDGED_BYTES = 2**30
"""Of versions of a model, each fitted without one fold of the inputs. Of larger models there is one
version, and the fold that it was fitted without is all that the models are compared on.
"""

JUDGED_INPUTS, MANY_BYTES = 128, 2**28
"""A fold of this many inputs says enough by itself: then versions above this size are one, too."""


@dataclass(kw_only=True)
class Calibration:
    """A model, its batches, and the program of every batch shape."""

    model: nn.Module
    batches: Sequence[Batch]
    structure: Structure
    programs: Sequence[Program]  # one per batch
    folds: Sequence[int] = ()  # of each batch; empty: one fold, nothing is held out
    given: Sequence[Batch] = ()  # the same inputs in the caller's own batches
    remarks: Sequence[str] = ()  # on tokens that do not count
    ranks: Ranks = ALONE  # those who run some of the batches each
    # what methods computed for all groups at once
    cache: dict[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls,
        model: nn.Module,
        batches: Sequence[Batch],
        folds: int = 1,
        views: Sequence[str] = (),
        seed: int = 0,
        ranks: Ranks = ALONE,
    ) -> Calibration:
        """Record the model once per shape of batch, its inputs divided into folds.

        A model that takes batches of certain sizes only, or another path for others, has its
        batches dealt out whole. views: names of further views of all images. ranks: those who
        run some of the batches each, and have the same inputs.
        """
        try:
            parts, numbers, programs = _handy(model, batches, folds, ranks.count)
        except DataError:
            if folds == 1:
                raise
            parts, numbers = folded(batches, folds, whole=True)
            programs = _programs(model, parts, {})
        if views:
            parts, numbers = with_views(parts, numbers, views, seed)
            programs = programs * (1 + len(views))
        remarks = lay_out(model, parts, programs)
        structure = analyse(programs[0])
        made = cls(
            model=model,
            batches=parts,
            structure=structure,
            programs=programs,
            folds=numbers,
            given=batches,
            remarks=remarks,
            ranks=ranks,
        )
        made.check_ranks()
        return made

    @property
    def own(self) -> range:
        """The numbers of the batches that this rank runs: some that follow each other, so that a
        fold stays together where it can.
        """
        return _divided([batch.size for batch in self.batches], self.ranks.count)[self.ranks.rank]

    def check_ranks(self) -> None:
        """Refuse fewer batches than ranks."""
        if len(self.batches) < self.ranks.count:
            raise DataError(
                f"{sum(b.size for b in self.given)} inputs in {len(self.batches)} batches cannot be "
                f"divided among the {self.ranks.count} ranks of the job; give as many batches, or "
                "start fewer ranks"
            )

    def whole(self) -> Calibration:
        """The same with all batches run by every rank."""
        return replace(self, ranks=ALONE)

    @property
    def n_folds(self) -> int:
        """Into how many folds the batches are divided."""
        return 1 + max(self.folds, default=0)

    @property
    def judged(self) -> int:
        """Of how many folds, the first, there is a version of the model that was fitted without."""
        if self.n_folds < 2:
            return 0
        size = sum(p.nbytes for p in self.model.parameters())
        pairs = zip(self.batches, self.folds, strict=True)
        first = sum(batch.size for batch, fold in pairs if fold == 0)
        most = JUDGED_BYTES if first < JUDGED_INPUTS else min(JUDGED_BYTES, MANY_BYTES)
        return self.n_folds if size * self.n_folds <= most else 1

    def on(self, batches: Sequence[Batch]) -> Calibration:
        """The same model and structure with other batches."""
        known = {signature(b.inputs): p for b, p in zip(self.batches, self.programs, strict=True)}
        programs = _programs(self.model, batches, known, "the data")
        remarks = lay_out(self.model, batches, programs, self.structure.program.layouts)
        return Calibration(
            model=self.model,
            batches=batches,
            structure=self.structure,
            programs=programs,
            given=batches,
            remarks=remarks,
        )

    def start(self) -> Run:
        """A run of the dense model, before its first operation."""
        tensors, numbers = model_tensors(self.model, self.structure.program), self.own
        programs = [self.programs[i] for i in numbers]
        envs = [self.programs[i].bind(self.batches[i].inputs) for i in numbers]
        known = [masks(self.batches[i].inputs) for i in numbers]
        folds = [self.folds[i] for i in numbers] if self.folds else None
        share = RankShare(self.ranks, numbers, self.programs, self.n_folds)
        run = Run(programs, envs, tensors, folds, known, share)
        run.fuse = {}
        return run

    def contents(self) -> Iterator[tuple[str, Any]]:
        """Everything that results depend on, for a hash: weights, inputs and labels, operations."""
        yield from sorted(self.start().tensors.items())
        for batch in self.batches:
            for x in tree_flatten((batch.inputs, batch.labels))[0]:
                yield "batch", x
        yield "", [str(op.func) for op in self.structure.program.ops]


def _divided(sizes: Sequence[int], count: int) -> list[range]:
    """Which batches each rank runs: about as many inputs as the others, and at least one batch."""
    total, bounds = sum(sizes), [0]
    ends = list(itertools.accumulate(sizes))
    for rank in range(1, count):
        wanted, least, most = total * rank / count, bounds[-1] + 1, len(sizes) - (count - rank)
        near = min(range(least, most + 1), key=lambda n: abs(ends[n - 1] - wanted))
        bounds.append(near)
    return [range(a, b) for a, b in itertools.pairwise([*bounds, len(sizes)])]


def _handy(
    model: nn.Module, batches: Sequence[Batch], folds: int, ranks: int
) -> tuple[list[Batch], list[int], list[Program]]:
    """Batches in folds, the folds' numbers, and programs; batches with large values are divided,
    and all if there are fewer than ranks.

    Of logits over a large vocabulary, say, or maps of large images, only those of a few inputs are
    then ever there at once.
    """
    known: dict[Any, Program] = {}
    parts, numbers = folded(batches, folds)
    programs = _programs(model, parts, known)
    most = min(_portion(p, b.size) for p, b in zip(programs, parts, strict=True))
    if len(parts) < ranks:
        most = min(most, max(1, sum(b.size for b in batches) // ranks))
    smaller, others = folded(batches, folds, most=most)
    if len(smaller) == len(parts):
        return parts, numbers, programs
    try:
        return smaller, others, _programs(model, smaller, known)
    except DataError:  # a model that takes other paths for fewer inputs
        return parts, numbers, programs


def _portion(program: Program, size: int) -> int:
    """How many of a batch's inputs may run at once, such that its values are not too large.

    Two, as long as those are not very large: a dimension of length 1 tells less about a model.
    """
    given = {v.storage for v in program.values.values() if v.source != "op"}
    sizes: dict[int, int] = {}  # by storage: views of a value, or of a parameter, are nothing new
    for v in program.values.values():
        if v.storage not in given:
            nbytes = math.prod(v.shape) * v.dtype.itemsize
            sizes[v.storage] = max(nbytes, sizes.get(v.storage, 0))
    largest, together = max(sizes.values(), default=0), sum(sizes.values())
    excess = max(largest / VALUE_BYTES, together / ALL_BYTES)
    if excess <= 1:
        return size
    share = size / excess
    return max(2 if 4 * share >= 2 else 1, int(share))


def _programs(
    model: nn.Module,
    batches: Sequence[Batch],
    known: dict[Any, Program],
    what: str = "the calibration data",
) -> list[Program]:
    """The program of every batch; batches of a shape in `known` share it, and all must take the
    same path.
    """
    programs = []
    for batch in batches:
        key = signature(batch.inputs)
        if key not in known:
            known[key] = _record(model, batch, what)
        programs.append(known[key])
    main = [str(op.func) for op in next(iter(known.values())).ops]
    for program in known.values():
        if [str(op.func) for op in program.ops] != main:
            raise DataError(
                "the model takes another path for batches of another shape; give batches "
                "that all have the same shape"
            )
    return programs


def _record(model: nn.Module, batch: Batch, what: str) -> Program:
    program = record_given(model, batch.inputs, what)
    given = [x for x in flat_tensors(batch.inputs) if x.is_floating_point()]
    made = program.values[program.answer].shape
    if given and all(x.ndim == 1 for x in given) and made[:1] != given[0].shape:
        raise DataError(
            f"data of shape {tuple(given[0].shape)} seems to be one input, for which the model gives "
            f" {tuple(made)}; inputs have the batch first: give many, [N, …]"
        )
    return program
