"""Carries labels through a recorded program, operation by operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from subprune.program.program import Op, Program, Ref
from subprune.structure.labels import FREE, Dim, LabelSpace

if TYPE_CHECKING:
    from subprune.program.ops import Product
    from subprune.structure.components import Ids

__all__ = ["RULES", "Flow", "Origin", "Reduction", "Use", "part_of", "ref", "rule", "take"]

_PARAMETRISED = ".parametrizations."
Rule = Callable[["Flow", Op], None]
RULES: dict[str, Rule] = {}


def rule(*kinds: str) -> Callable[[Rule], Rule]:
    """Register the rule for operations of these kinds;
    a second one for the same kind is an error.
    """

    def register(function: Rule) -> Rule:
        for kind in kinds:
            if kind in RULES:
                raise ValueError(f"there is a rule for {kind!r} already")
            RULES[kind] = function
        return function

    return register


@dataclass(frozen=True, kw_only=True)
class Use:
    """A weight parameter multiplies an activation: the activation's dimension is read, a new one
    made.
    """

    op: int
    product: Product  # the operation's entry in the table
    weight: str
    weight_value: int  # value id of what is multiplied, the parameter or a view of it
    order: tuple[int, ...]  # dimension of the parameter that each dimension of that value is
    bias: str | None  # that is added to the outputs; a consumer's: one that no other layer adds
    input: int  # value id of the activation
    output: int  # value id of the result
    groups: int = 1  # of a grouped convolution
    depthwise: bool = False  # every channel has filters of its own: nothing is summed over channels

    @property
    def in_dim(self) -> int:
        """Dimension of the parameter that is summed over."""
        return self.order[self.product.summed]

    @property
    def out_dim(self) -> int:
        """Dimension of the parameter that becomes the output's."""
        return self.order[self.product.made]


@dataclass(frozen=True)
class Origin:
    """A value that is a parameter, or a part of one, with its dimensions in another order."""

    name: str
    dims: tuple[int, ...]  # dimension of the parameter that each dimension of the value is
    whole: bool = True  # the same elements as the parameter, not just some of them


@dataclass(frozen=True)
class Reduction:
    """An operation that runs over units in a way that zeros are noticed: a norm, a mean,
    a product.
    """

    op: int
    value: int  # the value reduced
    dims: tuple[tuple[int, Dim], ...]  # its dimensions that carry units


class Flow:
    """State of the walk: the labels of every value, and what was noticed on the way."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.space = LabelSpace()
        self.labels: dict[int, list[Dim | None]] = {}
        self.slots: dict[tuple[str, int], Ids] = {}  # (parameter or buffer, dim) → ids
        self.uses: list[Use] = []
        self.reductions: list[Reduction] = []
        self.origin: dict[int, Origin] = {}
        self.unknown: dict[str, str] = {}
        self._slices: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for name, vid in program.tensors.items():
            value = program.values[vid]
            if value.dtype.is_floating_point:
                dims: list[Dim | None] = []
                for i, n in enumerate(value.shape):
                    ids = self.space.new(n)
                    self.slots[name, i] = ids
                    dims.append((ids,))
                self.labels[vid] = dims
                self.origin[vid] = Origin(name, tuple(range(len(value.shape))))
                if _PARAMETRISED in name:
                    self._hold(name, dims)

    def _hold(self, name: str, dims: Sequence[Dim | None]) -> None:
        module, _, leaf = name.partition(_PARAMETRISED)
        for dim in dims:
            self.space.freeze(
                dim,
                f"{module!r} is reparametrised: merge it first with "
                "torch.nn.utils.parametrize."
                f"remove_parametrizations(module, {leaf.split('.')[0]!r})",
            )

    def walk(self) -> None:
        """Apply the rule of every operation; then freeze the outputs."""
        for op in self.program.ops:
            handler = getattr(op.func, "rule", None) or RULES.get(op.kind)
            if op.mutates and any(self.has_labels(v) for v in op.inputs):
                self.give_up(op, "writes in place into memory that others read")
            elif handler is not None:
                handler(self, op)
            elif any(tag == torch.Tag.pointwise for tag in getattr(op.func, "tags", ())):
                RULES["add"](self, op)
            elif not op.inputs or not any(self.has_labels(v) for v in op.inputs):
                continue
            else:
                self.give_up(op, getattr(op.func, "reason", "this operation is not known"))
        self._partitions()
        count = len(self.program.outputs)
        for number, vid in enumerate(self.program.outputs, 1):
            which = f" {number} of {count}" if count > 1 else ""
            for dim in self.dims(vid):
                self.space.freeze(dim, f"is part of the model's output{which}")

    # ---- helpers for rules -----------------------------------------------------------------------

    def shape(self, vid: int) -> tuple[int, ...]:
        return self.program.values[vid].shape

    def dims(self, vid: int) -> list[Dim | None]:
        labels = self.labels.get(vid)
        return list(labels) if labels is not None else [None] * len(self.shape(vid))

    def has_labels(self, vid: int) -> bool:
        return any(self.labels.get(vid, ()))

    def put(self, vid: int, dims: Sequence[Dim | None]) -> None:
        if any(d is not None for d in dims):
            self.labels[vid] = list(dims)

    def give_up(self, op: Op, why: str) -> None:
        """Nothing that goes into the operation can be cut; nothing is known of what comes out."""
        for vid in op.inputs:
            for dim in self.dims(vid):
                self.space.freeze(dim, f"goes into {op.where}: {why}")
        self.unknown.setdefault(op.where, why)

    def freeze(self, op: Op, dim: Dim | None, why: str) -> None:
        self.space.freeze(dim, f"{why} ({op.where})")

    def match(self, op: Op, dims: Sequence[Dim | None], why: str) -> Dim | None:
        """Tie labelled dimensions of equal size; if one has no labels, the others cannot go."""
        dims = [d for d in dims if d != FREE] or [FREE]
        if any(d is None for d in dims):
            for dim in dims:
                self.freeze(op, dim, why)
            return None
        return self.space.unify(dims) if dims != [FREE] else FREE

    def reduce(self, op: Op, vid: int, dims: Sequence[int]) -> None:
        labelled = tuple((i, d) for i in dims if (d := self.dims(vid)[i]))
        if labelled:
            self.reductions.append(Reduction(op.index, vid, labelled))
            for _, d in labelled:
                self.space.mixed.append(d[0])

    def slice_seen(self, vid: int, dim: int, start: int, stop: int) -> None:
        self._slices.setdefault((vid, dim), []).append((start, stop))

    def _partitions(self) -> None:
        """Equal slices that together make up a dimension (chunks) must lose the same positions."""
        for (vid, dim), slices in self._slices.items():
            parts = sorted(set(slices))
            length = parts[0][1] - parts[0][0]
            expected = [(i * length, (i + 1) * length) for i in range(len(parts))]
            label = self.dims(vid)[dim]
            if (
                not label
                or len(parts) < 2
                or parts != expected
                or parts[-1][1] != self.shape(vid)[dim]
            ):
                continue
            rows = label[0].reshape(len(parts), length)
            self.space.tie(rows[1:], rows[:1])


def part_of(origin: Origin, dims: Sequence[int]) -> Origin:
    """Some elements of a parameter, with these of the value's dimensions."""
    return Origin(origin.name, tuple(origin.dims[i] for i in dims), whole=False)


def ref(x: Any) -> int | None:
    """Value id of an argument, None if it is not a tensor."""
    return x.id if isinstance(x, Ref) else None


def take(dim: Dim | None, index: Any) -> Dim | None:
    """Re-index a dimension."""
    return dim if not dim else tuple(np.ascontiguousarray(ids[index]) for ids in dim)
