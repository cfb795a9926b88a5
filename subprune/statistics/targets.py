"""What a layer should give, and from which inputs: the Y and the B of the statistics.

`B` are the layer's inputs in the model pruned so far, `A` the same in the dense model, `W` its
weights. A target is a frozen object that gathers statistics at a place; another idea of what a
layer should give is another class here or elsewhere, and a row in `TARGETS`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from torch import Tensor

from subprune.statistics.accumulation import ConsumerStatistics
from subprune.statistics.columns import column_map
from subprune.statistics.consumers import consumer_weight
from subprune.statistics.folds import FoldedStatistics
from subprune.statistics.place import Gathered, Place, generator
from subprune.statistics.trace import Trace

if TYPE_CHECKING:
    from subprune.statistics.runs import Run
    from subprune.structure.groups import Consumer

__all__ = [
    "PATCHES",
    "TARGETS",
    "Asymmetric",
    "Layer",
    "Patches",
    "Sequential",
    "Target",
    "TargetName",
]

TargetName = Literal["layer", "sequential", "asymmetric"]
"""The names, for editors and type checkers."""

Patches = Literal["all", "random"]
PATCHES: tuple[Patches, ...] = ("all", "random")


@dataclass(frozen=True)
class Target(ABC):
    """What the layers that read a group should give."""

    # Convolutions are seen at all patches of each image, or at as many random ones as their kernel
    # has positions.
    patches: Patches = "all"
    # Rows of a linear layer count with at most so many times the median energy, where Y is made of
    # the rows; None: as they are.
    clip: float | None = None

    role: ClassVar[str] = "target"
    name: ClassVar[str]
    # Whether B comes from the model pruned so far: then a group waits for those before it.
    sees_pruned: ClassVar[bool] = True

    @abstractmethod
    def gather(self, place: Place) -> Gathered:
        """Statistics of all reweightable consumers of the group."""

    def _collectors(self, place: Place) -> dict[int, list[ConsumerStatistics]]:
        """By operation: one collector for each fold of the inputs."""
        group, program = place.group, place.current.programs[0]
        sampled = None
        if self.patches == "random":
            sampled = generator(place.seed, group.name, "patches")
        folds = range(1 + max(place.current.folds))
        collectors = {}
        for consumer in _in_order(place):
            mapping = column_map(consumer, program, f"layer {consumer.name!r}")
            collectors[consumer.use.op] = [
                ConsumerStatistics(mapping, self._symmetric, generator=sampled, clip=self.clip)
                for _ in folds
            ]
        return collectors

    _symmetric: ClassVar[bool] = True  # whether Y = B·W, so that C follows from G


@dataclass(frozen=True)
class Sequential(Target):
    """Y = B·W: what the layer gives in the model pruned so far."""

    name: ClassVar[str] = "sequential"

    def gather(self, place: Place) -> Gathered:
        """No consumer is computed twice: the last only has its input looked at."""
        collectors, source = self._collectors(place), place.current.fork()
        for consumer in _in_order(place):
            index = consumer.use.op
            source.advance(index)
            for i, fold in enumerate(source.folds):
                collectors[index][fold].update(source.argument(index, i))
        return _gathered(place, collectors, own_weights=True)


@dataclass(frozen=True)
class Layer(Sequential):
    """Y = A·W from inputs A: the dense model alone, every layer on its own."""

    name: ClassVar[str] = "layer"
    sees_pruned: ClassVar[bool] = False


@dataclass(frozen=True)
class Asymmetric(Target):
    """Y = A·W from inputs B: the model pruned so far aims at the dense model's values."""

    name: ClassVar[str] = "asymmetric"
    _symmetric: ClassVar[bool] = False

    def gather(self, place: Place) -> Gathered:
        """Both runs go on side by side; the dense one has passed all consumers at the end."""
        collectors, source, passed = (
            self._collectors(place),
            place.current.fork(),
            place.dense.fork(),
        )
        for consumer in _in_order(place):
            source.advance(consumer.use.op)
            _side_by_side(consumer, source, passed, collectors[consumer.use.op])
        return _gathered(place, collectors, own_weights=False, passed=passed)


def _in_order(place: Place) -> list[Consumer]:
    """The consumers whose weights can be fitted, as they run."""
    return sorted(place.group.reweightable, key=lambda c: c.use.op)


def _side_by_side(
    consumer: Consumer, current: Run, dense: Run, collectors: Sequence[ConsumerStatistics]
) -> None:
    """Inputs of the pruned run with outputs of the dense run, which passes the consumer."""
    outputs: list[Tensor] = []
    trace = Trace([consumer], lambda n, c, x, y: outputs.append(x if y is None else y))
    dense.advance(consumer.use.op)
    for i in dense.each(consumer.use.op + 1, trace.watch(outputs=True)):
        collectors[current.folds[i]].update(current.argument(consumer.use.op, i), outputs.pop())


def _gathered(
    place: Place,
    collectors: dict[int, list[ConsumerStatistics]],
    *,
    own_weights: bool,
    passed: Run | None = None,
) -> Gathered:
    blocks: list[FoldedStatistics] = []
    for consumer in place.group.reweightable:
        op = consumer.use.op
        weight = consumer_weight(consumer, place.current.tensors) if own_weights else None
        blocks += _blocks(collectors[op], weight, place.removed.get(op))
    whole = tuple(block.whole() for block in blocks)
    aim = place.current if own_weights else place.dense
    return Gathered(blocks=tuple(blocks), statistics=whole, tensors=aim.tensors, passed=passed)


def _blocks(
    collectors: Sequence[ConsumerStatistics], weight: Tensor | None, removed: Tensor | None
) -> list[FoldedStatistics]:
    """One consumer's blocks.

    weight: as the layer has it, where it makes the target; removed: [inputs] bool.
    """
    parts = [collector.accumulators() for collector in collectors]  # [folds][blocks]
    weights: Sequence[Tensor | None] = [None] * len(parts[0])
    if weight is not None:
        weights = collectors[0].consumer.weight_blocks(weight)
    blocks = []
    for i, first in enumerate(parts[0]):
        off = None if removed is None else removed.repeat_interleave(first.d // len(removed))
        blocks.append(FoldedStatistics([fold[i] for fold in parts], weights[i], off))
    return blocks


TARGETS: dict[str, Target] = {t.name: t for t in (Layer(), Sequential(), Asymmetric())}
"""By the name that stands for them."""
