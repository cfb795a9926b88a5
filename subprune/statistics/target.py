"""What a target is: an object that says what a layer should give, and gathers statistics of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from torch import Tensor

from subprune.statistics.collectors import ConsumerStatistics, summed
from subprune.statistics.columns import column_map
from subprune.statistics.consumers import consumer_weight
from subprune.statistics.folds import FoldedStatistics
from subprune.statistics.place import Gathered, Place, generator
from subprune.statistics.spots import Spots, per_image
from subprune.statistics.trace import Trace

if TYPE_CHECKING:
    from subprune.program.ranks import Ranks
    from subprune.statistics.accumulation import Accumulator
    from subprune.statistics.columns import ColumnMap
    from subprune.statistics.runs import Run
    from subprune.statistics.shared import SharedInputs
    from subprune.structure.groups import Consumer

__all__ = ["PATCHES", "Patches", "Target", "as_gathered", "in_order", "side_by_side"]

Patches = Literal["all", "random"]
PATCHES: tuple[Patches, ...] = ("all", "random")


@dataclass(frozen=True)
class Target(ABC):
    """What the layers that read a group should give."""

    # Convolutions are seen at all patches of each image, or at one random patch for each position
    # of their kernel.
    patches: Patches = "all"
    # Rows of a linear layer count with at most that multiple of the median energy, where Y is made
    # of the rows; None: as they are.
    clip: float | None = None
    # Rows for each column, at least, of convolutions whose maps are so large that all of them would
    # be far more; None: all rows of every layer.
    rows: int | None = None

    role: ClassVar[str] = "target"
    name: ClassVar[str]
    # Whether B comes from the model pruned so far: then a group waits for those before it.
    sees_pruned: ClassVar[bool] = True

    @abstractmethod
    def gather(self, place: Place) -> Gathered:
        """Statistics of all reweightable consumers of the group."""

    @property
    def needs_metric(self) -> bool:
        """Whether errors count with how much the model's output feels them."""
        return False

    def moved(
        self,
        place: Place,
        gathered: Gathered,
        kept: Sequence[int],
        models: Sequence[Mapping[str, Tensor]],
    ) -> Gathered | None:
        """What to fit to next, now that these models were fitted; None: nothing else.

        kept: the units that stay; statistics of the columns of others need not be right. models:
        the model fitted to all inputs, then its version without each fold.
        """
        return None

    @property
    def landed(self) -> bool:
        """Whether errors count where a layer's output lands: after its norm, and by the metric."""
        return False

    @property
    def unbounded(self) -> str:
        """Why the paper's bounds do not apply to what is fitted to it; empty if they do."""
        return ""

    @property
    def repeats(self) -> int:
        """How often `moved` may be asked."""
        return 0

    def _collectors(
        self, place: Place, inputs: Mapping[int, Tensor] | None = None
    ) -> dict[int, list[ConsumerStatistics]]:
        """By operation: one collector for each fold of the inputs.

        inputs: by operation, the input features or channels [q] whose products with targets are
        collected; None: those of all, and of the inputs with each other.
        """
        group, program = place.group, place.current.programs[0]
        sampled = None
        if self.patches == "random":
            sampled = generator(place.seed, group.name, "patches")
        folds = range(place.current.n_folds)
        collectors = {}
        shared = place.inputs if inputs is None else None
        for consumer in in_order(place):
            known = shared is not None and shared.known(consumer, place.current)
            mapping = column_map(consumer, program, f"layer {consumer.name!r}")
            few = None if sampled is not None else self.rows
            places = per_image(place.current, consumer, mapping, few)
            if inputs is not None:
                if consumer.use.op not in inputs:
                    continue
                mapping = mapping.part(inputs[consumer.use.op])
            collectors[consumer.use.op] = [
                ConsumerStatistics(
                    mapping,
                    self._symmetric,
                    generator=sampled,
                    clip=self.clip,
                    gram=inputs is None and not known,
                    places=places,
                )
                for _ in folds
            ]
        return collectors

    def _spots(
        self, place: Place, consumer: Consumer, collector: ConsumerStatistics, batch: int
    ) -> Spots | None:
        """The places at which a batch of a layer is looked at; None: all of them."""
        if collector.places is None or collector.conv is None:
            return None
        shape = place.current.programs[batch].values[consumer.use.output].shape
        of = (consumer.name, str(place.current.numbers[batch]))
        return Spots.drawn(collector.conv, shape, collector.places, place.seed, *of)

    def _each(self, run: Run, work: Callable[[int], None]) -> None:
        """Collect from every batch of a run."""
        if self.patches == "random":  # drawn one after another
            for i in range(len(run.envs)):
                work(i)
            return
        run.each_fold(work)

    _symmetric: ClassVar[bool] = True  # whether Y = B·W, so that C follows from G


def in_order(place: Place) -> list[Consumer]:
    """The consumers whose weights can be fitted, as they run."""
    return sorted(place.group.reweightable, key=lambda c: c.use.op)


def side_by_side(
    consumer: Consumer, current: Run, dense: Run, collectors: Sequence[ConsumerStatistics]
) -> None:
    """Inputs of the pruned run with outputs of the dense run, which passes the consumer."""
    outputs: list[Tensor] = []
    trace = Trace([consumer], lambda n, c, x, y: outputs.append(x if y is None else y))
    dense.advance(consumer.use.op)
    for i in dense.each(consumer.use.op + 1, trace.watch(outputs=True)):
        counted = current.counted_rows(consumer, i)
        x = current.argument(consumer.use.op, i)
        collectors[current.folds[i]].update(x, outputs.pop(), counted)


def as_gathered(
    place: Place,
    collectors: dict[int, list[ConsumerStatistics]],
    *,
    own_weights: bool,
    passed: Run | None = None,
    scales: Mapping[int, Tensor | None] | None = None,
    tensors: Mapping[str, Tensor] | None = None,
    aims: Mapping[int, Sequence[Tensor]] | None = None,
    apart: bool = True,
) -> Gathered:
    """What the collectors saw.

    scales: by operation, what the targets of its outputs are multiplied by; None: by nothing.
    tensors: whose bias the target goes with; None: those of the model that gives the target.
    apart: whether folds stay apart.
    """
    blocks: list[FoldedStatistics] = []
    for consumer in place.group.reweightable:
        op = consumer.use.op
        weight = consumer_weight(consumer, place.current.tensors) if own_weights else None
        scale = None if scales is None else scales[op]
        parts = summed(collectors[op], place.current.ranks, apart)
        if place.inputs is not None:
            parts = _shared(place.inputs, consumer, place.current, parts)
        mapping, removed = collectors[op][0].consumer, place.removed.get(op)
        blocks += _blocks(mapping, parts, weight, removed, scale, place.current.ranks)
    aim = place.current if own_weights else place.dense
    return Gathered.of(
        blocks,
        tensors=aim.tensors if tensors is None else tensors,
        passed=passed,
        aims={} if aims is None else aims,
        factors={} if place.inputs is None else place.inputs.factors,
    )


def _shared(
    inputs: SharedInputs, consumer: Consumer, run: Run, parts: list[list[Accumulator]]
) -> list[list[Accumulator]]:
    """Parts [folds][1] with the sums over inputs that were known, or are from now on."""
    whole_folds = [fold[0] for fold in parts]
    if whole_folds[0].gram:
        inputs.note(consumer, run, whole_folds)
        return parts
    return [[whole] for whole in inputs.with_targets(whole_folds)]


def _blocks(
    mapping: ColumnMap,
    parts: Sequence[Sequence[Accumulator]],
    weight: Tensor | None,
    removed: Tensor | None,
    scale: Tensor | None,
    ranks: Ranks,
) -> list[FoldedStatistics]:
    """One consumer's blocks. parts: [folds][blocks].

    weight: as the layer has it, where it makes the target; removed: [inputs] bool; scale:
    [outputs], what targets are multiplied by; ranks: those who have the same sums.
    """
    count = len(parts[0])
    weights: Sequence[Tensor | None] = [None] * count
    scales: Sequence[Tensor | None] = [None] * count
    if scale is not None:
        scales = scale.chunk(count)
    if weight is not None:
        weights = mapping.weight_blocks(weight)
    blocks = []
    for i, first in enumerate(parts[0]):
        off = None if removed is None else removed.repeat_interleave(first.d // len(removed))
        by_fold = [fold[i] for fold in parts]
        blocks.append(FoldedStatistics(by_fold, weights[i], off, scale=scales[i], ranks=ranks))
    return blocks
