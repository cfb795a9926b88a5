"""Rules for operations that run along a dimension, look up rows, or shuffle channels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from subprune.program.ops import activation, argument
from subprune.structure.flow import Flow, ref, rule

if TYPE_CHECKING:
    from subprune.program.program import Op

__all__: list[str] = []


@rule(
    "flip", "roll", "cumsum", "_softmax", "_log_softmax", "softmax", "log_softmax", "sort", "topk"
)
def along(flow: Flow, op: Op) -> None:
    """Fine along dimensions without units; units along it would notice each other's absence."""
    source = op.inputs[0]
    dims = flow.dims(source)
    chosen = argument(op, "dims" if op.kind in ("flip", "roll") else "dim")
    if chosen == []:  # rolled as if it were flat
        chosen = list(range(len(dims)))
    for d in [chosen] if isinstance(chosen, int) else chosen:
        flow.freeze(op, dims[d], f"{op.kind.strip('_')} runs over the units")
        dims[d] = None
    for vid in op.outs:
        flow.put(vid, dims)


@rule("index", "index_select", "gather", "embedding", "index_put", "scatter")
def lookup(flow: Flow, op: Op) -> None:
    """Rows picked by an index tensor: that dimension is lost, the others stay."""
    source = ref(argument(op, activation(op)))
    if op.kind == "embedding" and source is not None:
        dims = flow.dims(source)
        flow.freeze(op, dims[0], "rows are looked up by index")
        index_rank = len(flow.shape(ref(argument(op, "indices")) or 0))
        flow.put(op.outs[0], [*[None] * index_rank, dims[1]])
        return
    if op.kind == "index" and source is not None:
        indices = [ref(x) for x in argument(op, "indices")]
        indexed = [i for i, x in enumerate(indices) if x is not None]
        dims = flow.dims(source)
        for i in indexed:
            flow.freeze(op, dims[i], "rows are looked up by index")
        # Indices of dimensions that follow each other: theirs stand in the place of these. (Others
        # come first in the result, and no labels are kept.)
        if indexed and indexed == list(range(indexed[0], indexed[-1] + 1)):
            shapes = [flow.shape(x) for x in indices if x is not None]
            rank = len(np.broadcast_shapes(*shapes))
            flow.put(op.outs[0], dims[: indexed[0]] + [None] * rank + dims[indexed[-1] + 1 :])
            return
    if op.kind == "index_select" and source is not None:
        dims = flow.dims(source)
        dim = argument(op, "dim") % len(dims)
        flow.freeze(op, dims[dim], "rows are looked up by index")
        dims[dim] = None
        flow.put(op.outs[0], dims)
        return
    if any(flow.has_labels(v) for v in op.inputs):
        flow.give_up(op, "elements are picked or written by index")


_FACTORS = {
    "pixel_shuffle": "upscale_factor",
    "pixel_unshuffle": "downscale_factor",
    "channel_shuffle": "groups",
}


@rule(*_FACTORS)
def shuffle(flow: Flow, op: Op) -> None:
    source = op.inputs[0]
    dims = flow.dims(source)
    n, spatial = argument(op, _FACTORS[op.kind]), dims[-2:]
    for dim in spatial:
        flow.freeze(op, dim, "positions are shuffled")
    channels = dims[-3]
    if channels and op.kind == "pixel_shuffle":  # r² channels become one, and stay together
        rows = channels[0].reshape(-1, n * n)
        flow.space.tie(rows[:, 1:], rows[:, :1])
        channels = (np.ascontiguousarray(rows[:, 0]),)
    elif channels and op.kind == "pixel_unshuffle":  # one channel becomes r², which go together
        channels = tuple(np.repeat(ids, n * n) for ids in channels)
    elif channels:  # channel shuffle in n groups: the same positions of every group go
        rows = channels[0].reshape(n, -1)
        flow.space.tie(rows[1:], rows[:1])
        channels = (np.ascontiguousarray(rows.T).ravel(),)
        spatial = dims[-2:]
    flow.put(op.outs[0], [*dims[:-3], channels, None, None])
