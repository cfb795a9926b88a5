"""Rules for operations that only move, copy or combine elements position by position."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from subprune.program.ops import argument
from subprune.structure.flow import Flow, Origin, part_of, ref, rule, take
from subprune.structure.labels import FREE, Dim

if TYPE_CHECKING:
    from subprune.program.program import Op
    from subprune.structure.components import Ids

__all__: list[str] = []

_ODD = "is combined position by position with a tensor that is not made of parameters"


@rule(
    "add",
    "sub",
    "mul",
    "div",
    "where",
    "masked_fill",
    "clone",
    "_to_copy",
    "detach",
    "alias",
    "lift_fresh",
    "copy",
    "contiguous",
    "dropout",
    "native_dropout",
    "relu",
    "gelu",
    "silu",
    "hardswish",
    "hardsigmoid",
    "hardtanh",
    "leaky_relu",
    "elu",
    "mish",
    "softplus",
    "sigmoid",
    "tanh",
    "log_sigmoid_forward",
    "_prelu_kernel",
    "prelu",
    "clamp",
    "threshold",
    "rsqrt",
    "sqrt",
    "pow",
    "exp",
    "neg",
    "abs",
    "zeros_like",
    "ones_like",
    "full_like",
    "empty_like",
    "rand_like",
    "fill",
    "logical_and",
    "logical_or",
    "bitwise_and",
    "bitwise_or",
    "nan_to_num",
)
def pointwise(flow: Flow, op: Op) -> None:
    """Broadcast; operands that meet at a position share its label."""
    out = flow.shape(op.outs[0])
    result: list[Dim | None] = []
    for back in range(len(out), 0, -1):  # counted from the last dimension, as broadcasting does
        full: list[tuple[int, Dim | None]] = []
        for vid in op.inputs:
            shape = flow.shape(vid)
            if len(shape) < back:
                continue
            dim, size = flow.dims(vid)[-back], shape[-back]
            if size == out[-back]:
                full.append((vid, dim))
            else:
                flow.freeze(op, dim, "a single position is broadcast")
        result.append(flow.match(op, [d for _, d in full], _ODD) if full else None)
    for vid in op.outs:
        if len(flow.shape(vid)) == len(result):
            flow.put(vid, result)
    if (
        len(op.inputs) == 1
        and op.inputs[0] in flow.origin
        and op.kind in ("detach", "alias", "clone", "_to_copy")
    ):
        flow.origin[op.outs[0]] = flow.origin[op.inputs[0]]


@rule("view", "_unsafe_view", "reshape", "_reshape_alias")
def view(flow: Flow, op: Op) -> None:
    """Split every old dimension to the common refinement of both shapes, then merge to the new
    ones.
    """
    (source,) = op.inputs
    old, new = flow.shape(source), flow.shape(op.outs[0])
    if 0 in old:
        return
    # Both shapes as products of the same factors: (6, 4) → (2, 12) are (2, 3, 4). They exist where
    # every bound divides the next.
    cuts = sorted(set(_bounds(old)) | set(_bounds(new)))
    if any(b % a for a, b in pairwise(cuts)):
        if flow.has_labels(source):
            flow.give_up(op, f"a view from {old} to {new} mixes dimensions")
        return
    fine_sizes = [b // a for a, b in pairwise(cuts)][::-1]
    fine: list[Dim | None] = []
    at = 0
    for dim, size in zip(flow.dims(source), old, strict=True):
        parts = _take_product(fine_sizes, at, size)
        fine += flow.space.split(dim, parts, op.where)
        at += len(parts)
    result: list[Dim | None] = []
    at = 0
    for size in new:
        parts = _take_product(fine_sizes, at, size)
        result.append(
            flow.space.merge(fine[at : at + len(parts)], parts, op.where) if parts else None
        )
        at += len(parts)
    flow.put(op.outs[0], _keep_ones(flow, source, old, new, result))


def _bounds(shape: Sequence[int]) -> list[int]:
    """Products of the last 0, 1, 2 … dimensions."""
    return [int(x) for x in np.cumprod([1, *shape[::-1]])]


def _take_product(sizes: list[int], at: int, product: int) -> list[int]:
    """The run of refined sizes from `at` on that makes up one dimension; none for a size of one."""
    parts: list[int] = []
    total = 1
    while total < product:
        parts.append(sizes[at + len(parts)])
        total *= parts[-1]
    return parts


def _keep_ones(
    flow: Flow, source: int, old: Sequence[int], new: Sequence[int], result: list[Dim | None]
) -> list[Dim | None]:
    """Labels of dimensions of size one survive where the shape is otherwise unchanged."""
    if tuple(old) == tuple(new):
        for i, dim in enumerate(flow.dims(source)):
            if new[i] == 1:
                result[i] = dim
    return result


@rule("transpose", "t", "permute", "unsqueeze", "squeeze", "expand", "numpy_T", "mT")
def rearrange(flow: Flow, op: Op) -> None:
    """Dimensions change place, appear or vanish."""
    source = op.inputs[0]
    dims, shape = flow.dims(source), flow.shape(source)
    rank = len(dims)
    # For every dimension of the result, the one of the source that it is; None for a new one.
    order: list[int | None]
    if op.kind in ("transpose", "t", "numpy_T", "mT"):
        order = list(range(rank))
        i, j = (
            (argument(op, "dim0") % rank, argument(op, "dim1") % rank)
            if op.kind == "transpose"
            else (rank - 2, rank - 1)
        )
        if rank > 1:
            order[i], order[j] = order[j], order[i]
    elif op.kind == "permute":
        order = [d % rank for d in argument(op, "dims")]
    elif op.kind == "unsqueeze":
        order = list(range(rank))
        order.insert(argument(op, "dim") % (rank + 1), None)
    elif op.kind == "squeeze":
        asked = argument(op, "dim")
        chosen = range(rank) if asked is None else asked
        gone = {
            d % rank for d in ([chosen] if isinstance(chosen, int) else chosen) if shape[d] == 1
        }
        order = [i for i in range(rank) if i not in gone]
    else:
        order = [None] * (len(flow.shape(op.outs[0])) - rank) + list(range(rank))
    out = flow.shape(op.outs[0])
    result: list[Dim | None] = []
    for i, place in enumerate(order):
        dim = FREE if place is None else dims[place]
        if place is not None and shape[place] != out[i]:  # expanded
            flow.freeze(op, dim, "a single position is repeated")
            dim = FREE
        result.append(dim)
    flow.put(op.outs[0], result)
    old = flow.origin.get(source)
    if (
        old is not None
        and None not in order
        and out == tuple(shape[i] for i in order if i is not None)
    ):
        places = tuple(old.dims[i] for i in order if i is not None)
        flow.origin[op.outs[0]] = Origin(old.name, places, old.whole and len(order) == rank)


@rule("slice")
def slice_(flow: Flow, op: Op) -> None:
    source = op.inputs[0]
    dims, shape = flow.dims(source), flow.shape(source)
    dim = argument(op, "dim") % len(dims)
    start, stop, step = slice(
        argument(op, "start"), argument(op, "end"), argument(op, "step")
    ).indices(shape[dim])
    if step == 1 and stop - start != shape[dim]:
        flow.slice_seen(source, dim, start, stop)
    elif step != 1:
        flow.freeze(op, dims[dim], "positions are picked with a step")
    dims[dim] = take(dims[dim], slice(start, stop, step))
    flow.put(op.outs[0], dims)
    _keep_origin(flow, source, op.outs)


@rule("split", "split_with_sizes", "chunk", "unsafe_split", "unsafe_chunk")
def split(flow: Flow, op: Op) -> None:
    source = op.inputs[0]
    dim = argument(op, "dim") % len(flow.shape(source))
    at = 0
    for vid in op.outs:
        size = flow.shape(vid)[dim]
        flow.slice_seen(source, dim, at, at + size)
        dims = flow.dims(source)
        dims[dim] = take(dims[dim], slice(at, at + size))
        flow.put(vid, dims)
        at += size
    _keep_origin(flow, source, op.outs)


def _keep_origin(flow: Flow, source: int, outs: Sequence[int], gone: int | None = None) -> None:
    """Pieces of a parameter are still that parameter's."""
    if source in flow.origin:
        dims = [i for i in range(len(flow.shape(source))) if i != gone]
        for vid in outs:
            same = flow.shape(vid) == flow.shape(source)
            flow.origin[vid] = flow.origin[source] if same else part_of(flow.origin[source], dims)


@rule("glu")
def glu(flow: Flow, op: Op) -> None:
    source = op.inputs[0]
    dims = flow.dims(source)
    dim = argument(op, "dim") % len(dims)
    half = flow.shape(source)[dim] // 2
    dims[dim] = flow.space.unify(
        [take(dims[dim], slice(0, half)), take(dims[dim], slice(half, None))]
    )
    flow.put(op.outs[0], dims)


@rule("select", "unbind")
def select(flow: Flow, op: Op) -> None:
    source = op.inputs[0]
    dims, shape = flow.dims(source), flow.shape(source)
    dim = argument(op, "dim") % len(dims)
    flow.freeze(op, dims[dim], "positions are picked by number")
    positions = range(len(op.outs)) if op.kind == "unbind" else [argument(op, "index") % shape[dim]]
    for position, vid in zip(positions, op.outs, strict=True):
        gone = dims[dim]
        kept = [d for i, d in enumerate(dims) if i != dim]
        flow.put(vid, kept if not gone else flow.space.subframe(kept, gone, position))
    _keep_origin(flow, source, op.outs, dim)


@rule("cat", "concatenate")
def cat(flow: Flow, op: Op) -> None:
    parts = [
        r for x in argument(op, "tensors") if (r := ref(x)) is not None and 0 not in flow.shape(r)
    ]
    out = flow.shape(op.outs[0])
    dim = argument(op, "dim") % len(out)
    result: list[Dim | None] = []
    for i in range(len(out)):
        dims = [flow.dims(v)[i] for v in parts]
        if i != dim:
            result.append(flow.match(op, dims, _ODD))
        elif not any(dims):
            result.append(None)
        else:  # one after another; what has no labels gets some, which cannot go
            ids = [
                _or_fixed(flow, op, d, flow.shape(v)[i]) for d, v in zip(dims, parts, strict=True)
            ]
            result.append((np.concatenate(ids),))
            _joined_alternatives(result, i, dims)
    flow.put(op.outs[0], result)


def _joined_alternatives(result: list[Dim | None], at: int, dims: Sequence[Dim | None]) -> None:
    """Pieces with equally many alternatives keep all of them (the two halves of a rotation of
    heads).
    """
    counts = {len(d) for d in dims if d}
    if all(dims) and len(counts) == 1:
        result[at] = tuple(np.concatenate([d[j] for d in dims if d]) for j in range(counts.pop()))


def _or_fixed(flow: Flow, op: Op, dim: Dim | None, size: int) -> Ids:
    """The main ids, or fresh frozen ones for positions without labels."""
    if dim:
        return dim[0]
    ids = flow.space.new(size)
    flow.freeze(op, (ids,), "they meet values that no layer makes, such as padding")
    return ids


@rule("stack")
def stack(flow: Flow, op: Op) -> None:
    parts = [r for x in argument(op, "tensors") if (r := ref(x)) is not None]
    dims = [
        flow.match(op, [flow.dims(v)[i] for v in parts], _ODD)
        for i in range(len(flow.shape(parts[0])))
    ]
    dims.insert(argument(op, "dim") % (len(dims) + 1), None)
    flow.put(op.outs[0], dims)


@rule(
    "constant_pad_nd",
    "reflection_pad1d",
    "reflection_pad2d",
    "reflection_pad3d",
    "replication_pad1d",
    "replication_pad2d",
    "replication_pad3d",
    "pad",
)
def pad(flow: Flow, op: Op) -> None:
    source = op.inputs[0]
    dims = flow.dims(source)
    amounts = argument(op, "pad") or argument(op, "padding")
    for back in range(len(amounts) // 2):
        before, after = amounts[2 * back], amounts[2 * back + 1]  # of the last dimension first
        dim = dims[-1 - back]
        if not dim or (before == 0 and after == 0):
            continue
        if op.kind != "constant_pad_nd" or before < 0 or after < 0:
            flow.freeze(op, dim, "is padded with copies or cropped")
            dims[-1 - back] = None
            continue
        ends = [_or_fixed(flow, op, None, n) for n in (before, after)]
        dims[-1 - back] = tuple(np.concatenate([ends[0], ids, ends[1]]) for ids in dim)
    flow.put(op.outs[0], dims)


@rule("repeat")
def repeat(flow: Flow, op: Op) -> None:
    source = op.inputs[0]
    dims = flow.dims(source)
    counts = argument(op, "repeats")
    lead = len(counts) - len(dims)
    result: list[Dim | None] = [None] * lead
    for dim, n in zip(dims, counts[lead:], strict=True):
        result.append(None if not dim else tuple(np.tile(ids, n) for ids in dim))
    flow.put(op.outs[0], result)
