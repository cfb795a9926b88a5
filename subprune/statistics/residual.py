"""The dense model's values where a layer's output lands: after its norm, and the sum it joins."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from subprune.program.precision import single
from subprune.program.shelf import rest
from subprune.statistics.arrival import factors, felt, felt_scale, offset, spread
from subprune.statistics.collectors import summed
from subprune.statistics.consumers import consumer_weight
from subprune.statistics.target import Target, as_gathered, in_order, side_by_side

if TYPE_CHECKING:
    from subprune.statistics.collectors import ConsumerStatistics
    from subprune.statistics.place import Gathered, Place
    from subprune.statistics.runs import Run
    from subprune.statistics.spots import Spots
    from subprune.structure.groups import Consumer
    from subprune.structure.landing import Landing

__all__ = ["Residual"]


@dataclass(frozen=True)
class Residual(Target):
    """Y = what the dense model has where the output lands, less what the pruned one adds there.

    In a residual network a layer then also makes up for what changed in the shortcut. Where only
    ReLU reads the value and the dense one is negative, any negative value is as good: after a fit,
    such targets move to what the layer gives, if that is negative, or to zero, and it is fitted
    again, `rounds` times. With `metric`, errors count with how much the model's output feels them.
    """

    name: ClassVar[str] = "residual"
    _symmetric: ClassVar[bool] = False
    rows: int | None = 64
    rounds: int = 3
    metric: bool = True

    @property
    def landed(self) -> bool:
        return True

    @property
    def needs_metric(self) -> bool:
        return self.metric

    @property
    def unbounded(self) -> str:
        return "layers aim at sums and values that move with the fit (target 'residual')"

    @property
    def repeats(self) -> int:
        return self.rounds

    def gather(self, place: Place) -> Gathered:
        """Both runs; the dense one has passed the landings of all consumers at the end."""
        passed, aims = place.dense.fork(), place.aims
        if not aims and _lands_apart(place.group.reweightable):
            aims = _landed(place.group.reweightable, passed)
        collectors, source = self._collectors(place), place.current.fork()
        for consumer in in_order(place):
            source.advance(consumer.use.op)
            if not aims:
                side_by_side(consumer, source, passed, collectors[consumer.use.op])
                continue
            self._collect(place, consumer, source, aims[consumer.use.op], collectors)
        return as_gathered(
            place,
            collectors,
            own_weights=False,
            passed=passed,
            scales=self._scales(place) if aims else None,
            tensors=place.current.tensors if aims else None,
            aims=aims,
        )

    def _collect(
        self,
        place: Place,
        consumer: Consumer,
        source: Run,
        aims: Sequence[Tensor],
        collectors: Mapping[int, Sequence[ConsumerStatistics]],
    ) -> None:
        """Collect a consumer's inputs in a run that stands before it, with what it should give."""
        index = consumer.use.op

        def one(batch: int) -> None:
            collector, x = collectors[index][source.folds[batch]], source.argument(index, batch)
            spots = self._spots(place, consumer, collector, batch)
            if spots is None:
                y = self._wanted(place, consumer, source, batch, aims[batch])
                collector.update(x, y, source.counted_rows(consumer, batch))
            else:
                y = self._wanted(place, consumer, source, batch, spots.at(aims[batch]), spots)
                collector.update(spots.rows(x).flatten(1), y.flatten(1))
            rest(aims[batch])

        self._each(source, one)

    def _scales(self, place: Place) -> dict[int, Tensor | None]:
        """By operation: what errors of each output count with."""
        return {
            c.use.op: felt_scale(c.landing, place.current.tensors, self._metric(place))
            for c in place.group.reweightable
        }

    def _metric(self, place: Place) -> Mapping[int, Tensor] | None:
        return place.metric if self.metric else None

    def _wanted(
        self,
        place: Place,
        consumer: Consumer,
        run: Run,
        batch: int,
        aim: Tensor,
        spots: Spots | None = None,
    ) -> Tensor:
        """√w·(s − o): what the product should give, as it lands and is felt.

        aim: s, at the places that are looked at.
        """
        landing = consumer.landing
        assert landing is not None
        aim = single(aim)  # a difference of large numbers
        missing = aim - offset(landing, run, batch, run.tensors, aim, spots)
        return felt(missing, landing, self._metric(place))

    def _moving(self, place: Place) -> list[Consumer]:
        """The consumers whose targets move, as they run."""
        if self.rounds < 1:
            return []
        return [c for c in in_order(place) if c.landing is not None and c.landing.rectified]

    def moved(
        self,
        place: Place,
        gathered: Gathered,
        kept: Sequence[int],
        models: Sequence[Mapping[str, Tensor]],
    ) -> Gathered | None:
        """The same inputs with targets that the fitted models make easier; None if none moves.

        An input is judged by the version that was not fitted to it, where there is one.
        """
        moving = self._moving(place)
        if not moving or not gathered.aims:
            return None
        source = place.current.fork()
        # Where patches are drawn, they are drawn for all: those that move then see the same again.
        seen = in_order(place) if self.patches == "random" else moving
        inputs = {c.use.op: _staying(c, kept) for c in seen}
        collectors = self._collectors(place, inputs)
        for consumer in seen:
            index = consumer.use.op
            source.advance(index)
            again = functools.partial(
                self._collect_again,
                place=place,
                consumer=consumer,
                source=source,
                models=models,
                aims=gathered.aims[index],
                inputs=inputs[index],
                collectors=collectors[index],
                moves=consumer in moving,
            )
            self._each(source, again)
        new = {c.use.op: summed(collectors[c.use.op], source.ranks) for c in moving}
        columns = {op: collectors[op][0].columns_of(inputs[op]) for op in new}
        return gathered.with_targets(place.group.reweightable, new, columns)

    def _collect_again(
        self,
        batch: int,
        *,
        place: Place,
        consumer: Consumer,
        source: Run,
        models: Sequence[Mapping[str, Tensor]],
        aims: Sequence[Tensor],
        inputs: Tensor,
        collectors: Sequence[ConsumerStatistics],
        moves: bool,
    ) -> None:
        """Collect one batch of a consumer with targets that its fitted weights make easier.

        inputs: [q], those of its inputs that stay; collectors: one for each fold; moves: whether
        its targets do.
        """
        index, fold = consumer.use.op, source.folds[batch]
        tensors = models[1 + fold] if 1 + fold < len(models) else models[0]
        x, aim, collector = source.argument(index, batch), aims[batch], collectors[fold]
        spots = self._spots(place, consumer, collector, batch)
        counted = source.counted_rows(consumer, batch)
        weight = consumer_weight(consumer, tensors)  # [outputs, inputs / groups, *kernel]
        if spots is not None:  # x: [n, inputs, *kernel]; aim: [n, outputs, 1, …]
            x, aim = spots.rows(x), spots.at(aim)
        # Removed units are zero already; without them there is less to multiply.
        dim = consumer.use.product.features
        if len(inputs) < x.shape[dim]:
            x, weight = _some_inputs(x, dim, inputs), weight.index_select(1, inputs)
        if not moves:
            collector.update(x, aim, counted)
            return
        if spots is not None:  # one row for each place, a linear layer's
            x, weight = x.flatten(1), weight.flatten(1)
        z = single(collector.consumer.output(x, weight))
        z = z if spots is None else z.reshape(aim.shape)
        given = _arrived(consumer, source, batch, tensors, z, spots)
        # What ReLU makes zero anyway may be as negative as the layer likes.
        easier = torch.where(aim < 0, given.clamp(max=0), aim)
        y = self._wanted(place, consumer, source, batch, easier, spots)
        collector.update(x, y if spots is None else y.flatten(1), counted)
        rest(aims[batch])


def _some_inputs(x: Tensor, dim: int, inputs: Tensor) -> Tensor:
    """Some features or channels [q] of x, in the same order in memory."""
    if x.is_contiguous():
        return x.index_select(dim, inputs)
    return x.movedim(dim, -1).index_select(-1, inputs).movedim(-1, dim)


def _staying(consumer: Consumer, kept: Sequence[int]) -> Tensor:
    """The inputs of a consumer that stay: those of kept units, and of none; all of a grouped one."""
    units = torch.as_tensor(consumer.units_of(consumer.columns.size * consumer.groups))
    if consumer.groups > 1:
        return torch.arange(len(units))
    return torch.isin(units, torch.tensor([-1, *kept])).nonzero().flatten()


def _lands_apart(consumers: Sequence[Consumer]) -> bool:
    """Whether every consumer has a landing, and one of its own.

    Two that land in the same sum would each make up for all that changed in it.
    """
    values = [c.landing.value for c in consumers if c.landing is not None]
    return len(set(values)) == len(consumers)


def _landed(consumers: Sequence[Consumer], dense: Run) -> dict[int, list[Tensor]]:
    """By a consumer's operation: the dense run's values at its landing, batch by batch.

    The run goes past them.
    """
    landings: dict[int, list[tuple[int, Landing]]] = {}
    for consumer in consumers:
        assert consumer.landing is not None
        landings.setdefault(consumer.landing.op, []).append((consumer.use.op, consumer.landing))
    values: dict[int, list[Tensor]] = {}
    for op in sorted(landings):
        landed = dense.past(op)
        values.update({consumer_op: landed for consumer_op, _ in landings[op]})
    return values


def _arrived(
    consumer: Consumer,
    run: Run,
    batch: int,
    tensors: Mapping[str, Tensor],
    z: Tensor,
    spots: Spots | None = None,
) -> Tensor:
    """The value at the landing, of a product z of the layer in a model with these tensors."""
    landing = consumer.landing
    assert landing is not None
    factor = factors(landing, tensors)
    scaled = z if factor is None else z * spread(factor, landing, z.ndim).to(z)
    return scaled + offset(landing, run, batch, tensors, z, spots)
