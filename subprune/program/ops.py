"""The one table that knows each operation: what its arguments mean, what it multiplies, how it
narrows.

Arguments are read by the names of PyTorch's own schemas, never by position:
``argument(op, "stride")``. Two kinds of entries say what the rest of the library asks for:

* a `Product` multiplies an activation with a weight (or a second activation): which arguments these
  are, which dimensions are summed over and made, and where a bias stands. A convolution has a
  `Window` as well: how its kernel slides.
* a `Norm` divides by what it measures over some dimensions, and so notices how many positions there
  are.

`FAMILIES` names the operations that are recognised for something else. To teach the library an
operation, add its row here and, if it changes dimensions, a rule in `subprune.structure.rules`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._ops import OpOverload

if TYPE_CHECKING:
    from subprune.program.program import Op

__all__ = [
    "FAMILIES",
    "NORMS",
    "PRODUCTS",
    "Norm",
    "Product",
    "Window",
    "activation",
    "argument",
    "belongs",
    "joined",
    "kind_of",
    "lengths",
    "moved",
    "named_kind",
    "narrowed",
    "norm",
    "product",
    "replaced",
    "window",
]

Args = tuple[Any, ...]
Kwargs = dict[str, Any]
Place = tuple[int, int]  # value id, dimension


# ---- arguments by name ---------------------------------------------------------------------------


def kind_of(func: Any) -> str:
    """Name without namespace and overload: ``add`` for ``aten.add.Tensor``; see `named_kind`."""
    return _known_kind(func) if isinstance(func, OpOverload) else _short_name(func)


def _short_name(func: Any) -> str:
    parts = str(func).split(".")
    return named_kind(parts[0], parts[1]) if len(parts) > 1 else parts[0]


def named_kind(namespace: str, name: str) -> str:
    """The name that rules and rows go by. It keeps its namespace where PyTorch has an operation of
    that name: ``mylib::flip`` may do something else than what ``aten::flip`` does.
    """
    taken = namespace not in _PYTORCH and hasattr(torch.ops.aten, name)
    return f"{namespace}::{name}" if taken else name


_PYTORCH = ("aten", "prims")
_known_kind = cache(_short_name)


@cache
def _schema(func: OpOverload) -> dict[str, tuple[int, Any]]:
    """Every argument's position and default."""
    return {a.name: (i, a.default_value) for i, a in enumerate(func._schema.arguments)}


def argument(op: Op, name: str, args: Args | None = None, kwargs: Kwargs | None = None) -> Any:
    """The argument of this name: as recorded, or among `args` and `kwargs` of a replay.

    Its default if it was not given, None if the operation has no argument of this name.
    """
    positional = op.args if args is None else args
    named = op.kwargs if kwargs is None else kwargs
    if name in named:
        return named[name]
    if not isinstance(op.func, OpOverload) or name not in _schema(op.func):
        return None
    position, default = _schema(op.func)[name]
    return positional[position] if position < len(positional) else default


def replaced(op: Op, args: Args, kwargs: Kwargs, new: Mapping[str, Any]) -> tuple[Args, Kwargs]:
    """The arguments of a call with some of them exchanged, by name."""
    positional, named = list(args), dict(kwargs)
    for name, value in new.items():
        position = _schema(op.func)[name][0]
        if name in named or position >= len(positional):
            named[name] = value
        else:
            positional[position] = value
    return tuple(positional), named


def activation(op: Op) -> str:
    """Name of the argument that is the activation: the first one of most operations."""
    entry = product(op) or norm(op)
    if entry is not None:
        return entry.activation
    return next(iter(_schema(op.func)))


# ---- products ------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Product:
    """An activation times a weight: names of the arguments, and what happens to the dimensions."""

    activation: str
    weight: str
    bias: str | None = None
    features: int = -1  # dimension of the activation that is summed over
    summed: int = -2  # dimension of the weight that is summed over
    made: int = -1  # dimension of the weight that becomes the output's
    output: int = -1  # dimension of the output that the weight makes
    addend: bool = False  # the bias is an operand with factors: beta · bias + alpha · product
    slides: bool = False  # a convolution: the other dimensions are covered by windows
    transposed: bool = False  # a transposed convolution

    def outputs_first(self, weight: Tensor, groups: int = 1) -> Tensor:
        """The weight as an ordinary layer has it: [outputs, inputs / groups, *kernel].

        A transposed convolution with stride s is an ordinary one with stride 1 of the input with
        s − 1 zeros between its positions, by the kernel turned round; its own weight is
        [inputs, outputs / groups, *kernel]. The way back is the same.
        """
        if not self.slides:
            return weight if self.made == 0 else weight.transpose(0, 1)
        if not self.transposed:
            return weight
        blocks = weight.unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1)
        return blocks.flip(list(range(2, weight.ndim)))

    def without_bias(self, op: Op, args: Args, kwargs: Kwargs) -> tuple[Tensor, Tensor | None]:
        """What the operation gives without its bias, and the bias."""
        bias = None if self.bias is None else argument(op, self.bias, args, kwargs)
        if bias is None:
            return op.func(*args, **kwargs), None
        if self.addend:
            x, weight = (argument(op, n, args, kwargs) for n in (self.activation, self.weight))
            return torch.matmul(x, weight), bias
        args, kwargs = replaced(op, args, kwargs, {str(self.bias): None})
        return op.func(*args, **kwargs), bias

    def with_bias(self, op: Op, y: Tensor, bias: Tensor | None) -> Tensor:
        """The operation's output, from the two parts of `without_bias`."""
        if bias is None:
            return y
        if self.addend:
            alpha, beta = argument(op, "alpha"), argument(op, "beta")
            y, bias = (x if f == 1 else x * f for x, f in ((y, alpha), (bias, beta)))
        return y + (bias.reshape(-1, *[1] * (y.ndim - 2)) if self.slides else bias)


_CONVOLUTION = Product(
    activation="input",
    weight="weight",
    bias="bias",
    features=1,
    summed=1,
    made=0,
    output=1,
    slides=True,
)
_TRANSPOSED = replace(_CONVOLUTION, summed=0, made=1, transposed=True)

PRODUCTS: dict[str, Product] = {
    "linear": Product(activation="input", weight="weight", bias="bias", summed=1, made=0),
    "mm": Product(activation="self", weight="mat2"),
    "matmul": Product(activation="self", weight="other"),
    "bmm": Product(activation="self", weight="mat2"),
    "addmm": Product(activation="mat1", weight="mat2", bias="self", addend=True),
    "baddbmm": Product(activation="batch1", weight="batch2", bias="self", addend=True),
    **dict.fromkeys(("convolution", "conv1d", "conv2d", "conv3d"), _CONVOLUTION),
    **{f"conv_transpose{n}d": _TRANSPOSED for n in (1, 2, 3)},
}
"""Products with a weight, by kind."""

_ATTENTION = Product(activation="query", weight="key", summed=-1, made=-2)


def product(op: Op) -> Product | None:
    """The entry of an operation that multiplies an activation with a weight; None for others."""
    entry = PRODUCTS.get(op.kind)
    return _TRANSPOSED if entry is _CONVOLUTION and argument(op, "transposed") else entry


@dataclass(frozen=True, kw_only=True)
class Window:
    """How the kernel of a convolution slides: one number for each dimension, or one for all."""

    stride: Sequence[int]
    padding: Sequence[int] | str
    dilation: Sequence[int]
    output_padding: Sequence[int]  # of a transposed convolution: more outputs at the end
    groups: int


def window(op: Op) -> Window | None:
    """The window of a convolution; None for other operations."""
    entry = product(op)
    if entry is None or not entry.slides:
        return None
    return Window(
        stride=argument(op, "stride"),
        padding=argument(op, "padding"),
        dilation=argument(op, "dilation"),
        output_padding=argument(op, "output_padding") or [0],
        groups=int(argument(op, "groups")),
    )


def lengths(op: Op, rank: Callable[[int], int]) -> list[list[Place]]:
    """The dimensions whose lengths are multiplied in the operation's FLOPs; several lists are added
    up.

    `rank` gives the number of dimensions of a value. Empty: the cost is a constant.
    """
    if op.kind == "scaled_dot_product_attention":
        q, k, v = (argument(op, name).id for name in ("query", "key", "value"))
        common = [*((op.outs[0], d) for d in range(rank(q) - 1)), (k, rank(k) - 2)]
        return [[*common, (q, rank(q) - 1)], [*common, (v, rank(v) - 1)]]
    entry = product(op)
    if entry is None:
        return []
    x, weight = argument(op, entry.activation).id, argument(op, entry.weight).id
    if entry.slides:
        return [[(x, 0), (weight, 0), (weight, 1)]]
    return [[*((op.outs[0], d) for d in range(rank(op.outs[0]))), (x, rank(x) - 1)]]


# ---- norms ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Norm:
    """A norm: names of its arguments. It runs over the channels (dimension 1) or the last ones."""

    activation: str = "input"
    parameters: tuple[str, ...] = ("weight", "bias")  # one number for each position it runs over
    sizes: str | None = None  # lengths of the last dimensions, which it then runs over
    groups: str | None = None  # number of groups of channels
    channels: str | None = None  # number of channels, where it is an argument
    stored: tuple[str, str] | None = None  # means and variances it may use instead of measuring

    def over(self, op: Op, rank: int) -> range:
        """The dimensions that it runs over, of an activation with `rank` dimensions."""
        if self.sizes is None:
            return range(1, 2)
        return range(rank - len(argument(op, self.sizes)), rank)

    def measures(self, op: Op) -> bool:
        """Whether it measures its input, rather than using stored means and variances."""
        if self.stored is None or argument(op, "training"):
            return True
        return any(argument(op, name) is None for name in self.stored)

    def narrowed(self, op: Op, args: Args, kwargs: Kwargs, index: Mapping[int, Tensor]) -> Any:
        """The norm of the kept positions only, with zeros at the others."""
        x = argument(op, self.activation, args, kwargs)
        small = _gather(x, index)
        first = self.over(op, x.ndim).start
        inner = {d - first: kept for d, kept in index.items()}
        new: dict[str, Any] = {self.activation: small}
        for name in self.parameters:
            parameter = argument(op, name, args, kwargs)
            if isinstance(parameter, Tensor):
                new[name] = _gather(parameter, inner)
        if self.sizes is not None:
            new[self.sizes] = list(small.shape[first:])
        if self.channels is not None:
            new[self.channels] = small.shape[1]
        if self.groups is not None and argument(op, self.groups) == x.shape[1]:
            new[self.groups] = small.shape[1]  # one group a channel, before and after
        args, kwargs = replaced(op, args, kwargs, new)
        result = op.func(*args, **kwargs)
        if isinstance(result, Tensor):
            return _scatter(result, x, index)
        return (_scatter(result[0], x, index), *result[1:])


_BATCH_NORM = Norm(
    parameters=("weight", "bias", "running_mean", "running_var"),
    stored=("running_mean", "running_var"),
)
_BATCH_NORMS = (
    "native_batch_norm",
    "_native_batch_norm_legit_no_training",
    "_native_batch_norm_legit",
    "batch_norm",
    "cudnn_batch_norm",
    "miopen_batch_norm",
)
_LAYER_NORM = Norm(sizes="normalized_shape")
_RMS_NORM = Norm(parameters=("weight",), sizes="normalized_shape")

NORMS: dict[str, Norm] = {
    **dict.fromkeys(_BATCH_NORMS, _BATCH_NORM),
    **dict.fromkeys(("native_layer_norm", "layer_norm"), _LAYER_NORM),
    **dict.fromkeys(("_fused_rms_norm", "rms_norm"), _RMS_NORM),
    "native_group_norm": Norm(groups="group", channels="C"),
    "group_norm": Norm(groups="num_groups"),
}
"""Norms, by kind."""


def norm(op: Op) -> Norm | None:
    """The entry of a norm; None for other operations."""
    return NORMS.get(op.kind)


# ---- on the kept positions only ------------------------------------------------------------------


def narrowed(op: Op, args: Args, kwargs: Kwargs, index: Mapping[int, Tensor]) -> Any:
    """The operation on the kept positions of its activation (dimension → positions) only.

    A norm's result is spread out again, with zeros; a product or a reduction has summed over the
    dimension, which is gone.
    """
    entry = norm(op)
    if entry is not None:
        return entry.narrowed(op, args, kwargs, index)
    factor = _ATTENTION if op.kind == "scaled_dot_product_attention" else product(op)
    name = activation(op) if factor is None else factor.activation
    new = {name: _gather(argument(op, name, args, kwargs), index)}
    if factor is not None:
        (kept,) = index.values()
        second = argument(op, factor.weight, args, kwargs)
        new[factor.weight] = _gather(second, {factor.summed: kept})
    args, kwargs = replaced(op, args, kwargs, new)
    return op.func(*args, **kwargs)


def _gather(x: Tensor, index: Mapping[int, Tensor]) -> Tensor:
    for dim, kept in index.items():
        x = x.index_select(dim, kept.to(x.device))
    return x


def _scatter(x: Tensor, like: Tensor, index: Mapping[int, Tensor]) -> Tensor:
    for dim, kept in index.items():
        shape = list(x.shape)
        shape[dim] = like.shape[dim]
        x = torch.zeros(shape, dtype=x.dtype, device=x.device).index_copy(dim, kept.to(x.device), x)
    return x


# ---- what else operations are recognised for -----------------------------------------------------

_POOLING = ("avg_pool", "adaptive_", "_adaptive_", "max_pool")
_RESIZING = (*_POOLING, "upsample", "_upsample", "slice", "constant_pad")

FAMILIES: dict[str, frozenset[str]] = {
    "sum of two": frozenset({"add", "sub"}),
    "plain sum of two": frozenset({"add"}),
    "scaling": frozenset({"mul", "div"}),
    "sum": frozenset({"sum"}),
    "relu": frozenset({"relu"}),
    "repetition": frozenset({"expand"}),
    "look-up": frozenset({"embedding"}),
    # What reads a table of positions: rows of it are added, concatenated with others or picked.
    "table": frozenset({"add", "cat", "index", "index_select", "gather"}),
    "copy": frozenset(
        {"view", "_unsafe_view", "reshape", "expand", "slice", "unsqueeze", "squeeze", "permute"}
        | {"transpose", "clone", "detach", "alias", "_to_copy", "repeat"}
        # positions of images are brought to other sizes
        | {"upsample_bicubic2d", "upsample_bilinear2d", "upsample_linear1d"}
    ),
    "view": frozenset({"view", "_unsafe_view"}),  # refuse memory in another order
    "memory order": frozenset({"as_strided"}),  # depend on it
    "volume pooling": frozenset(
        {"max_pool3d", "max_pool3d_with_indices", "avg_pool3d"}
        | {"_adaptive_avg_pool3d", "adaptive_avg_pool3d", "adaptive_max_pool3d"}
        | {"fractional_max_pool3d", "max_unpool3d"}
    ),
    # What comes out of these is not a choice between classes.
    "features": frozenset(
        {"native_layer_norm", "layer_norm", "rms_norm", "_fused_rms_norm", "tanh", "pixel_shuffle"}
    ),
}


def belongs(op: Op, family: str) -> bool:
    """Whether the operation is one of a family."""
    return op.kind in FAMILIES[family]


def joined(op: Op, rank: int) -> int | None:
    """Along which dimension values of this rank are put side by side, if several are."""
    if op.kind != "cat" or len(set(op.inputs)) < 2:
        return None
    along: int = argument(op, "dim") % rank
    return along


def moved(op: Op, old: Sequence[int], new: Sequence[int], dim: int) -> int | None:
    """Where a dimension of the value read (shape `old`) is in the value made (shape `new`).

    None if it cannot be said.
    """
    rank = len(old)
    if op.kind == "permute":
        return [d % rank for d in argument(op, "dims")].index(dim)
    if op.kind in ("transpose", "t"):
        swapped = (argument(op, "dim0"), argument(op, "dim1")) if op.kind != "t" else (0, -1)
        a, b = (d % rank for d in swapped)
        return {a: b, b: a}.get(dim, dim)
    if op.kind in ("view", "_unsafe_view", "reshape", "flatten", "squeeze", "unsqueeze"):
        # the same dimension has the same length, and as many numbers in those before it
        before = prod(old[:dim])
        places = [d for d, n in enumerate(new) if n == old[dim] and prod(new[:d]) == before]
        return places[0] if places else None
    if op.kind in ("mean", "sum", "amax", "logsumexp") and argument(op, "dim"):
        gone = {d % rank for d in argument(op, "dim")}
        if dim in gone:
            return None
        return dim if len(new) == rank else dim - sum(d < dim for d in gone)
    if op.kind == "select":
        picked = argument(op, "dim") % rank
        return None if picked == dim else dim - (picked < dim)
    if op.kind == "cat":
        return None if joined(op, rank) == dim else dim
    resized = op.kind.startswith(_RESIZING) and len(new) == rank and new[dim] == old[dim]
    return dim if resized or tuple(new) == tuple(old) else None
