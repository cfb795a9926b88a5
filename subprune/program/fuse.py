"""Convolution, BatchNorm, addition and ReLU as one call, where a program is replayed many times.

Every run of a calibration does this. The results agree with those of single operations to
rounding, not bit by bit; values inside a chain are never made. So a chain runs operation by
operation where somebody looks inside it: where one of its operations is watched or replaced, where
a run stops within it, and in runs that keep values or record gradients. On the CPU in float32, by
oneDNN; anything else runs operation by operation too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from subprune.program.onednn import convolution, usable
from subprune.program.ops import Window, argument, belongs, norm, product, window

if TYPE_CHECKING:
    from subprune.program.program import Op, Program, Ref

__all__ = ["Chain", "Folds", "chains"]

Folds = dict[int, tuple[tuple[Any, ...], Tensor, Tensor | None]]
"""By operation: the tensors that were folded, and the weight and bias made of them."""


@dataclass(frozen=True, kw_only=True)
class Chain:
    """Operations that run as one: a convolution, then what follows it directly."""

    ops: tuple[int, ...]  # indices, the convolution's first
    tensors: tuple[Any, ...]  # input, weight and bias of the convolution
    window: Window
    norm: tuple[Any, ...]  # scale, shift, mean and variance of the norm; empty without one
    epsilon: float
    other: Ref | None  # what is added, made before the convolution
    relu: bool
    out: int  # value id of the result

    def run(self, fetch: Callable[[Any], Any], folds: Folds) -> Tensor | None:
        """The result; None if these tensors have to go the ordinary way. `folds` keeps weights
        between runs.
        """
        x, weight, bias = (fetch(a) for a in self.tensors)
        if not usable(x, weight):
            return None
        weight, bias = self._folded(weight, bias, fetch, folds)
        window = self.window
        shape = (window.padding, window.stride, window.dilation, window.groups)
        other = None if self.other is None else fetch(self.other)
        return convolution(x, weight, bias, shape, other=other, relu=self.relu)

    def _folded(
        self, weight: Tensor, bias: Tensor | None, fetch: Callable[[Any], Any], folds: Folds
    ) -> tuple[Tensor, Tensor | None]:
        """Weight and bias with the norm in them, folded again only if a tensor was replaced."""
        parts = (weight, bias, *(fetch(a) for a in self.norm))
        known = folds.get(self.ops[0])
        if known is None or any(a is not b for a, b in zip(known[0], parts, strict=True)):
            if self.norm:
                weight, bias = _fold(self.epsilon, *parts)
            known = parts, weight.contiguous(memory_format=torch.channels_last), bias
            folds[self.ops[0]] = known
        return known[1], known[2]


def _fold(
    epsilon: float,
    weight: Tensor,
    bias: Tensor | None,
    gamma: Any,
    beta: Any,
    mean: Tensor,
    variance: Tensor,
) -> tuple[Tensor, Tensor]:
    """Weight and bias of the convolution with the norm that follows it."""
    scale = (variance + epsilon).rsqrt()
    scale = scale if gamma is None else scale * gamma
    shift = -mean * scale if bias is None else (bias - mean) * scale
    return weight * scale[:, None, None, None], shift if beta is None else shift + beta


def chains(program: Program) -> dict[int, Chain]:
    """All chains of a program, by the index of their convolution; none if it cares where numbers
    lie in memory.
    """
    if not torch.backends.mkldnn.is_available() or any(
        op.mutates or _by_layout(program, op) for op in program.ops
    ):
        return {}
    readers: dict[int, int] = dict.fromkeys(program.outputs, 2)
    for op in program.ops:
        for vid in op.inputs:
            readers[vid] = readers.get(vid, 0) + 1
    alive = [op for op in program.ops if any(readers.get(v) for v in op.outs)]
    made = {v: op.index for op in program.ops for v in op.outs}
    candidates = (
        _chain(program, alive[i:], readers, made)
        for i, op in enumerate(alive)
        if _plain_convolution(program, op)
    )
    return {c.ops[0]: c for c in candidates if c is not None}


def _by_layout(program: Program, op: Op) -> bool:
    """Whether an operation depends on the order of numbers in memory; a chain's result has channels
    last.

    Pooling in three dimensions refuses features of four dimensions in that order.
    """
    if belongs(op, "volume pooling"):
        return len(program.values[op.inputs[0]].shape) == 4
    return belongs(op, "memory order")


def _plain_convolution(program: Program, op: Op) -> bool:
    """Whether this is a convolution of images that a chain can begin with."""
    entry = product(op)
    if entry is None or not entry.slides or entry.transposed:
        return False
    return not op.kwargs and len(program.values[op.outs[0]].shape) == 4


def _chain(
    program: Program, ops: Sequence[Op], readers: dict[int, int], made: dict[int, int]
) -> Chain | None:
    """The chain that begins with the first of `ops`, if it is worth one."""
    conv, rest = ops[0], list(ops[1:4])
    taken, out = [conv.index], conv.outs[0]
    folded: Op | None = None
    other, relu = None, False

    def follows(kind: Callable[[Op], bool]) -> bool:
        op = rest[0] if rest else None
        return op is not None and kind(op) and out in op.inputs and readers.get(out) == 1

    # In this order, each if it is there: a norm, a sum with the shortcut, ReLU.
    if follows(lambda op: _plain_norm(op, out, readers)):
        folded = rest.pop(0)
        taken, out = [*taken, folded.index], folded.outs[0]
    if follows(lambda op: _addend(program, op, out, made, conv.index) is not None):
        other = _addend(program, rest[0], out, made, conv.index)
        taken, out = [*taken, rest[0].index], rest[0].outs[0]
        rest.pop(0)
    if follows(lambda op: belongs(op, "relu")):
        taken, out, relu = [*taken, rest[0].index], rest[0].outs[0], True
    geometry = window(conv)
    if len(taken) == 1 or geometry is None:
        return None
    return Chain(
        ops=tuple(taken),
        tensors=tuple(argument(conv, name) for name in ("input", "weight", "bias")),
        window=geometry,
        norm=() if folded is None else _norm_tensors(folded),
        epsilon=0.0 if folded is None else argument(folded, "eps"),
        other=other,
        relu=relu,
        out=out,
    )


def _norm_tensors(op: Op) -> tuple[Any, ...]:
    """Scale, shift, mean and variance among the arguments of a norm."""
    entry = norm(op)
    return () if entry is None else tuple(argument(op, name) for name in entry.parameters)


def _plain_norm(op: Op, out: int, readers: dict[int, int]) -> bool:
    """Whether this is a norm of the value `out` by stored statistics,
    of which only the first result is read.
    """
    entry = norm(op)
    if entry is None or entry.measures(op):
        return False
    mine = getattr(argument(op, entry.activation), "id", -1) == out
    return mine and not any(readers.get(v) for v in op.outs[1:])


def _addend(program: Program, op: Op, out: int, made: dict[int, int], before: int) -> Ref | None:
    """What the operation adds to `out`, if it is of the same shape and there before the convolution
    runs.
    """
    if not belongs(op, "plain sum of two") or argument(op, "alpha") != 1:
        return None
    operands = [argument(op, name) for name in ("self", "other")]
    others = [x for x in operands if getattr(x, "id", out) != out]  # a number has no id
    if len(others) != 1:
        return None
    (other,) = others
    value = program.values[other.id]
    same = value.shape == program.values[out].shape and value.dtype == program.values[out].dtype
    return other if same and value.source == "op" and made[value.id] < before else None
