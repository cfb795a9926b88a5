"""Rules for products, convolutions, attention, norms, pooling and reductions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from subprune.program.ops import NORMS, PRODUCTS, Product, argument, product, window
from subprune.structure.flow import Flow, Use, ref, rule
from subprune.structure.labels import FREE, Dim

if TYPE_CHECKING:
    from subprune.program.program import Op

__all__: list[str] = []

_INPUT = "is multiplied with features that are not made of parameters, such as the model's input"


def _spatial(flow: Flow, op: Op, dims: Sequence[Dim | None]) -> None:
    for dim in dims:
        flow.freeze(op, dim, "a window slides over it")


def _use(flow: Flow, op: Op, entry: Product, groups: int = 1, depthwise: bool = False) -> None:
    """Note a product of an activation with a parameter."""
    x, weight = argument(op, entry.activation).id, argument(op, entry.weight).id
    source = flow.origin.get(weight)
    # a product of two activations: both are looked at by position
    if source is None or x in flow.origin:
        if groups == 1:
            flow.reduce(op, x, [entry.features % len(flow.shape(x))])
        return
    bias_value = ref(argument(op, entry.bias)) if entry.bias else None
    bias = None if bias_value is None else flow.origin.get(bias_value)
    flow.uses.append(
        Use(
            op=op.index,
            product=entry,
            weight=source.name,
            weight_value=weight,
            order=source.dims,
            bias=None if bias is None else bias.name,
            input=x,
            output=op.outs[0],
            groups=groups,
            depthwise=depthwise,
        )
    )


@rule("linear", "mm", "addmm", "matmul")
def linear(flow: Flow, op: Op) -> None:
    entry = PRODUCTS[op.kind]
    x, w = argument(op, entry.activation).id, argument(op, entry.weight).id
    if len(flow.shape(w)) != 2:
        flow.give_up(op, "a product of this form is not known")
        return
    xd, wd = flow.dims(x), flow.dims(w)
    flow.match(op, [xd[-1], wd[entry.summed]], _INPUT)
    bias = ref(argument(op, entry.bias)) if entry.bias else None
    made = wd[entry.made]
    if bias is not None:
        made = flow.match(op, [made, flow.dims(bias)[-1]], _INPUT)
    flow.put(op.outs[0], [*xd[:-1], made])
    _use(flow, op, entry)


@rule("bmm", "baddbmm")
def bmm(flow: Flow, op: Op) -> None:
    entry = PRODUCTS[op.kind]
    a, b = argument(op, entry.activation).id, argument(op, entry.weight).id
    ad, bd = flow.dims(a), flow.dims(b)
    batch = flow.match(op, [ad[0], bd[0]], _INPUT)
    flow.match(op, [ad[2], bd[1]], _INPUT)
    if batch:
        flow.space.batch.append(batch[0])
    flow.reduce(op, a, [2])
    result = [batch, ad[1], bd[2]]
    if entry.bias is not None:
        added = argument(op, entry.bias).id
        places = zip(
            result, flow.dims(added), flow.shape(added), flow.shape(op.outs[0]), strict=True
        )
        result = [flow.match(op, [r, s], _INPUT) if n == m else r for r, s, n, m in places]
    flow.put(op.outs[0], result)


@rule("_grouped_mm", "grouped_mm_fallback")
def experts(flow: Flow, op: Op) -> None:
    """Every row is multiplied with the weight of the expert that it was sent to."""
    flow.give_up(op, "experts are multiplied all at once, and stay whole")


@rule("convolution")
def convolution(flow: Flow, op: Op) -> None:
    entry, geometry = product(op), window(op)
    assert entry is not None
    assert geometry is not None
    x, w = argument(op, entry.activation).id, argument(op, entry.weight).id
    xd, wd = flow.dims(x), flow.dims(w)
    _spatial(flow, op, [*xd[2:], *wd[2:]])
    depthwise = geometry.groups > 1 and flow.shape(x)[1] == geometry.groups
    if geometry.groups == 1:
        flow.match(op, [xd[1], wd[entry.summed]], _INPUT)
        made = wd[entry.made]
    elif not wd[0]:
        flow.give_up(op, "a grouped convolution whose weight is not a parameter")
        return
    else:
        grouped = _grouped_transposed if entry.transposed else _grouped
        made = grouped(flow, op, xd[1], wd[0], wd[1], geometry.groups)
    bias = ref(argument(op, "bias"))
    if bias is not None:
        made = flow.match(op, [made, flow.dims(bias)[0]], _INPUT)
    flow.put(op.outs[0], [xd[0], made, *[None] * (len(xd) - 2)])
    _use(flow, op, entry, geometry.groups, depthwise)


def _grouped(
    flow: Flow, op: Op, channels: Dim | None, made: Dim, summed: Dim | None, groups: int
) -> Dim | None:
    """Depthwise: a channel goes with its filters. Otherwise the same positions of every group go.

    The weight is [outputs, inputs / groups, *kernel], labelled `made` and `summed`.
    """
    rows = made[0].reshape(groups, -1)  # [groups, outputs of one]
    if flow.shape(op.inputs[0])[1] == groups:
        if not channels:
            flow.freeze(op, made, _INPUT)
        else:
            flow.space.tie(rows, channels[0][:, None])
        return made
    # Groups must stay equally large: what goes from one goes from all.
    flow.space.tie(rows[1:], rows[:1])
    if channels and summed:
        flow.space.tie(channels[0].reshape(groups, -1), summed[0][None, :])
    else:
        flow.freeze(op, summed, _INPUT)
        flow.freeze(op, channels, _INPUT)
    return made


def _grouped_transposed(
    flow: Flow, op: Op, channels: Dim | None, summed: Dim, made: Dim | None, groups: int
) -> Dim | None:
    """The same for a weight [inputs, outputs / groups, *kernel], labelled `summed` and `made`."""
    flow.match(op, [channels, summed], _INPUT)
    if summed[0].size == groups:  # depthwise: each channel makes outputs of its own
        flow.freeze(op, made, "every channel has the same number of filters")
        return (np.repeat(summed[0], flow.shape(op.outs[0])[1] // groups),)
    rows = summed[0].reshape(groups, -1)
    flow.space.tie(rows[1:], rows[:1])
    return made and (np.tile(made[0], groups),)


@rule("scaled_dot_product_attention")
def attention(flow: Flow, op: Op) -> None:
    q, k, v = (argument(op, name).id for name in ("query", "key", "value"))
    qd, kd, vd = flow.dims(q), flow.dims(k), flow.dims(v)
    shape, kshape = flow.shape(q), flow.shape(k)
    mask = ref(argument(op, "attn_mask"))
    # q·k sums over the dimensions of a head: those of queries and keys go together.
    flow.match(op, [qd[-1], kd[-1]], _INPUT)
    if qd[-1]:
        flow.space.mixed.append(qd[-1][0])
        if argument(op, "scale") is None:
            flow.freeze(op, qd[-1], "the scale of attention follows from the size of a head")
        flow.reduce(op, q, [len(qd) - 1])
    # All dimensions before [length, head size]: inputs and heads. Where there are fewer heads of
    # keys and values, each of them serves several of the queries'.
    lead: list[Dim | None] = []
    for i in range(len(qd) - 2):
        times = shape[i] // kshape[i]
        met = [qd[i], *(_shared_heads(d, times, kshape[i]) for d in (kd[i], vd[i]))]
        if mask is not None:
            back = len(qd) - i  # counted from the end: masks are broadcast
            mshape = flow.shape(mask)
            if len(mshape) >= back and mshape[-back] == shape[i]:
                met.append(flow.dims(mask)[-back])
        dim = flow.match(op, met, _INPUT)
        if dim:
            flow.space.batch.append(dim[0])
        lead.append(dim)
    flow.put(op.outs[0], [*lead, qd[-2], vd[-1]])


def _shared_heads(dim: Dim | None, times: int, size: int) -> Dim | None:
    """Heads of keys or values as those of the queries see them, each of which serves several."""
    if times == 1:
        return dim
    if size == 1:  # one for all: it is there as long as any of them
        return FREE
    return dim and tuple(np.repeat(ids, times) for ids in dim)


@rule(*(kind for kind, entry in NORMS.items() if entry.stored is not None))
def batch_norm(flow: Flow, op: Op) -> None:
    x = op.inputs[0]
    dims = flow.dims(x)
    parameters = _parameters(flow, op)
    dims[1] = flow.match(op, [dims[1], *(labels[0] for labels in parameters)], _INPUT)
    flow.put(op.outs[0], dims)
    if not parameters:  # no tensor of the module's follows: note the length here
        flow.reduce(op, x, [1])


def _parameters(flow: Flow, op: Op) -> list[list[Dim | None]]:
    """Labels of the tensors among a norm's arguments, each of them as long as what it runs over."""
    refs = [ref(argument(op, name)) for name in NORMS[op.kind].parameters]
    return [flow.dims(vid) for vid in refs if vid is not None]


@rule(*(kind for kind, entry in NORMS.items() if entry.sizes is not None))
def layer_norm(flow: Flow, op: Op) -> None:
    x = op.inputs[0]
    dims = flow.dims(x)
    over = NORMS[op.kind].over(op, len(dims))
    for i, d in enumerate(over):
        dims[d] = flow.match(
            op, [dims[d], *(labels[i] for labels in _parameters(flow, op))], _INPUT
        )
    flow.put(op.outs[0], dims)
    flow.put(x, dims)
    flow.reduce(op, x, over)


@rule(*(kind for kind, entry in NORMS.items() if entry.groups is not None))
def group_norm(flow: Flow, op: Op) -> None:
    x = op.inputs[0]
    dims = flow.dims(x)
    groups = int(argument(op, str(NORMS[op.kind].groups)))
    dims[1] = flow.match(op, [dims[1], *(labels[0] for labels in _parameters(flow, op))], _INPUT)
    size = flow.shape(x)[1]
    if dims[1] and groups != size:
        rows = dims[1][0].reshape(groups, -1)
        flow.space.tie(rows[1:], rows[:1])
    flow.reduce(op, x, [1])
    flow.put(op.outs[0], dims)


@rule(
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "max_pool2d_with_indices",
    "max_pool3d_with_indices",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "_adaptive_avg_pool2d",
    "_adaptive_avg_pool3d",
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
    "adaptive_max_pool1d",
    "adaptive_max_pool2d",
    "adaptive_max_pool3d",
    "upsample_nearest1d",
    "upsample_nearest2d",
    "upsample_nearest3d",
    "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d",
    "_upsample_nearest_exact3d",
    "upsample_linear1d",
    "upsample_bilinear2d",
    "_upsample_bilinear2d_aa",
    "upsample_bicubic2d",
    "_upsample_bicubic2d_aa",
    "upsample_trilinear3d",
    "grid_sampler",
    "grid_sampler_2d",
    "grid_sampler_3d",
    "lp_pool2d",
)
def pooling(flow: Flow, op: Op) -> None:
    """Channels stay, windows slide over the rest."""
    x = op.inputs[0]
    dims = flow.dims(x)
    spatial = 3 if "3d" in op.kind else 1 if "1d" in op.kind else 2
    alone = _windows_of_one(op, spatial)
    slid = list(zip(dims[-spatial:], alone, strict=True))
    _spatial(flow, op, [dim for dim, single in slid if not single])
    flow.put(op.outs[0], [*dims[:-spatial], *(dim if single else None for dim, single in slid)])
    # where the maxima were: numbers that count over all of the window's dimensions
    for vid in op.outs[1:]:
        flow.put(vid, [*dims[:-spatial], *[None] * spatial])


def _windows_of_one(op: Op, spatial: int) -> list[bool]:
    """Along which dimensions a window covers one entry and moves by one: ``MaxPool3d((1, 2, 2))``
    on [N, C, H, W].
    """
    if not op.kind.startswith(("max_pool", "avg_pool")):
        return [False] * spatial

    def per_dimension(value: Any) -> list[int]:
        values = [value] if isinstance(value, int) else list(value)
        return values * spatial if len(values) == 1 else values

    size = per_dimension(argument(op, "kernel_size"))
    step = per_dimension(argument(op, "stride") or size)
    margin = per_dimension(argument(op, "padding"))
    return [window == (1, 1, 0) for window in zip(size, step, margin, strict=True)]


@rule(
    "mean",
    "sum",
    "nansum",
    "amax",
    "amin",
    "max",
    "min",
    "var",
    "std",
    "var_mean",
    "std_mean",
    "prod",
    "logsumexp",
    "linalg_vector_norm",
    "norm",
    "argmax",
    "argmin",
    "any",
    "all",
)
def reduction(flow: Flow, op: Op) -> None:
    x = op.inputs[0]
    if len(op.inputs) > 1 or op.name.endswith((".other", ".binary")):
        flow.give_up(op, "a reduction of this form is not known")
        return
    dims = flow.dims(x)
    asked = argument(op, "dim")
    chosen = (
        range(len(dims))
        if asked is None or asked == []
        else [asked]
        if isinstance(asked, int)
        else asked
    )
    over = {d % len(dims) for d in chosen}
    if op.kind in ("argmax", "argmin", "logsumexp", "prod", "any", "all"):
        for d in over:
            flow.freeze(op, dims[d], f"{op.kind} runs over the units")
    else:
        flow.reduce(op, x, sorted(over))
    kept = len(flow.shape(op.outs[0])) == len(dims)
    result = [None if i in over else d for i, d in enumerate(dims) if kept or i not in over]
    for vid in op.outs:
        flow.put(vid, result)


@rule("_weight_norm_interface", "_weight_norm")
def weight_norm(flow: Flow, op: Op) -> None:
    """A filter is scaled by its own length: it would change if inputs of it were cut."""
    dims = flow.dims(op.inputs[0])
    for dim in dims:
        why = (
            f"{op.module!r} is weight-normed: merge it first with "
            "torch.nn.utils.remove_weight_norm(module)"
        )
        flow.freeze(op, dim, why)
    flow.put(op.outs[0], dims)


@rule("new_zeros", "new_ones", "new_full", "zeros", "ones", "full", "scalar_tensor")
def filled(flow: Flow, op: Op) -> None:
    """The same content everywhere: it follows whatever it is combined with, and all of that
    together.
    """
    flow.put(op.outs[0], [(flow.space.new(n),) if n > 1 else FREE for n in flow.shape(op.outs[0])])


@rule("new_empty", "empty", "arange", "eye", "empty_strided", "rand", "randn")
def numbered(flow: Flow, op: Op) -> None:
    """Sizes are numbers in the model's code: nothing is carried over."""
    flow.labels.pop(op.outs[0], None)
