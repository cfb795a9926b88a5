"""What a layer reads, batch by batch, becomes sums over rows.

How the inputs of a convolution become rows is in :mod:`subprune.statistics.patches`, how most do
without in :mod:`subprune.statistics.shifts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from subprune.errors import DataError, OptionError
from subprune.program.precision import single
from subprune.statistics.accumulation import Accumulator
from subprune.statistics.patches import Convolution, conv_rows, random_rows
from subprune.statistics.shifts import ShiftSums, can_shift
from subprune.statistics.sums import MAX_BYTES, clipped, working

if TYPE_CHECKING:
    from subprune.program.ranks import Ranks
    from subprune.statistics.columns import ColumnMap
    from subprune.statistics.statistics import Statistics

__all__ = ["ConsumerStatistics", "summed"]


def _counting(
    rows: Tensor, targets: Tensor | None, counted: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Rows [n, d] and targets [n, m] that count; counted: bool, n of them in any shape."""
    if counted is None:
        return rows, targets
    chosen = counted.reshape(-1).to(rows.device)
    return rows[chosen], None if targets is None else targets[chosen]


class ConsumerStatistics:
    """Collects one consumer's statistics, batch by batch.

    Symmetric form (``weight`` given at :meth:`result`): ``Y = B·W``; call ``update(b)``. Asymmetric
    form: ``Y`` is the dense layer's output without bias; call ``update(b, y=y)``. The two cannot be
    mixed. With a ``generator``, a convolution is seen at as many random patches of each image as
    its kernel has positions, instead of all; the same for b and y. With ``places``, it is given
    rows of patches at that number of places of each image (see
    :mod:`subprune.statistics.spots`). Without ``gram``, only products with y are summed.
    """

    def __init__(
        self,
        consumer: ColumnMap,
        symmetric: bool,
        max_bytes: int = MAX_BYTES,
        generator: torch.Generator | None = None,
        clip: float | None = None,
        gram: bool = True,
        places: int | None = None,
    ) -> None:
        self.conv, self.places = consumer.conv, places
        consumer = consumer if places is None else consumer.flat()
        self.consumer, self.symmetric, self.max_bytes = consumer, symmetric, max_bytes
        self.generator, self.clip, self.gram = generator, clip, gram
        # by the size of the inputs, one per block
        self.shifted: dict[tuple[int, ...], list[ShiftSums]] = {}
        m = 0 if symmetric else consumer.outputs // consumer.groups
        self.parts = [
            Accumulator(len(u), m, u, consumer.where, gram) for u in consumer.column_units()
        ]

    def update(self, b: Tensor, y: Tensor | None = None, counted: Tensor | None = None) -> None:
        """Add one batch.

        b: the consumer's input in the model pruned so far, [..., inputs] or [N, inputs, *spatial];
        y: the dense consumer's output without its bias, [..., outputs] or [N, outputs, *out spatial];
        counted: [..., 1] or [N, 1, *out spatial] bool, which rows count; None: all.
        """
        if (y is None) != self.symmetric:
            form = (
                "symmetric: give b only"
                if self.symmetric
                else "asymmetric: give the dense output y"
            )
            raise OptionError(f"{self.consumer.where}: these statistics are {form}")
        if self.consumer.conv is None:
            targets = None if y is None else y.reshape(-1, y.shape[-1])
            rows, targets = _counting(b.reshape(-1, b.shape[-1]), targets, counted)
            if self.symmetric and self.clip is not None:
                rows = clipped(single(rows), self.clip)
            self._add(rows, targets)
            return
        if self.generator is not None:
            self._add(*random_rows(b, y, self.consumer.conv, self.generator, counted))
            return
        spatial = self.consumer.conv.laid_out(b.shape[2:])
        if counted is None and b.ndim > 2 and can_shift(self.consumer.conv, spatial):
            self._add_shifted(self.consumer.conv.lay_out(b), y, self.consumer.conv)
            return
        for rows, images, lines in conv_rows(b, self.consumer.conv, self.max_bytes):
            part = None if y is None else y[images, :, lines].movedim(1, -1).reshape(-1, y.shape[1])
            chosen = None if counted is None else counted[images, :, lines]
            self._add(*_counting(rows, part, chosen))

    def _add(self, rows: Tensor, targets: Tensor | None) -> None:
        """Share out rows [n, all columns] and targets [n, all outputs] over the blocks."""
        self._check_columns(rows.shape[1])
        for i, part in enumerate(self.parts):
            wanted = None if targets is None else targets[:, i * part.m : (i + 1) * part.m]
            part.update(rows[:, i * part.d : (i + 1) * part.d], wanted, self.max_bytes)

    def _add_shifted(self, b: Tensor, y: Tensor | None, conv: Convolution) -> None:
        """The same for b [N, inputs, *spatial], y [N, outputs, *out], without patches."""
        self._check_columns(b.shape[1] * conv.taps)
        size = tuple(b.shape[2:])
        if size not in self.shifted:
            self.shifted[size] = [
                ShiftSums(conv, size, p.d // conv.taps, p.m, self.gram) for p in self.parts
            ]
        pair = working(*(x for x in (b, y) if x is not None))
        inputs = pair[0].chunk(self.consumer.groups, 1)
        outputs = pair[1].chunk(self.consumer.groups, 1) if len(pair) > 1 else [None] * len(inputs)
        for part, sums, x, target in zip(
            self.parts, self.shifted[size], inputs, outputs, strict=True
        ):
            part.add_totals(sums.update(x, target))

    def _settle(self) -> None:
        """Move what was collected by shifts into the accumulators."""
        for blocks in self.shifted.values():
            for part, sums in zip(self.parts, blocks, strict=True):
                part.add_products(sums.result())
        self.shifted = {}

    def columns_of(self, inputs: Tensor) -> Tensor:
        """The columns of some input features or channels [q], of a layer with one block."""
        taps = 1 if self.conv is None else self.conv.taps
        return (inputs[:, None] * taps + torch.arange(taps)).flatten()

    def _check_columns(self, count: int) -> None:
        if count != sum(part.d for part in self.parts):
            raise DataError(
                f"{self.consumer.where}: the input has {count} columns, but the unit map describes "
                f"{sum(part.d for part in self.parts)}"
            )

    def result(self, weight: Tensor | None = None) -> list[Statistics]:
        """One Statistics per block; the symmetric form needs the layer's weight, as the layer holds
        it.
        """
        if (weight is None) == self.symmetric:
            form = "symmetric: result needs" if self.symmetric else "asymmetric: result takes no"
            raise OptionError(
                f"{self.consumer.where}: these statistics are {form} the layer's weight"
            )
        if weight is None:
            return [part.result() for part in self.accumulators()]
        blocks = self.consumer.weight_blocks(weight)
        return [
            part.result_for_weight(w) for part, w in zip(self.accumulators(), blocks, strict=True)
        ]

    def absorb(self, other: ConsumerStatistics) -> None:
        """Add what another has collected, which is used up."""
        for size, blocks in other.shifted.items():
            known = self.shifted.setdefault(size, blocks)
            if known is not blocks:
                for sums, new in zip(known, blocks, strict=True):
                    sums.absorb(new)
        other.shifted = {}
        for part, more in zip(self.parts, other.parts, strict=True):
            part.absorb(more)

    def accumulators(self) -> list[Accumulator]:
        """The sums so far, one per block."""
        self._settle()
        return self.parts


def summed(
    collectors: Sequence[ConsumerStatistics], ranks: Ranks, apart: bool = True
) -> list[list[Accumulator]]:
    """What one collector for each fold has seen, and its like on other ranks: [folds][blocks].

    The one place where sums over rows become sums over the rows of all ranks. apart: whether folds
    stay apart; else there is one of all, and the collectors but the first are used up.
    """
    if not apart:
        for other in collectors[1:]:
            collectors[0].absorb(other)
        collectors = collectors[:1]
    parts = [collector.accumulators() for collector in collectors]
    if ranks.count == 1:
        return parts
    every = [part for fold in parts for part in fold]
    device = next(part.device for part in every if part.device is not None)
    sums, others = zip(*(part.laid_out(device) for part in every), strict=True)
    ranks.sum([x for one in sums for x in one] + list(others))
    precisions = torch.tensor([part.precision for part in every], dtype=torch.float64)
    ranks.largest([precisions])
    for part, numbers, precision in zip(every, others, precisions.tolist(), strict=True):
        part.settle(numbers, precision)
    return parts
