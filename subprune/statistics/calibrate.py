"""Runs the recorded program on the calibration data and turns activations into statistics.

A `Run` holds, for every batch, the values that are alive between two operations, and advances:
nothing is ever computed from the start again. Two runs side by side, one of the dense model and one
of the model pruned so far, give all three forms of the paper.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from subprune.cut.masking import Override, model_tensors
from subprune.data.batches import Batch, folded, signature
from subprune.errors import DataError
from subprune.program import parallel
from subprune.program.fuse import Folds
from subprune.program.record import Op, Program, record_given
from subprune.statistics.batchnorm import pooled
from subprune.statistics.folds import FoldedStatistics
from subprune.statistics.patches import Convolution
from subprune.statistics.statistics import Consumer as Reader
from subprune.statistics.statistics import ConsumerStatistics
from subprune.structure import Consumer, Group, Structure, analyse

__all__ = [
    "FORMS",
    "Calibration",
    "Run",
    "Trace",
    "consumer_weight",
    "group_statistics",
    "input_position",
    "reader",
    "scale_units",
]

FORMS = ("layer", "sequential", "asymmetric")
Found = TypeVar("Found")


class Run:
    """A forward run of all batches, stopped between two operations."""

    def __init__(
        self,
        programs: Sequence[Program],
        envs: list[dict[int, Tensor]],
        tensors: dict[str, Tensor],
        folds: Sequence[int] | None = None,
    ) -> None:
        self.programs, self.envs, self.tensors = programs, envs, tensors
        self.folds = [0] * len(envs) if folds is None else folds  # fold of each batch
        self.versions: list[dict[str, Tensor]] = []
        """Tensors of the model fitted without each fold, which that fold runs through; empty: all
        run through one.
        """
        self._fused: dict[int, Folds] = {}  # folded weights of each version
        self.position = 0
        self.override: dict[int, Override] = {}
        # a dict where operations may run as one, equal up to rounding
        self.fuse: Folds | None = None
        # norms whose mean and variance are re-estimated on the way
        self.renew: Mapping[int, tuple[str, str]] = {}

    @property
    def on_cpu(self) -> bool:
        """Whether the model is computed on the CPU, whose cores can be shared out; other devices
        have one queue.
        """
        return all(x.device.type == "cpu" for x in self.tensors.values())

    def fork(self) -> Run:
        """A second run that goes on from here; the values are shared, the state is not."""
        other = Run(self.programs, [dict(env) for env in self.envs], self.tensors, self.folds)
        other.position, other.override, other.fuse = self.position, dict(self.override), self.fuse
        other.renew, other.versions, other._fused = self.renew, self.versions, self._fused
        return other

    def tensors_of(self, batch: int) -> dict[str, Tensor]:
        """The parameters and buffers that a batch is computed with."""
        return self.versions[self.folds[batch]] if self.versions else self.tensors

    def _fuse_of(self, batch: int) -> Folds | None:
        if self.fuse is None or not self.versions:
            return self.fuse
        return self._fused.setdefault(self.folds[batch], {})

    def _go(self, batch: int, stop: int | None, override: Mapping[int, Override]) -> None:
        """Run one batch from the present position."""
        tensors, fuse = self.tensors_of(batch), self._fuse_of(batch)
        self.programs[batch].run(
            self.envs[batch], tensors, self.position, stop, override=override, fuse=fuse
        )

    def advance(self, stop: int, watch: Mapping[int, Override] | None = None) -> None:
        """Run every batch up to, not including, operation `stop`; `watch` replaces operations on
        the way.
        """
        override = {**self.override, **(watch or {})}
        for norm in sorted(i for i in self.renew if self.position <= i < stop):
            self._advance(norm, override)
            found = pooled([self.argument(norm, i) for i in range(len(self.envs))])
            new = {
                name: x.to(self.tensors[name])
                for name, x in zip(self.renew[norm], found, strict=True)
            }
            self.tensors = {**self.tensors, **new}
            self.versions = [{**own, **new} for own in self.versions]
        self._advance(stop, override)

    def _advance(self, stop: int, override: Mapping[int, Override]) -> None:
        if stop <= self.position:
            return
        for i in range(len(self.envs)):
            self._go(i, stop, override)
        self.position = stop

    def each(self, stop: int, watch: Mapping[int, Override] | None = None) -> Iterator[int]:
        """The same one batch at a time: yields the number of every batch when it has arrived."""
        override = {**self.override, **(watch or {})}
        for i in range(len(self.envs)):
            self._go(i, stop, override)
            yield i
        self.position = max(self.position, stop)

    def finish(self) -> Iterator[Tensor]:
        """Run to the end, one batch at a time, and yield its first output; the run is used up."""
        for i in self.each(len(self.programs[0].ops)):
            program, env = self.programs[i], self.envs[i]
            yield program.fetch_output(program.answer, env, self.tensors_of(i))
            env.clear()

    def answers(self, function: Callable[[Tensor], Found]) -> list[Found]:
        """Run to the end, several batches at once, and what the function makes of their first
        outputs.

        The run is used up.
        """

        def one(i: int) -> Found:
            own, env = self.programs[i], self.envs[i]
            self._go(i, None, self.override)
            found = function(own.fetch_output(own.answer, env, self.tensors_of(i)))
            env.clear()
            return found

        found = parallel.each(one, range(len(self.envs)), self.on_cpu)
        self.position = len(self.programs[0].ops)
        return found

    def go_on_from(self, other: Run) -> None:
        """Jump to where a fork of this run has got to."""
        self.envs, self.position = other.envs, other.position

    def argument(self, index: int, batch: int) -> Tensor:
        """The activation that a linear, convolution or norm operation, the next one, is about to
        read.
        """
        program = self.programs[batch]
        op = program.ops[index]
        return program.arguments(op, self.envs[batch], self.tensors_of(batch))[input_position(op)]

    def values(self, vid: int) -> list[Tensor]:
        """One value, batch by batch."""
        return [env[vid] for env in self.envs]

    def outputs(self) -> list[list[Tensor]]:
        """The model's outputs, batch by batch; the run must be at its end."""
        return [
            [program.fetch_output(vid, env, self.tensors_of(i)) for vid in program.outputs]
            for i, (program, env) in enumerate(zip(self.programs, self.envs, strict=True))
        ]


class Passage:
    """A run on its way past the groups, in forward order, that remembers the way back where one is
    needed.

    A group that changes norms or means changes values between its first layer and its consumers;
    once it is decided, the run must go on from that first layer. Every run is marked there when it
    comes by.
    """

    def __init__(self, run: Run, groups: Sequence[Group]) -> None:
        self.run = run
        self._narrowing = sorted((g for g in groups if g.narrowings), key=lambda g: g.first_op)
        self._marks: dict[str, Run] = {}

    def go_to(self, group: Group) -> Run | None:
        """Advance to the group's first consumer; the run at the group's first layer, if it changes
        norms.
        """
        stop = min(c.use.op for c in group.consumers)
        for other in self._narrowing:
            if self.run.position <= other.first_op < stop:
                self.run.advance(other.first_op)
                self._marks[other.name] = self.run.fork()
        self.run.advance(stop)
        return self._marks.get(group.name)


@dataclass
class Calibration:
    """A model, its batches, and the program of every batch shape."""

    model: nn.Module
    batches: Sequence[Batch]
    structure: Structure
    programs: Sequence[Program]  # one per batch
    folds: Sequence[int] = ()  # of each batch; empty: one fold, nothing is held out
    given: Sequence[Batch] = ()  # the same inputs in the caller's own batches
    # what methods computed for all groups at once
    cache: dict[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, model: nn.Module, batches: Sequence[Batch], folds: int = 1) -> Calibration:
        """Record the model once per shape of batch, its inputs divided into folds.

        A model that takes batches of certain sizes only, or another path for others, has its
        batches dealt out whole.
        """
        parts, numbers = folded(batches, folds)
        try:
            programs = _programs(model, parts, {})
        except DataError:
            if folds == 1:
                raise
            parts, numbers = folded(batches, folds, whole=True)
            programs = _programs(model, parts, {})
        return cls(model, parts, analyse(programs[0]), programs, numbers, batches)

    @property
    def n_folds(self) -> int:
        """Into how many folds the batches are divided."""
        return 1 + max(self.folds, default=0)

    def on(self, batches: Sequence[Batch]) -> Calibration:
        """The same model and structure with other batches."""
        known = {signature(b.inputs): p for b, p in zip(self.batches, self.programs, strict=True)}
        programs = _programs(self.model, batches, known)
        return Calibration(self.model, batches, self.structure, programs, given=batches)

    def start(self) -> Run:
        """A run of the dense model, before its first operation."""
        program = self.structure.program
        tensors = model_tensors(self.model, program)
        envs = [p.bind(b.inputs) for p, b in zip(self.programs, self.batches, strict=True)]
        run = Run(self.programs, envs, tensors, self.folds or None)
        run.fuse = {}
        return run


def _programs(
    model: nn.Module, batches: Sequence[Batch], known: dict[Any, Program]
) -> list[Program]:
    """The program of every batch; batches of a shape in `known` share it, and all must take the
    same path.
    """
    programs = []
    for batch in batches:
        key = signature(batch.inputs)
        if key not in known:
            known[key] = _record(model, batch)
        programs.append(known[key])
    main = [str(op.func) for op in next(iter(known.values())).ops]
    for program in known.values():
        if [str(op.func) for op in program.ops] != main:
            raise DataError(
                "the model takes another path for batches of another shape; give batches that all have the same shape"
            )
    return programs


def _record(model: nn.Module, batch: Batch) -> Program:
    return record_given(model, batch.inputs, "the calibration data")


# ---- one consumer --------------------------------------------------------------------------------


def plain_output(op: Op, args: tuple[Any, ...]) -> tuple[Tensor, Tensor | None]:
    """The product of a linear or convolution operation without its bias, and the bias."""
    if op.kind == "addmm":
        return torch.mm(args[1], args[2]), args[0]
    bias = args[2] if len(args) > 2 else None
    if op.kind in ("mm", "matmul") or bias is None:
        return op.func(*args), None
    return op.func(*args[:2], None, *args[3:]), bias


def with_bias(op: Op, y: Tensor, bias: Tensor | None) -> Tensor:
    if bias is None:
        return y
    return y + (bias.reshape(-1, *[1] * (y.ndim - 2)) if op.kind == "convolution" else bias)


def consumer_weight(consumer: Consumer, tensors: Mapping[str, Tensor]) -> Tensor:
    """The consumer's weight with outputs first: [outputs, inputs / groups, *kernel]."""
    weight = tensors[consumer.use.weight]
    return weight.transpose(0, 1) if consumer.use.in_dim == 0 else weight


def scale_units(consumer: Consumer, tensors: dict[str, Tensor], scale: Tensor) -> None:
    """Multiply the weights that read unit i by scale[i]; the tensor is replaced, never written
    into.
    """
    old = tensors[consumer.use.weight]
    units = torch.as_tensor(consumer.columns)
    factor = torch.where(units >= 0, scale.cpu()[units.clamp(min=0)], 1.0).to(old)
    shape = [1] * old.ndim
    shape[consumer.use.in_dim] = -1
    tensors[consumer.use.weight] = old * factor.reshape(shape)


def input_position(op: Op) -> int:
    """Which argument of a linear, convolution or norm operation is the activation."""
    return 1 if op.kind == "addmm" else 0


def reader(consumer: Consumer, program: Program, where: str) -> Reader:
    """How `statistics` sees the consumer."""
    op = program.ops[consumer.use.op]
    shape = program.values[program.tensors[consumer.use.weight]].shape
    units = torch.as_tensor(consumer.columns).repeat(consumer.groups)
    if consumer.use.kind == "linear":
        return Reader(units, shape[consumer.use.out_dim], None, where)
    stride, padding, dilation = op.args[3:6]
    conv = Convolution.make(shape[2:], stride, padding, dilation, "zeros", consumer.groups)
    return Reader(units, shape[0], conv, where)


class Trace:
    """What passes a group's consumers during an advance of a run: inputs, and outputs without bias."""

    def __init__(
        self,
        consumers: Sequence[Consumer],
        see: Callable[[int, Consumer, Tensor, Tensor | None], None],
    ):
        self.consumers, self.see = consumers, see
        self.batch: dict[int, int] = {}

    def watch(self, outputs: bool) -> dict[int, Override]:
        """Stand-ins for the consumers' operations that report what they see."""
        return {c.use.op: self._stand_in(c, outputs) for c in self.consumers}

    def _stand_in(self, consumer: Consumer, outputs: bool) -> Override:
        def run(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
            number = self.batch.get(op.index, 0)
            self.batch[op.index] = number + 1
            x = args[input_position(op)]
            if not outputs:
                self.see(number, consumer, x, None)
                return op.func(*args, **kwargs)
            y, bias = plain_output(op, (*args, *kwargs.values()))
            self.see(number, consumer, x, y)
            return with_bias(op, y, bias)

        return run


# ---- one group -----------------------------------------------------------------------------------


def group_statistics(
    group: Group,
    form: str,
    current: Run,
    dense: Run,
    generator: torch.Generator | None = None,
    gone: Mapping[int, Tensor] | None = None,
    clip: float | None = None,
) -> tuple[list[FoldedStatistics], Run | None]:
    """Statistics of all reweightable consumers of a group, block by block, in folds.

    Both runs must stand at or before the group's first consumer; they are not moved. ``layer`` and
    ``sequential`` differ only in the run that is given as `current`: the dense one, or the pruned
    one. With a `generator`, convolutions are seen at as many random patches of each image as their
    kernel has positions. `gone` says, by operation, which inputs of a consumer were removed with
    other groups before. With `clip`, rows of a linear consumer count with at most so many times the
    median energy, where the target is made of the rows.

    No consumer is computed twice: the last one only has its input looked at, since its weights are
    about to change; where the target needs the dense outputs, a fork of the dense run that has
    passed all consumers is handed back as well, from which the dense run can go on.
    """
    consumers = sorted(group.reweightable, key=lambda c: c.use.op)
    program, symmetric = current.programs[0], form != "asymmetric"
    folds = 1 + max(current.folds)
    readers = {c.use.op: reader(c, program, f"layer {c.name!r}") for c in consumers}
    gather = {
        op: [
            ConsumerStatistics(own, symmetric, generator=generator, clip=clip) for _ in range(folds)
        ]
        for op, own in readers.items()
    }
    source, passed = current.fork(), None if symmetric else dense.fork()
    for consumer in consumers:
        index = consumer.use.op
        source.advance(index)
        if passed is None:
            for i, fold in enumerate(source.folds):
                gather[index][fold].update(source.argument(index, i))
        else:
            _side_by_side(consumer, source, passed, gather[index])
    blocks = []
    for consumer in group.reweightable:
        op = consumer.use.op
        weight = consumer_weight(consumer, current.tensors) if symmetric else None
        blocks += _blocks(gather[op], weight, (gone or {}).get(op))
    return blocks, passed


def _blocks(
    gathered: Sequence[ConsumerStatistics], weight: Tensor | None, gone: Tensor | None
) -> list[FoldedStatistics]:
    """One consumer's blocks; weight: as the layer has it, where it makes the target; gone: [inputs]
    bool.
    """
    parts = [own.accumulators() for own in gathered]  # [folds][blocks]
    weights = (
        [None] * len(parts[0]) if weight is None else gathered[0].consumer.weight_blocks(weight)
    )
    blocks = []
    for i, first in enumerate(parts[0]):
        off = None if gone is None else gone.repeat_interleave(first.d // len(gone))
        blocks.append(FoldedStatistics([fold[i] for fold in parts], weights[i], off))
    return blocks


def _side_by_side(
    consumer: Consumer, current: Run, dense: Run, gather: Sequence[ConsumerStatistics]
) -> None:
    """Inputs of the pruned run with outputs of the dense run, which passes the consumer, batch by
    batch.
    """
    seen: list[Tensor] = []
    trace = Trace([consumer], lambda n, c, x, y: seen.append(x if y is None else y))
    dense.advance(consumer.use.op)
    for i in dense.each(consumer.use.op + 1, trace.watch(outputs=True)):
        gather[current.folds[i]].update(current.argument(consumer.use.op, i), seen.pop())
