"""Statistics of stride-1 convolutions without patches.

Two columns (channel c, tap u) and (c', tap v) meet at ``Σ_q x[c, q]·x[c', q + v − u]``, where q
runs over the pixels that tap u reads. Away from the border that sum depends on the shift v − u
only: a 3×3 kernel has 13 shifts up to sign instead of 81 products. So each dimension is split into
intervals that are read by the same taps (first line, middle, last line for 3×3 with padding 1), the
products of every shift are made once for every piece of the image, and a tap adds up the pieces it
reads. Nothing is ever subtracted, so a column that sees only zeros is exactly zero.

Pixels come first in memory, [*spatial, images, channels]: then a run of pixels of one image line is
a contiguous matrix, and so is the same run shifted. One batched product does all lines at once,
copies nothing and touches no padding; the lines are summed in float64.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise, product
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from subprune.program import parallel
from subprune.program.onednn import crossed, crossed_each
from subprune.statistics.sums import Products, Totals, sum_device, wide_sum

if TYPE_CHECKING:
    from subprune.statistics.patches import Convolution

__all__ = [
    "ShiftSums",
    "can_shift",
    "shifted_products",
]

_CHUNK = 4 * 2**20  # bytes of input worked on at a time: what stays in the cache
_PRODUCTS = 128 * 2**20  # bytes of products made at a time
_LARGE, _ALONE = 2**14, 2**16  # numbers in a product that is added, and made, by itself
_NARROW = 64  # rows of a product that take less time than adding it up
_MOST = 2000  # products a chunk may need before patches are the better way
_WORTH = 2**26  # multiply-adds of a chunk and shift that are worth a thread of their own

Shift = tuple[int, ...]
Range = tuple[int, int]


class _Line:
    """One spatial dimension: which positions each tap reads,
    and intervals read by the same taps.
    """

    def __init__(self, size: int, taps: int, dilation: int, before: int, after: int) -> None:
        self.size = size  # positions that hold data
        self.out = size + before + after - dilation * (taps - 1)  # output positions
        self.steps = [u * dilation for u in range(taps)]
        starts = [step - before for step in self.steps]  # what tap u reads at output 0
        # From the first to the last position that tap u reads, without padding; and the outputs for
        # which it reads them.
        self.reads = [(min(size, max(0, s)), max(0, min(size, s + self.out))) for s in starts]
        self.outputs = [
            (a - s, max(a, b) - s) for (a, b), s in zip(self.reads, starts, strict=True)
        ]
        # Between two neighbouring ends of such ranges all positions are read by the same taps.
        cuts = sorted({edge for a, b in self.reads if a < b for edge in (a, b)})
        self.intervals: list[Range] = []
        self.readers: list[frozenset[int]] = []  # of each interval
        for a, b in pairwise(cuts):
            taps_here = frozenset(u for u, (c, d) in enumerate(self.reads) if c <= a and b <= d)
            if taps_here:
                self.intervals.append((a, b))
                self.readers.append(taps_here)


class _Plan:
    """Which products a convolution needs on inputs of one size."""

    def __init__(self, conv: Convolution, spatial: tuple[int, ...]) -> None:
        self.padded = conv.padding_mode != "zeros"  # then the padding is data like any other
        self.lines = [
            _Line(
                size + (before + after if self.padded else 0),
                k,
                g,
                *((0, 0) if self.padded else (before, after)),
            )
            for size, (before, after), k, g in zip(
                spatial, conv.padding, conv.kernel_size, conv.dilation, strict=True
            )
        ]
        # Zeros laid out between the inputs of a transposed convolution: products with them vanish.
        self.spread = conv.spread or (1,) * len(spatial)
        self.taps = list(product(*(range(k) for k in conv.kernel_size)))
        # A piece of the image is an interval in every dimension. The last dimension is cut first
        # (`columns`: a run of pixels there is one matrix), the others once the products are made.
        self.columns = range(len(self.lines[-1].intervals))
        # G is symmetric: each pair of taps once
        self.pairs = [(u, v) for i, u in enumerate(self.taps) for v in self.taps[i:]]
        self.wanted = [self._shifts(column) for column in self.columns]
        self.products = [
            (column, shift) for column in self.columns for shift in self.wanted[column]
        ]
        self.pieces = list(product(*(range(len(line.intervals)) for line in self.lines[:-1])))

    def shift(self, u: Shift, v: Shift) -> Shift:
        """From what tap u reads to what tap v reads, in positions."""
        return tuple(
            line.steps[b] - line.steps[a] for line, a, b in zip(self.lines, u, v, strict=True)
        )

    def _shifts(self, column: int) -> list[Shift]:
        """Shifts to be made of an interval of the last dimension, those that meet data only."""
        readers = self.lines[-1].readers[column]
        # a dict, for an order that is the same in every process
        shifts = {self.shift(u, v): None for u, v in self.pairs if u[-1] in readers}
        return [s for s in shifts if self._meets(s) and all(a < b for a, b in self.box(column, s))]

    def _meets(self, shift: Shift) -> bool:
        """Whether a shift leads from inputs to inputs, not to the zeros laid out between them."""
        return all(s % step == 0 for s, step in zip(shift, self.spread, strict=True))

    def box(self, column: int, shift: Shift) -> list[Range]:
        """Positions, whole in all dimensions but the last, for which the shifted one holds data as
        well.
        """
        whole = [(0, line.size) for line in self.lines[:-1]] + [self.lines[-1].intervals[column]]
        return [
            (max(a, -s), min(b, line.size - s))
            for (a, b), s, line in zip(whole, shift, self.lines, strict=True)
        ]

    def reads(self, piece: tuple[int, ...], tap: Shift) -> bool:
        """Whether the tap reads the piece (interval numbers of all dimensions)."""
        return all(u in line.readers[i] for line, i, u in zip(self.lines, piece, tap, strict=True))

    def spans(self, piece: tuple[int, ...]) -> list[Range]:
        """The positions of a piece in all dimensions but the last."""
        return [line.intervals[i] for line, i in zip(self.lines[:-1], piece, strict=True)]

    @property
    def count(self) -> int:
        return len(self.products)


def can_shift(conv: Convolution, spatial: tuple[int, ...]) -> bool:
    """Whether shifts pay: stride 1, several taps, and not too many different shifts."""
    if conv.taps == 1 or len(spatial) != len(conv.kernel_size) or any(s != 1 for s in conv.stride):
        return False
    if math.prod(2 * k - 1 for k in conv.kernel_size) > _MOST:
        return False
    plan = _Plan(conv, spatial)
    return all(line.out > 0 for line in plan.lines) and plan.count <= _MOST


class ShiftSums:
    """Collects the products of inputs of one size, images at a time."""

    def __init__(
        self,
        conv: Convolution,
        spatial: tuple[int, ...],
        channels: int,
        outputs: int,
        gram: bool = True,
    ) -> None:
        self.conv, self.plan, self.gram = conv, _Plan(conv, spatial), gram
        self.channels, self.outputs = channels, outputs
        self.rows = 0
        # pixels of inputs and of their targets, whose products are not made yet
        self._waiting: list[tuple[Tensor, Tensor | None]] = []
        # By (column, shift): [pieces of the other dimensions, C, C] float64
        self._products: dict[tuple[int, Shift], Tensor] = {}
        self._cross: Tensor | None = None  # [taps, C, O] float64
        self._sums: Tensor | None = None  # [taps, C] float64
        self.dtype = torch.float64

    def update(self, x: Tensor, y: Tensor | None) -> Totals:
        """Add x [N, C, *spatial] and its targets y [N, O, *out], of the same floating type."""
        step = self._images(x)
        starts = range(0, len(x), step)
        parts = [self._add(x[i : i + step], None if y is None else y[i : i + step]) for i in starts]
        self.rows += len(x) * math.prod(line.out for line in self.plan.lines)
        self.dtype = x.dtype
        sums, targets = (
            torch.stack([getattr(p, name) for p in parts]).sum(0) for name in ("sums", "targets")
        )
        return Totals(sums, targets, sum(p.energy for p in parts))

    def _images(self, x: Tensor) -> int:
        """How many images are worked on at a time."""
        return max(1, _CHUNK // max(1, x[:1].numel() * x.element_size()))

    def _add(self, x: Tensor, y: Tensor | None) -> Totals:
        pixels = _pixels_first(self.conv.pad(x) if self.plan.padded else x)
        sums = self._add_sums(pixels) if self.gram else self._no_sums(pixels)
        placed = None if y is None else _pixels_first(y)
        self._wait(pixels, placed, self._images(x))
        if placed is None:
            return Totals(sums, sums.new_zeros(0), 0.0)
        each = placed.flatten(0, -3)  # [pixels, N, O]
        # Sums over one pixel in the inputs' own precision, over all pixels in float64.
        energy = torch.linalg.vector_norm(each.flatten(1), dim=1)
        return Totals(sums, wide_sum(each.sum(1), 0), float(wide_sum(energy.square(), 0)))

    def _wait(self, pixels: Tensor, placed: Tensor | None, enough: int) -> None:
        """Multiply pixels with those that wait for others, once there are enough images: products
        of few, and sums of them, are mostly reading and writing the products.
        """
        images = pixels.shape[-2]
        if sum(x.shape[-2] for x, _ in self._waiting) + images > enough:
            self._multiply_waiting()
        self._waiting.append((pixels, placed))
        if images >= enough:
            self._multiply_waiting()

    def _multiply_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        pixels = _joined([x for x, _ in waiting])
        if self.gram:
            self._add_products(pixels)
        targets = [y for _, y in waiting if y is not None]
        if targets:
            self._add_cross(pixels, _joined(targets))

    def _no_sums(self, pixels: Tensor) -> Tensor:
        """Where products of inputs with each other are known, so are their sums."""
        self._sums = wide_sum(pixels[:0].flatten(0, -2), 0).expand(len(self.plan.taps), -1)
        return self._sums.T.flatten()

    def _add_sums(self, pixels: Tensor) -> Tensor:
        """Column sums of every tap: [C·taps]."""
        each = pixels.sum(-2)  # [*spatial, C], over the images
        dims = tuple(range(each.ndim - 1))
        sums_of_taps = []
        for tap in self.plan.taps:
            where = tuple(
                slice(*line.reads[u]) for line, u in zip(self.plan.lines, tap, strict=True)
            )
            sums_of_taps.append(wide_sum(each[where], dims))
        new = torch.stack(sums_of_taps)  # [taps, C]
        self._sums = new if self._sums is None else self._sums + new
        return new.T.flatten()

    def _add_products(self, pixels: Tensor) -> None:
        def add(wanted: tuple[int, Shift]) -> None:
            column, shift = wanted
            box = self.plan.box(column, shift)  # where the first factor lies, and the second:
            moved = [(a + s, b + s) for (a, b), s in zip(box, shift, strict=True)]
            a, b = box[-1]
            if len(box) > 1 and (b - a) * pixels.shape[-2] < _NARROW:
                self._add_narrow(pixels, (column, shift), box)
                return
            for first, made in _batched(pixels, box, pixels, moved):
                self._store(column, shift, [first, *(a for a, _ in box[1:-1])], made)

        parallel.each(add, self.plan.products, _worthwhile(pixels, self.channels))

    def _add_narrow(self, pixels: Tensor, key: tuple[int, Shift], box: list[Range]) -> None:
        """Products of runs of few pixels, such as those at the border: lines of a piece are copied
        to be one matrix, and multiplied at once.
        """
        total, shift = self._total(key, pixels), key[1]
        for number, piece in enumerate(self.plan.pieces):
            ranges = [
                (max(a, c), min(b, d))
                for (a, b), (c, d) in zip(box, self.plan.spans(piece), strict=False)
            ]
            if all(a < b for a, b in ranges):
                ranges.append(box[-1])
                first = tuple(slice(a, b) for a, b in ranges)
                second = tuple(slice(a + s, b + s) for (a, b), s in zip(ranges, shift, strict=True))
                x, y = pixels[first].flatten(0, -2), pixels[second].flatten(0, -2)
                _add_lines(total[number], crossed(x, y))

    def _total(self, key: tuple[int, Shift], like: Tensor) -> Tensor:
        """What products of a shift are added to."""
        if key not in self._products:
            shape = (len(self.plan.pieces), self.channels, self.channels)
            device = sum_device(like.device)
            self._products[key] = torch.zeros(shape, dtype=torch.float64, device=device)
        return self._products[key]

    def _store(self, column: int, shift: Shift, start: list[int], made: Tensor) -> None:
        """Add products [*lines, C, C], the first of line `start`,
        to the pieces the lines lie in.
        """
        total = self._total((column, shift), made)
        if len(self.plan.lines) == 1:
            total[0] += made.to(total)
            return
        for number, piece in enumerate(self.plan.pieces):
            # the part of the lines made that lies in this piece, counted from the first of them
            where = tuple(
                slice(max(0, a - s), max(0, b - s))
                for (a, b), s in zip(self.plan.spans(piece), start, strict=True)
            )
            part = made[where]
            if part.numel():
                _add_lines(total[number], part)

    def _add_cross(self, pixels: Tensor, placed: Tensor) -> None:
        if self._cross is None:
            device = sum_device(pixels.device)
            shape = (len(self.plan.taps), self.channels, self.outputs)
            self._cross = torch.zeros(shape, dtype=torch.float64, device=device)
        total = self._cross

        def add(number: int) -> None:
            tap = self.plan.taps[number]
            reads = [line.reads[u] for line, u in zip(self.plan.lines, tap, strict=True)]
            outputs = [line.outputs[u] for line, u in zip(self.plan.lines, tap, strict=True)]
            if all(a < b for a, b in reads):
                for _, made in _batched(pixels, reads, placed, outputs):
                    _add_lines(total[number], made)

        parallel.each(add, range(len(self.plan.taps)), _worthwhile(pixels, self.outputs))

    def absorb(self, other: ShiftSums) -> None:
        """Add the sums of another, of inputs of the same size, which is used up."""
        self._multiply_waiting()
        other._multiply_waiting()
        self.rows, self.dtype = self.rows + other.rows, other.dtype
        for key in list(other._products):
            products = other._products.pop(key)
            if key in self._products:
                self._products[key] += products
            else:
                self._products[key] = products
        if other._cross is not None:
            self._cross = other._cross if self._cross is None else self._cross + other._cross
        if other._sums is not None:
            self._sums = other._sums if self._sums is None else self._sums + other._sums

    def result(self) -> Products:
        """Everything so far; columns channel by channel."""
        self._multiply_waiting()
        if self._sums is None:
            raise ValueError("no images were seen")
        n, channels = len(self.plan.taps), self.channels
        place = {tap: i for i, tap in enumerate(self.plan.taps)}
        gram = self._sums.new_zeros(channels, n, channels, n) if self.gram else None
        for u, v in self.plan.pairs if gram is not None else ():
            # Column (c, u) times column (c', v): the products of their shift, over the pieces of
            # the image that tap u reads.
            i, j, shift = place[u], place[v], self.plan.shift(u, v)
            block = self._sums.new_zeros(channels, channels)
            for column in self.plan.columns:
                made = self._products.get((column, shift))
                for number, piece in enumerate(self.plan.pieces):
                    if made is not None and self.plan.reads((*piece, column), u):
                        block += made[number]
            assert gram is not None
            gram[:, i, :, j] = block if i != j else (block + block.T) / 2
            if i != j:
                gram[:, j, :, i] = block.T
        d = channels * n
        cross = (
            self._sums.new_zeros(d, 0)
            if self._cross is None
            else self._cross.transpose(0, 1).reshape(d, -1)
        )
        flat = self._sums.new_zeros(0, 0) if gram is None else gram.view(d, d)
        return Products(
            gram=flat,
            cross=cross,
            sums=self._sums.T.flatten(),
            rows=self.rows,
            made_in=self.dtype,
            uneven=0,
        )


def _worthwhile(pixels: Tensor, others: int) -> bool:
    """Whether products with that many other channels are worth a thread each; other devices have
    their own.
    """
    return pixels.device.type == "cpu" and pixels.numel() * others > _WORTH


def _pixels_first(x: Tensor) -> Tensor:
    """x [N, C, *spatial] as a contiguous [*spatial, N, C]."""
    n, c, *spatial = x.shape
    if x.is_contiguous():
        return x.view(n * c, -1).T.contiguous().view(*spatial, n, c)
    return x.movedim((0, 1), (-2, -1)).contiguous()


def _joined(parts: list[Tensor]) -> Tensor:
    """Pixels [*spatial, N, C] of all images together."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, -2)


def _add_lines(total: Tensor, made: Tensor) -> None:
    """Add products [*lines, C, C'] in float64."""
    made = made.reshape(-1, *made.shape[-2:])
    if total.numel() < _LARGE or total.device != made.device:
        total += wide_sum(made, 0)
        return
    for line in made:  # faster than a sum over all that converts on the way
        total += line


def _batched(
    a: Tensor, rows: list[Range], b: Tensor, others: list[Range]
) -> Iterator[tuple[int, Tensor]]:
    """Products of runs of pixels, for every line: ``(first line, [*lines, C, C'])``, in bounded
    memory.
    """
    x = a[tuple(slice(*r) for r in rows)]  # [*lines, run, N, C]
    y = b[tuple(slice(*r) for r in others)]  # [*lines, run, N, C']
    if len(rows) == 1:
        yield rows[0][0], crossed(x.flatten(0, 1), y.flatten(0, 1))
        return
    matrix = max(1, x.shape[-3] * x.shape[-2] * x.shape[-1])  # numbers in one line's matrix of x
    lines_each = max(1, x[0].numel() // matrix)  # lines for one index of the first dimension
    one = lines_each * x.shape[-1] * y.shape[-1]  # numbers in their products
    # Where there are several lines' products, they are copied to be together.
    step = 1 if one >= _ALONE else max(1, _PRODUCTS // (one * x.element_size()))
    for start in range(0, x.shape[0], step):
        p, q = x[start : start + step], y[start : start + step]
        lines = p.shape[:-3]
        made = crossed_each(
            p.reshape(-1, p.shape[-3] * p.shape[-2], p.shape[-1]),
            q.reshape(-1, q.shape[-3] * q.shape[-2], q.shape[-1]),
        )
        yield rows[0][0] + start, made.view(*lines, p.shape[-1], q.shape[-1])


def shifted_products(x: Tensor, y: Tensor | None, conv: Convolution) -> Products:
    """Products of the patches of x [N, C, *spatial] (one group),
    and with targets y [N, O, *out].
    """
    sums = ShiftSums(conv, tuple(x.shape[2:]), x.shape[1], 0 if y is None else y.shape[1])
    sums.update(x, y)
    return sums.result()
