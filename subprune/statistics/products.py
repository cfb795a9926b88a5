"""Targets that are a layer's products with its own weights: B·W or A·W."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from subprune.statistics.arrival import felt_scale
from subprune.statistics.target import Target, as_gathered, in_order, side_by_side

if TYPE_CHECKING:
    from subprune.statistics.place import Gathered, Place
    from subprune.structure.groups import Consumer

__all__ = ["Asymmetric", "Layer", "Sequential"]


@dataclass(frozen=True)
class Sequential(Target):
    """Y = B·W: what the layer gives in the model pruned so far."""

    name: ClassVar[str] = "sequential"
    landed: bool = False
    # Whether the sums of every fold are kept apart, for fits that are judged on them.
    apart: bool = field(default=True, repr=False)

    def gather(self, place: Place) -> Gathered:
        """No consumer is computed twice: the last only has its input looked at."""
        collectors, source = self._collectors(place), place.current.fork()
        for consumer in in_order(place):
            index = consumer.use.op
            source.advance(index)

            def one(i: int, consumer: Consumer = consumer) -> None:
                counted, op = source.counted_rows(consumer, i), consumer.use.op
                collector, x = collectors[op][source.folds[i]], source.argument(op, i)
                spots = self._spots(place, consumer, collector, i)
                x = x if spots is None else spots.rows(x).flatten(1)
                collector.update(x, counted=counted)

            self._each(source, one)
        scales = None
        if self.landed:
            scales = {
                c.use.op: felt_scale(c.landing, place.current.tensors, place.metric)
                for c in place.group.reweightable
            }
        return as_gathered(place, collectors, own_weights=True, scales=scales, apart=self.apart)


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
        for consumer in in_order(place):
            source.advance(consumer.use.op)
            side_by_side(consumer, source, passed, collectors[consumer.use.op])
        return as_gathered(place, collectors, own_weights=False, passed=passed)
