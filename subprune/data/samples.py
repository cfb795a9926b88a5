"""Whether an item of somebody's data is a batch, or a single sample yet to be put into one.

Shapes alone do not tell: PyTorch's convolutions take an image without a batch dimension, and
linear layers take anything. The rule, in this order:

1. A vector of labels, one for each row, makes a batch.
2. The model is run, on shapes only, with the item as it is and with three of it stacked. What runs
   one way only is read that way. If neither runs, the item is a batch, and the error says why.
3. A single number as label makes a sample, except beside one row, which a batch of one is too.
4. A convolution, pooling, recurrent or attention layer that sees an item without, and a stack with
   a batch dimension, makes a sample.
5. If the outputs keep the rows apart one way only (one row of output for each), it is that way.
6. Where a stack gives a stack of the item's outputs, the model treats rows alike and both readings
   compute the same: a vector of fractions is then a sample, everything else a batch.
7. What is left could be either: a vector is a sample, anything larger a batch, with a remark.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten
from torch.utils.data import default_collate

from subprune.data.batch import Batch
from subprune.errors import DataError
from subprune.program.record import record

__all__ = ["LABEL_KEYS", "is_sample", "unbatched_dimensions"]

LABEL_KEYS = ("labels", "label", "targets", "target", "y")  # their names in dicts and files
_STACKED = 3

_SLIDING = ("Conv", "ConvTranspose", "MaxPool", "AvgPool")
# How many dimensions an input without a batch dimension has, by kind of layer.
_UNBATCHED: dict[type[nn.Module], int] = {
    nn.RNNBase: 2,
    nn.MultiheadAttention: 2,
    **{getattr(nn, f"{kind}{n}d"): n + 1 for kind in _SLIDING for n in (1, 2, 3)},
}


Convert = Callable[[Any], Batch]  # an item as arguments of the model


@dataclass(frozen=True)
class _Run:
    """What a run of the model on shapes showed."""

    unbatched: bool  # a layer saw an input without a batch dimension
    apart: bool  # the first output has a row for each row of the input
    output: tuple[int, ...]  # its shape


def is_sample(item: Any, model: nn.Module, convert: Convert, remark: Callable[[str], None]) -> bool:
    """Whether an item is a single sample, by the rule above; what is doubtful is remarked."""
    labels = _labels(item, convert)
    if labels == "rows":
        return False
    alone = _run(item, model, convert)
    stacked = _run_stacked(item, model, convert)
    if alone is None or stacked is None:
        if labels == "one" and alone is not None:
            raise DataError(_contradiction(item))
        return alone is None and stacked is not None
    if labels == "one":
        return True
    if alone.unbatched != stacked.unbatched:
        return alone.unbatched
    if alone.apart != stacked.apart:
        return stacked.apart
    tensor = _first_tensor(item)
    if tensor is None:
        return False
    alike = stacked.output == (_STACKED, *alone.output)
    if tensor.ndim > 1 and not alike:
        shape, rows = tuple(tensor.shape), tensor.shape[0]
        remark(
            f"items of shape {shape} were read as batches of {rows}; if each is one "
            "sample, give torch.stack(items)"
        )
    return tensor.ndim <= 1 and (tensor.is_floating_point() or not alike)


def unbatched_dimensions(model: nn.Module) -> set[int]:
    """How many dimensions inputs of this model's layers have without a batch dimension."""
    return {n for m in model.modules() for kind, n in _UNBATCHED.items() if isinstance(m, kind)}


def _run(item: Any, model: nn.Module, convert: Convert) -> _Run | None:
    """A run on shapes only; None if the model does not take the item."""
    try:
        batch = convert(item)
        with _watched() as unbatched:
            program = record(model, batch.inputs)
    except Exception:  # whatever a model may raise on inputs of the wrong shape
        return None
    shape = program.values[program.outputs[0]].shape if program.outputs else ()
    return _Run(any(unbatched), bool(shape) and shape[0] == batch.size, tuple(shape))


def _run_stacked(item: Any, model: nn.Module, convert: Convert) -> _Run | None:
    try:
        stacked = default_collate([item] * _STACKED)
    except Exception:  # samples of a kind that cannot be stacked, such as pictures
        return None
    return _run(stacked, model, convert)


@contextlib.contextmanager
def _watched() -> Iterator[list[bool]]:
    """For every run of a layer in the table: whether its input had no batch dimension."""
    unbatched: list[bool] = []

    def look(module: nn.Module, args: tuple[Any, ...]) -> None:
        dims = next((n for kind, n in _UNBATCHED.items() if isinstance(module, kind)), None)
        if dims is not None and args and isinstance(args[0], Tensor):
            unbatched.append(args[0].ndim == dims)

    hook = nn.modules.module.register_module_forward_pre_hook(look)
    try:
        yield unbatched
    finally:
        hook.remove()


# ---- labels -------------------------------------------------------------------------------------


def _labels(item: Any, convert: Convert) -> str:
    """What labels there are: "rows" (one for each row), "one" (a single number, and more rows than
    one or none), or nothing that tells.
    """
    try:
        batch = convert(item)
    except Exception:
        return ""
    tensor = _first_tensor(batch.inputs)
    rows = tensor.shape[0] if tensor is not None and tensor.ndim > 1 else 0
    labels = batch.labels
    if labels is not None and labels.is_floating_point() and not isinstance(item, Mapping):
        labels = None  # three numbers may be the target of one image with three channels
    if labels is not None and labels.ndim == 1 and labels.shape[0] == rows:
        return "rows"
    args, kwargs = batch.inputs
    if isinstance(item, Mapping):
        one = any(k in item and k not in kwargs and _is_number(item[k]) for k in LABEL_KEYS)
    else:
        one = isinstance(item, Sequence) and len(item) > max(len(args), 1) and _is_number(item[-1])
    return "one" if one and rows != 1 else ""  # one row and one number: either


def _is_number(x: Any) -> bool:
    return isinstance(x, int | float | np.generic) or (isinstance(x, Tensor) and x.ndim == 0)


def _first_tensor(item: Any) -> Tensor | None:
    return next((x for x in tree_flatten(item)[0] if isinstance(x, Tensor)), None)


def _contradiction(item: Any) -> str:
    tensor = _first_tensor(item)
    shape = None if tensor is None else tuple(tensor.shape)
    return (
        f"items of the data hold a tensor of shape {shape} and a single number: with "
        "the number as its label each is one sample, but the model takes it only as a batch; give "
        "torch.stack of the samples if they are samples, or the tensors alone if they are batches"
    )
