"""Forward runs of all batches that stop between two operations, and go on from there.

A `Run` holds, for every batch, the values that are alive between two operations, and advances:
nothing is ever computed from the start again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor

from subprune.program import parallel
from subprune.program.layout import counted, over_rows
from subprune.program.ops import activation
from subprune.program.program import flat_tensors
from subprune.program.ranks import ALONE, Ranks
from subprune.program.shelf import RUN_BYTES, rest, shelved
from subprune.statistics.moments import pooled

if TYPE_CHECKING:
    from subprune.program.fuse import Folds
    from subprune.program.program import Op, Override, Program
    from subprune.structure.groups import Consumer, Group

__all__ = ["Passage", "RankShare", "Run"]

Outcome = TypeVar("Outcome")


@dataclass(frozen=True)
class RankShare:
    """Which of all batches a run has, where several ranks run some each."""

    ranks: Ranks
    numbers: Sequence[int]
    every: Sequence[Program]  # of all batches of all ranks
    folds: int  # of all of them

    @classmethod
    def whole(cls, programs: Sequence[Program], folds: Sequence[int] | None) -> RankShare:
        """All batches are here."""
        return cls(ALONE, range(len(programs)), programs, 1 + max(folds or [0]))


class Run:
    """A forward run of all batches, stopped between two operations."""

    def __init__(
        self,
        programs: Sequence[Program],
        envs: list[dict[int, Tensor]],
        tensors: dict[str, Tensor],
        folds: Sequence[int] | None = None,
        masks: Sequence[Mapping[str, Tensor]] | None = None,
        share: RankShare | None = None,
    ) -> None:
        self.programs, self.envs, self.tensors = programs, envs, tensors
        self.share = RankShare.whole(programs, folds) if share is None else share
        self.masks = [{}] * len(envs) if masks is None else masks  # of each batch, by name
        self.folds = [0] * len(envs) if folds is None else folds  # fold of each batch
        self.versions: list[dict[str, Tensor]] = []
        """Tensors of the model fitted without each of the first folds, which that fold runs through;
        the others run through one.
        """
        self._fused: dict[int, Folds] = {}  # folded weights of each version
        self.position = 0
        self.override: dict[int, Override] = {}
        # a dict where operations may run as one, equal up to rounding
        self.fuse: Folds | None = None
        self.trail: list[int] = []
        """Where it has stopped since it was forked; a run that stops there too computes the same
        to the last bit, since operations run as one only between two stops.
        """
        # norms whose mean and variance are re-estimated on the way
        self.renew: Mapping[int, tuple[str, str]] = {}

    @property
    def on_cpu(self) -> bool:
        """Whether the model is computed on the CPU, whose cores can be divided; other devices
        have one queue.
        """
        return all(x.device.type == "cpu" for x in self.tensors.values())

    @property
    def ranks(self) -> Ranks:
        """Those who run the other batches of the same inputs."""
        return self.share.ranks

    @property
    def numbers(self) -> Sequence[int]:
        """Of each batch, its number among those of all ranks."""
        return self.share.numbers

    @property
    def n_folds(self) -> int:
        """Into how many folds all inputs are divided, those of other ranks too."""
        return self.share.folds

    def fork(self) -> Run:
        """A second run that goes on from here; the values are shared, the state is not."""
        envs = [dict(env) for env in self.envs]
        other = Run(self.programs, envs, self.tensors, self.folds, self.masks, self.share)
        other.position, other.override, other.fuse = self.position, dict(self.override), self.fuse
        other.renew, other.versions, other._fused = self.renew, self.versions, self._fused
        return other

    def tensors_of(self, batch: int) -> dict[str, Tensor]:
        """The parameters and buffers that a batch is computed with."""
        fold = self.folds[batch]
        return self.versions[fold] if fold < len(self.versions) else self.tensors

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
            # Up to the norm, its moments over all batches, and on with these.
            self._advance(norm, override)
            inputs = [self._normed(norm, i) for i in range(len(self.envs))]
            moments = pooled(inputs, self.ranks)
            new = {
                name: x.to(self.tensors[name])
                for name, x in zip(self.renew[norm], moments, strict=True)
            }
            self.tensors = {**self.tensors, **new}
            self.versions = [{**version, **new} for version in self.versions]
        self._advance(stop, override)

    def _advance(self, stop: int, override: Mapping[int, Override]) -> None:
        if stop <= self.position:
            return

        def one(batch: int) -> None:
            self._go(batch, stop, override)
            self._put_away(batch)

        self.each_batch(one)
        self._stop(stop)

    def _stop(self, position: int) -> None:
        self.position = position
        self.trail.append(position)

    def _put_away(self, batch: int) -> None:
        """Move the values of a batch to files, if those of all batches would fill the memory."""
        env = self.envs[batch]
        size = sum(x.nbytes for x in env.values())
        if size * len(self.envs) > RUN_BYTES and not self.programs[batch].overwrites:
            env.update({vid: shelved(x) for vid, x in env.items()})
        self._rest(batch)

    def _rest(self, batch: int) -> None:
        """Give back the memory of values in files that were read."""
        for x in self.envs[batch].values():
            rest(x)

    def each_batch(self, work: Callable[[int], Outcome]) -> list[Outcome]:
        """What the work on every batch gives, several batches at once."""
        return parallel.each(work, range(len(self.envs)), self._divisible)

    @property
    def _divisible(self) -> bool:
        """Whether several batches may run at once; modules run as a whole may have a state."""
        return self.on_cpu and not self.programs[0].opaque

    def each_fold(self, work: Callable[[int], None]) -> None:
        """Work on every batch; those of one fold one after another, several folds at once.

        Sums of a fold are then the same to the last bit, on however many cores.
        """
        folds = [[i for i, f in enumerate(self.folds) if f == fold] for fold in set(self.folds)]

        def one(batches: Sequence[int]) -> None:
            for i in batches:
                work(i)
                self._rest(i)

        parallel.each(one, folds, self._divisible)

    def past(self, index: int) -> list[Tensor]:
        """Run past an operation; what it gives, the first value of several, batch by batch."""
        self.advance(index)

        def one(batch: int) -> Tensor:
            seen: list[Tensor] = []
            self._go(batch, index + 1, {**self.override, index: _watch(seen)})
            self._put_away(batch)
            value = self.programs[batch].ops[index].outs[0]
            return self.envs[batch].get(value, seen[0])

        values = self.each_batch(one)
        self._stop(index + 1)
        return values

    def each(self, stop: int, watch: Mapping[int, Override] | None = None) -> Iterator[int]:
        """The same one batch at a time: yields the number of every batch when it has arrived."""
        override = {**self.override, **(watch or {})}
        for i in range(len(self.envs)):
            self._go(i, stop, override)
            yield i
        self._stop(max(self.position, stop))

    def finish(self, folds: Collection[int] | None = None) -> Iterator[Tensor | None]:
        """Run to the end, one batch at a time, and yield its first output; the run is used up.

        folds: those that are wanted, None: all; batches of others yield None.
        """
        for i, (program, env) in enumerate(zip(self.programs, self.envs, strict=True)):
            output = None
            if folds is None or self.folds[i] in folds:
                self._go(i, None, self.override)
                output = program.fetch_output(program.answer, env, self.tensors_of(i))
            env.clear()
            yield output
        self.position = len(self.programs[0].ops)

    def answers(self, function: Callable[[Tensor], Outcome]) -> list[Outcome]:
        """Run to the end, several batches at once, and what the function makes of their first
        outputs.

        The run is used up.
        """

        def one(i: int) -> Outcome:
            program, env = self.programs[i], self.envs[i]
            self._go(i, None, self.override)
            outcome = function(program.fetch_output(program.answer, env, self.tensors_of(i)))
            env.clear()
            return outcome

        outcomes = self.each_batch(one)
        self.position = len(self.programs[0].ops)
        return outcomes

    def go_on_from(self, other: Run) -> None:
        """Jump to where a fork of this run has got to."""
        self.envs, self.position = other.envs, other.position

    def argument(self, index: int, batch: int) -> Tensor:
        """The activation that a linear, convolution or norm operation, the next one, is about to
        read.
        """
        program = self.programs[batch]
        op = program.ops[index]
        value: Tensor = program.argument(
            op, activation(op), self.envs[batch], self.tensors_of(batch)
        )
        return value

    def counted(self, value: int, batch: int) -> Tensor | None:
        """Which positions of a value count, its other dimensions of length 1; None: all do."""
        return counted(self.programs[batch], self.masks[batch], value)

    def counted_rows(self, consumer: Consumer, batch: int) -> Tensor | None:
        """Which rows of a consumer's output count, [..., 1] or [N, 1, *out]; None: all do."""
        positions = self.counted(consumer.use.output, batch)
        if positions is None:
            return None
        shape = self.programs[batch].values[consumer.use.output].shape
        return over_rows(positions, shape, consumer.use.product.output)

    def _normed(self, norm: int, batch: int) -> Tensor:
        """What a norm is about to read, [N, channels, …]; where padding is left out,
        [rows, channels].
        """
        x = self.argument(norm, batch)
        positions = self.counted(self.programs[batch].ops[norm].outs[0], batch)
        if positions is None:
            return x
        return x.movedim(1, -1)[over_rows(positions, x.shape, 1).squeeze(1)]

    def ahead(self, batch: int, ops: Sequence[int], value: int) -> Tensor:
        """A value, made by these operations ahead of the present position; the run stays here."""
        env = self.envs[batch]
        if ops:
            env = dict(env)
            program, tensors = self.programs[batch], self.tensors_of(batch)
            for op in ops:
                program.run(env, tensors, op, op + 1, keep=lambda vid: True, override=self.override)
        return env[value]

    def values(self, vid: int) -> list[Tensor]:
        """One value, batch by batch."""
        return [env[vid] for env in self.envs]

    def outputs(self) -> list[list[Tensor]]:
        """The model's outputs, batch by batch; the run must be at its end."""
        return [
            [program.fetch_output(vid, env, self.tensors_of(i)) for vid in program.outputs]
            for i, (program, env) in enumerate(zip(self.programs, self.envs, strict=True))
        ]


def _watch(seen: list[Tensor]) -> Override:
    """A stand-in for an operation that notes its first result."""

    def run(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = op.func(*args, **kwargs)
        seen.append(flat_tensors(result)[0])
        return result

    return run


class Passage:
    """A run on its way past the groups, in forward order, that remembers the way back where one is
    needed.

    A group that changes norms or means changes values between its first layer and its consumers;
    once it is decided, the run must go on from that first layer. Every run is marked there when it
    comes by; with `mark_all`, for every group, since layers that make its units change too.
    """

    def __init__(self, run: Run, groups: Sequence[Group], mark_all: bool = False) -> None:
        self.run = run
        marked = [g for g in groups if g.narrowings or mark_all]
        self._narrowing = sorted(marked, key=lambda g: g.first_op)
        self._marks: dict[str, Run] = {}

    def go_to(self, group: Group) -> Run | None:
        """Advance to the group's first consumer; the run at the group's first layer, if it changes
        norms. Each group is visited once: its mark, which holds activations, is handed over then.
        """
        self.advance(min(c.use.op for c in group.consumers))
        self._narrowing = [g for g in self._narrowing if g.name != group.name]
        return self._marks.pop(group.name, None)

    def advance(self, stop: int) -> None:
        """Advance to an operation, marking the run wherever it must come back to."""
        for group in self._narrowing:
            if self.run.position <= group.first_op < stop:
                self.run.advance(group.first_op)
                self._marks[group.name] = self.run.fork()
        self.run.advance(stop)
