"""Labels: which position of which tensor dimension belongs to which unit.

Every position of every dimension of every parameter gets an integer id. Operations tie ids ("if one
goes, the other goes"), freeze them ("cannot go, because …"), or re-index them. When a dimension is
split in two (features into heads × head size), or two are merged, a `Frame` remembers that a
position of the flat dimension is a pair of positions; since the kept part must stay a rectangle,
just one of the axes of a frame can be cut, and `LabelSpace.solve` chooses which.

A worked example: two linear layers with a ReLU between them.

>>> import torch
>>> from torch import nn
>>> from subprune.program.record import as_inputs, record
>>> from subprune.structure.flow import Flow
>>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
>>> flow = Flow(record(model, as_inputs(torch.zeros(1, 2))))

Before anything has run, each dimension of each parameter has fresh ids:

>>> for (tensor, dim), ids in flow.slots.items():
...     print(f"{tensor} dim {dim}: {ids}")
0.weight dim 0: [0 1 2]
0.weight dim 1: [3 4]
0.bias dim 0: [5 6 7]
2.weight dim 0: [8 9]
2.weight dim 1: [10 11 12]
2.bias dim 0: [13 14]

The walk ties what the operations join. The first layer's outputs go with its biases, and with the
columns of the second layer that read them (the ReLU hands their ids on); what meets the model's
input or is its output cannot go. The component of an id is named after its smallest member:

>>> flow.walk()
>>> component, reasons = flow.space.solve()
>>> print(component)
[0 1 2 3 4 0 1 2 8 9 0 1 2 8 9]
>>> sorted(reasons)
[3, 4, 8, 9]
>>> reasons[8]
"is part of the model's output"

So components 0, 1 and 2 are units, three hidden neurons: neuron 1 is row 1 of the first weight,
bias 1 and column 1 of the second weight (ids 1, 6 and 11).

A dimension of 6 features that is viewed as 2 × 3 gets ids for both axes. If the longer one is cut,
features that share a position on it (0 and 3, 1 and 4, 2 and 5) become one unit, and the other axis
stays:

>>> space = LabelSpace()
>>> features = space.new(6)
>>> space.split((features,), [2, 3], "a view")
[(array([6, 7]),), (array([ 8,  9, 10]),)]
>>> component, reasons = space.solve()
>>> print(component)
[0 1 2 0 1 2 6 7 0 1 2]
>>> sorted(reasons)
[6, 7]
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from subprune.structure.components import Ids, components

__all__ = ["FREE", "Dim", "Frame", "LabelSpace"]

# alternative ids of one dimension, all tied position by position; the first is the main one
Dim = tuple[Ids, ...]
# the same content at every position of a dimension made by repetition: it follows the others
FREE: Dim = ()
_MAX_ALTERNATIVES = 4


@dataclass(eq=False)
class Frame:
    """`flat[i, j, …]` is the id of the pair of positions ``axes[0][i], axes[1][j], …``."""

    flat: Ids
    axes: tuple[Ids, ...]
    where: str
    chosen: int | None = None


class LabelSpace:
    """All ids, what ties them, and why some cannot go."""

    def __init__(self) -> None:
        self.size = 0
        self._blocks: dict[int, int] = {}  # first id of every call of `new` → how many
        self.pairs: list[tuple[Ids, Ids]] = []
        self.frozen: list[tuple[Ids, str]] = []
        self.frames: list[Frame] = []
        self.batch: list[Ids] = []  # served as the batch of a product of two activations: heads
        self.mixed: list[Ids] = []  # summed over in a product of two activations: head size
        # first id of an axis made by a split → its frame and axis
        self._home: dict[int, tuple[Frame, int]] = {}
        self._starts: list[int] = []  # the keys of `_home`, which only grow
        self._known: dict[tuple[bytes, tuple[int, ...]], Frame] = {}

    def new(self, count: int) -> Ids:
        """Fresh ids."""
        ids = np.arange(self.size, self.size + count, dtype=np.int64)
        if count:
            self._blocks[self.size] = count
        self.size += count
        return ids

    def tie(self, a: Ids, b: Ids) -> None:
        """Position by position: both go or both stay."""
        if a is not b and a.size:
            self.pairs.append((a.ravel(), np.broadcast_to(b, a.shape).ravel()))

    def freeze(self, ids: Ids | Dim | None, reason: str) -> None:
        """None of these can go."""
        for x in ids if isinstance(ids, tuple) else (ids,):
            if x is not None and x.size:
                self.frozen.append((x.ravel(), reason))

    def unify(self, dims: Iterable[Dim | None]) -> Dim | None:
        """Tie dimensions of equal size; the result knows the alternatives of all."""
        alternatives: list[Ids] = []
        for dim in dims:
            for ids in dim or ():
                if not any(ids is x or np.array_equal(ids, x) for x in alternatives):
                    alternatives.append(ids)
        for ids in alternatives[1:]:
            self.tie(alternatives[0], ids)
        return tuple(alternatives[:_MAX_ALTERNATIVES]) or None

    # ---- views -----------------------------------------------------------------------------------

    def split(self, dim: Dim | None, sizes: Sequence[int], where: str) -> list[Dim | None]:
        """Labels of the dimensions that one dimension is split into."""
        if not dim or len(sizes) <= 1:
            return [dim] * len(sizes)
        # An alternative that varies along a single axis is that axis: it needs no frame.
        for ids in dim:
            flat = ids.reshape(sizes)
            live = _live_axes(flat)
            if len(live) == 1:
                axis = np.moveaxis(flat, live[0], 0).reshape(flat.shape[live[0]], -1)[:, 0]
                return [(axis,) if i == live[0] else None for i in range(len(sizes))]
        flat = dim[0].reshape(sizes)
        live = _live_axes(flat)
        if not live:  # one unit all over: it can only go with everything
            self.freeze(dim, f"a single unit fills the whole dimension ({where})")
            return [None] * len(sizes)
        # Axes along which nothing varies take no part in the frame.
        core = flat[tuple(slice(None) if i in live else 0 for i in range(flat.ndim))]
        frame = self._frame(core, where)
        axes = iter(frame.axes)
        return [(next(axes),) if i in live else None for i in range(len(sizes))]

    def _frame(self, flat: Ids, where: str, axes: tuple[Ids, ...] | None = None) -> Frame:
        """The frame of these flat ids: the known one, or a new one with fresh ids for its axes.

        Axes that are given are tied to those of a frame that is known already.
        """
        key = (flat.tobytes(), flat.shape)
        frame = self._known.get(key)
        if frame is None:
            frame = Frame(flat, axes or tuple(self.new(n) for n in flat.shape), where)
            self._known[key] = frame
            self.frames.append(frame)
            if axes is None:
                for i, axis in enumerate(frame.axes):
                    self._home[int(axis[0])] = (frame, i)
                    self._starts.append(int(axis[0]))
        elif axes is not None:
            for mine, theirs in zip(frame.axes, axes, strict=True):
                self.tie(mine, theirs)
        return frame

    def merge(self, dims: Sequence[Dim | None], sizes: Sequence[int], where: str) -> Dim | None:
        """Labels of the dimension that several are merged into."""
        labelled = [i for i, d in enumerate(dims) if d]
        if not labelled:
            return self._merge_free(dims, sizes)
        if len(labelled) == 1:
            i = labelled[0]
            return tuple(_spread(ids, i, sizes) for ids in dims[i] or ())
        flat = self._flat([dims[i] or () for i in labelled], where)
        shape = [sizes[i] if i in labelled else 1 for i in range(len(sizes))]
        return (np.broadcast_to(flat.reshape(shape), tuple(sizes)).ravel(),)

    def _merge_free(self, dims: Sequence[Dim | None], sizes: Sequence[int]) -> Dim | None:
        """Repetition next to positions that cannot go:
        fresh ids, which follow whatever they meet.
        """
        free = [i for i, d in enumerate(dims) if d == FREE]
        if not free or len(free) == len(dims):
            return FREE if free else None
        shape = [sizes[i] if i in free else 1 for i in range(len(sizes))]
        return (
            np.broadcast_to(self.new(int(np.prod(shape))).reshape(shape), tuple(sizes)).ravel(),
        )

    def _flat(self, dims: list[Dim], where: str) -> Ids:
        """Ids of the pairs: from the frame the axes come from, or from a new one."""
        # Splitting and merging back (features → heads × size → features) must give the same ids.
        for first in dims[0]:
            home = self._axis_of(first)
            if home is None:
                continue
            flat = self._lookup(home[0], dims)
            if flat is not None:
                return flat
        axes = tuple(d[0] for d in dims)
        key = (b"merge" + b"|".join(a.tobytes() for a in axes), tuple(a.size for a in axes))
        frame_ = self._known.get(key)
        if frame_ is None:
            flat = self.new(int(np.prod([a.size for a in axes]))).reshape([a.size for a in axes])
            frame_ = Frame(flat, axes, where)
            self.frames.append(frame_)
            self._known[key] = frame_
            self._known[(flat.tobytes(), flat.shape)] = frame_
        return frame_.flat

    def _lookup(self, frame: Frame, dims: list[Dim]) -> Ids | None:
        """The frame's flat ids in the order of the dimensions, if these are just its axes."""
        order: list[int] = []
        index: list[Ids] = []
        for dim in dims:
            for axis in range(len(frame.axes)):
                positions = self._positions(frame, axis, dim)
                if axis not in order and positions is not None:
                    order.append(axis)
                    index.append(positions)
                    break
        if len(order) != len(dims) or len(order) != len(frame.axes):
            return None
        return frame.flat.transpose(order)[np.ix_(*index)]

    def _axis_of(self, ids: Ids) -> tuple[Frame, int] | None:
        """The frame and the axis that these ids were made for by a split; None for other ids."""
        low = int(ids.min())
        # the last axis that begins at or before them, if they lie inside it
        at = bisect_right(self._starts, low) - 1
        if at < 0:
            return None
        frame, axis = self._home[self._starts[at]]
        return (frame, axis) if low < self._starts[at] + frame.axes[axis].size else None

    def _positions(self, frame: Frame, axis: int, dim: Dim) -> Ids | None:
        """Positions on an axis of the frame that the dimension consists of, if it does."""
        start, size = int(frame.axes[axis][0]), frame.axes[axis].size
        for ids in dim:
            if ids.size and int(ids.min()) >= start and int(ids.max()) < start + size:
                return ids - start
        return None

    def subframe(self, dims: Sequence[Dim | None], gone: Dim, position: int) -> list[Dim | None]:
        """Labels of the other dimensions after one position of dimension `gone` was picked."""
        result = list(dims)
        home = self._axis_of(gone[0])
        if home is None:
            return result
        frame, axis = home
        # `where`: for every other axis of the frame, the dimension that holds it
        others = [i for i in range(len(frame.axes)) if i != axis]
        where = [
            next(
                (j for j, d in enumerate(dims) if d and self._positions(frame, i, d) is not None),
                -1,
            )
            for i in others
        ]
        if -1 in where:
            return result
        # The picked slice of the frame: its flat ids stand for the other axes from now on.
        at = int(gone[0][position]) - int(frame.axes[axis][0])
        index = [  # of each other axis, which of its positions the dimension consists of
            self._positions(frame, i, dims[j] or ()) for i, j in zip(others, where, strict=True)
        ]
        flat = np.take(frame.flat, at, axis=axis)[np.ix_(*[p for p in index if p is not None])]
        # What is left of two axes is one: its ids are the flat ones. Of more, it is a frame again.
        if flat.ndim == 1:
            new_axes: list[Ids] = [flat]
        else:
            new_axes = list(self._frame(np.ascontiguousarray(flat), frame.where).axes)
        for j, ids in zip(where, new_axes, strict=True):
            old = dims[j] or ()
            self.tie(ids, old[0])
            result[j] = (ids, *old)[:_MAX_ALTERNATIVES]
        return result

    # ---- solution --------------------------------------------------------------------------------

    def solve(self) -> tuple[Ids, dict[int, str]]:
        """Component of every id, and the reason of every frozen component."""
        open_ = list(self.frames)
        root = self._components()
        # Two rounds of choices that are forced, since settling one frame may force another; then
        # the rest is decided by preference.
        for bold in (False, False, True):
            frozen = self._mark(root, [ids for ids, _ in self.frozen])
            batch, mixed = self._mark(root, self.batch), self._mark(root, self.mixed)
            waiting, done = [], len(self.pairs)  # ties before this round are in `root`
            for frame in open_:
                choice = self._choose(frame, root, frozen, batch, mixed, bold)
                if choice is None:
                    waiting.append(frame)
                else:
                    self._settle(frame, choice)
            open_ = waiting
            root = components(self.size, self.pairs[done:], root)
        reasons: dict[int, str] = {}
        for ids, reason in self.frozen:
            for r in np.unique(root[ids]).tolist():
                reasons.setdefault(r, reason)
        return root, reasons

    def _components(self) -> Ids:
        """Components of all ties; those of whole dimensions, which are most, as blocks."""
        # Union-find on whole blocks of ids, each named by its first id; what ties only parts of
        # blocks is left to `components`.
        leader = {start: start for start in self._blocks}

        def find(x: int) -> int:
            while leader[x] != x:
                leader[x] = leader[leader[x]]
                x = leader[x]
            return x

        partial = []
        for a, b in self.pairs:
            if self._is_block(a) and self._is_block(b) and a.size == b.size:
                low, high = sorted((find(int(a[0])), find(int(b[0]))))
                leader[high] = low
            else:
                partial.append((a, b))
        known = np.arange(self.size, dtype=np.int64)
        for start, count in self._blocks.items():
            if leader[start] != start:
                first = find(start)
                known[start : start + count] = np.arange(first, first + count)
        return components(self.size, partial, known)

    def _is_block(self, ids: Ids) -> bool:
        """Whether these are the ids of one call of `new`, all of them and in order."""
        first = int(ids[0])
        return (
            self._blocks.get(first) == ids.size
            and int(ids[-1]) == first + ids.size - 1
            and _rising(ids)
        )

    def _mark(self, root: Ids, sets: list[Ids]) -> NDArray[np.bool_]:
        """Components that some of these ids belong to: [ids] bool, by their smallest member."""
        marked = np.zeros(self.size, dtype=bool)
        for ids in sets:
            marked[root[ids]] = True
        return marked

    def _choose(
        self,
        frame: Frame,
        root: Ids,
        frozen: NDArray[np.bool_],
        batch: NDArray[np.bool_],
        mixed: NDArray[np.bool_],
        bold: bool,
    ) -> int | None:
        """The axis to cut: heads before others, then what is not summed over, then the longest.

        Returns -1 if no axis can be cut, None if the choice should wait for other frames'.
        """
        # An axis can be cut if some of its positions can go.
        able = [i for i, axis in enumerate(frame.axes) if not frozen[root[axis]].all()]
        if not able:
            return -1
        heads = [i for i in able if batch[root[frame.axes[i]]].any()]
        if len(able) == 1 or len(heads) == 1:
            return heads[0] if heads else able[0]
        if not bold:
            return None
        plain = [i for i in able if not mixed[root[frame.axes[i]]].any()] or able
        return max(heads or plain, key=lambda i: (frame.axes[i].size, -i))

    def _settle(self, frame: Frame, choice: int) -> None:
        """Cut the frame along one axis: its positions go with all flat ids at them, others stay."""
        frame.chosen = choice
        for i, axis in enumerate(frame.axes):
            if i == choice:
                flat = np.moveaxis(frame.flat, i, 0)
                self.tie(flat, axis.reshape(-1, *[1] * (flat.ndim - 1)))
            else:
                self.freeze(axis, f"the other side of a split dimension is cut ({frame.where})")
        if choice < 0:
            self.freeze(frame.flat, f"no side of a split dimension can be cut ({frame.where})")


def _live_axes(flat: Ids) -> list[int]:
    """Axes along which the ids vary."""
    live = []
    for i, n in enumerate(flat.shape):
        if n > 1 and not np.array_equal(
            np.take(flat, range(1, n), axis=i), np.take(flat, range(n - 1), axis=i)
        ):
            live.append(i)
    return live


def _rising(ids: Ids) -> bool:
    """Whether each id is one more than the id before it."""
    return bool((ids[1:] - ids[:-1] == 1).all())


def _spread(ids: Ids, axis: int, sizes: Sequence[int]) -> Ids:
    """Ids [sizes[axis]] of one axis, repeated along the others and flattened: [prod(sizes)]."""
    shape = [1] * len(sizes)
    shape[axis] = sizes[axis]
    return np.broadcast_to(ids.reshape(shape), tuple(sizes)).ravel()
