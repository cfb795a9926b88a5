"""Calibration data: whatever the caller has, as checked batches of inputs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map

from subprune.data.batch import Batch, first_samples, on_device
from subprune.data.samples import LABEL_KEYS, is_sample, unbatched_dimensions
from subprune.data.sources import Lot, plain_item, read
from subprune.data.tokens import MASKS, token_counts, token_limit, unclear
from subprune.errors import DataError
from subprune.program.precision import HALF

if TYPE_CHECKING:
    from subprune.program.program import Inputs

__all__ = [
    "Taken",
    "batches",
    "examples",
    "model_dtype",
    "take",
]

_FEW = 32  # inputs of a data set that stand for it as an example


@dataclass(frozen=True)
class Taken:
    """What was taken of the caller's data, and remarks on how, for the report."""

    batches: list[Batch]
    remarks: tuple[str, ...] = ()


def batches(
    data: Any,
    model: nn.Module,
    n_samples: int | str | None = 512,
    *,
    forward: Callable[[Any], Any] | None = None,
    device: torch.device | None = None,
    seed: int = 0,
) -> list[Batch]:
    """`take` without the remarks."""
    return take(data, model, n_samples, forward=forward, device=device, seed=seed).batches


def take(
    data: Any,
    model: nn.Module,
    n_samples: int | str | None = 512,
    *,
    forward: Callable[[Any], Any] | None = None,
    device: torch.device | None = None,
    seed: int = 0,
) -> Taken:
    """`n_samples` samples of `data`, drawn by seed where it can be indexed; None takes all.

    ``"4096 tokens"`` takes samples until they have that many tokens that count.

    `data` is a tensor or an array of inputs, a tuple of these, a map-style data set, a DataLoader,
    or any iterable of tensors, of tuples ``(inputs, labels)`` or of dicts of keyword arguments;
    `subprune.data.samples` tells whether the items are batches or single samples. Labels are set
    aside. `forward` turns an item into the model's arguments (a tensor, tuple or dict) where these
    conventions do not fit. Fractions are cast to the model's precision.
    """
    dtype, remarks = model_dtype(model), dict[str, None]()
    if isinstance(data, Taken):  # read already, perhaps for a model of another type
        known = [on_device(_cast(batch, dtype)[0], device) for batch in data.batches]
        return Taken(known, data.remarks)
    tokens = token_limit(n_samples)

    def convert(item: Any) -> Batch:
        batch, cast = _cast(_batch(item, model, forward), dtype)
        remarks.update(dict.fromkeys(cast))
        return on_device(batch, device)

    def single(item: Any) -> bool:
        return is_sample(item, model, convert, lambda text: remarks.setdefault(text))

    if (
        isinstance(data, Tensor | np.ndarray)
        and data.ndim in unbatched_dimensions(model)
        and single(data)
    ):
        raise DataError(
            f"the data is a single input of shape {tuple(data.shape)}, without a batch dimension; "
            "give data[None] for this one input, or several as [samples, …]"
        )
    _check_lengths(data)
    # One sample per token is more than enough; how many are taken depends on their tokens.
    wanted = tokens or n_samples
    assert not isinstance(wanted, str)
    source = read(data, Lot(wanted, seed, shuffled=tokens is not None), single)
    taken: list[Batch] = []
    read_items, missing = 0, wanted
    for item in source.items:
        read_items += 1
        batch = convert(item)
        if batch.size == 0:
            continue
        worth = [1] * batch.size if tokens is None else token_counts(batch)
        if missing is not None and (first := _enough(worth, missing)) < batch.size:
            batch, worth = first_samples(batch, first), worth[:first]
            read_items -= 1  # not all of it
        taken.append(batch)
        _check(batch, len(taken))
        remarks.update(dict.fromkeys(unclear(batch.inputs)))
        if missing is not None:
            missing -= sum(worth)
            if missing <= 0:
                break
    if not taken:
        raise DataError("the data is empty; give at least one input, a few hundred are best")
    if source.stream and missing is not None and missing <= 0 and read_items != source.length:
        count = sum(b.size for b in taken)
        remarks[
            f"the first {count:,} inputs of a stream were taken; shuffle it if it is sorted"
        ] = None
    return Taken(taken, tuple(remarks))


def _check_lengths(data: Any) -> None:
    """Inputs with more or fewer labels are a mistake, not two batches."""
    arrays = isinstance(data, tuple) and all(isinstance(x, Tensor | np.ndarray) for x in data)
    if not arrays or len(data) != 2 or data[0].ndim < 2 or data[1].ndim != 1:
        return
    first, second = len(data[0]), len(data[1])
    if first != second and _is_labels(torch.as_tensor(data[1])):
        raise DataError(f"the data has {first:,} inputs and {second:,} labels; give one label each")


def _enough(worth: Sequence[int], missing: int) -> int:
    """How many samples, the first ones, are worth as much as is missing; all if they are not."""
    total = 0
    for count, each in enumerate(worth, 1):
        total += each
        if total >= missing:
            return count
    return len(worth)


def examples(model: nn.Module, example: Any) -> Inputs:
    """Arguments of one call: as they are given, or the first few inputs of what `take` reads.

    A list or tuple is read as arguments if the model takes that many, and they are not all dicts of
    its keyword arguments.
    """
    if isinstance(example, list | tuple) and (
        not _fits(model, len(example)) or all(_is_call(model, x) for x in example)
    ):
        return take(example, model, _FEW).batches[0].inputs
    if isinstance(example, Tensor | np.ndarray | tuple | list | Mapping):
        plain = Batch(_arguments(plain_item(example)), None, 0)
        return _cast(plain, model_dtype(model))[0].inputs
    return take(example, model, _FEW).batches[0].inputs


def _is_call(model: nn.Module, item: Any) -> bool:
    """Whether an item is a dict of the model's keyword arguments."""
    takes = inspect.signature(model.forward).parameters
    return isinstance(item, Mapping) and bool(item) and all(key in takes for key in item)


def _fits(model: nn.Module, count: int) -> bool:
    """Whether the model can be called with this number of arguments."""
    try:
        inspect.signature(model.forward).bind(*[None] * count)
    except TypeError:
        return False
    return True


def model_dtype(model: nn.Module) -> torch.dtype | None:
    """The type of the model's fractions, if it has only one.

    Of a model in half precision whose norms, say, are not, the type that most of its numbers have.
    """
    sizes: dict[torch.dtype, int] = {}
    for x in [*model.parameters(), *model.buffers()]:
        if x.is_floating_point():
            sizes[x.dtype] = sizes.get(x.dtype, 0) + x.numel()
    if len(sizes) == 1 or any(dtype in HALF for dtype in sizes):
        return max(sizes, key=lambda dtype: sizes[dtype])
    return None


def _cast(batch: Batch, dtype: torch.dtype | None) -> tuple[Batch, list[str]]:
    """Fractions in the model's precision, and a remark if they came in another."""

    def other(x: Any) -> bool:
        return (
            isinstance(x, Tensor)
            and x.is_floating_point()
            and dtype is not None
            and x.dtype != dtype
        )

    dtypes = sorted({str(x.dtype)[6:] for x in tree_flatten(batch.inputs)[0] if other(x)})
    if not dtypes:
        return batch, []
    inputs = tree_map(lambda x: x.to(dtype) if other(x) else x, batch.inputs)
    remark = f"inputs in {' and '.join(dtypes)} were cast to {str(dtype)[6:]}, the model's own"
    return Batch(inputs, batch.labels, batch.size), [remark]


def _batch(item: Any, model: nn.Module, forward: Callable[[Any], Any] | None) -> Batch:
    labels: Tensor | None = None
    item = plain_item(item)
    if isinstance(item, Mapping):
        aside = _label_keys(item, model)
        labels = next((item[k] for k in aside if isinstance(item[k], Tensor)), None)
    elif (
        isinstance(item, Sequence)
        and len(item) > 1
        and isinstance(item[-1], Tensor)
        and _is_labels(item[-1])
    ):
        labels = item[-1]
    if forward is not None:
        try:
            inspect.signature(forward).bind(item)
        except TypeError as error:
            raise DataError(
                f"forward= takes one item of the data and gives the model's arguments: {error}"
            ) from error
        except ValueError:  # a function without a signature
            pass
        item = forward(item)
        inputs = _arguments(item)
    elif isinstance(item, Mapping):
        inputs = ((), {k: v for k, v in item.items() if k not in aside})
    elif isinstance(item, Sequence) and not isinstance(item, str | bytes):
        inputs = (tuple(item[: _positional(model, len(item), labels is not None)]), {})
        labels = _surplus(item, model) if labels is None else labels
    else:
        inputs = _arguments(item)
    inputs = _masks_by_name(inputs, model)
    tensors = [x for x in tree_flatten(inputs)[0] if isinstance(x, Tensor)]
    if not tensors:
        raise DataError(
            f"an item of the data, a {type(item).__name__}, holds no tensor; give "
            "tensors or NumPy arrays, or forward=, which makes the model's arguments of an item"
        )
    return Batch(inputs, labels, tensors[0].shape[0] if tensors[0].ndim else 1)


def _masks_by_name(inputs: Inputs, model: nn.Module) -> Inputs:
    """The same call with a mask that was given by position, and what follows it, by name."""
    args, kwargs = inputs
    parameters = list(inspect.signature(model.forward).parameters.values())[: len(args)]
    first = next((i for i, p in enumerate(parameters) if p.name in MASKS), None)
    if first is None or any(p.kind is not p.POSITIONAL_OR_KEYWORD for p in parameters[first:]):
        return inputs
    named = {p.name: x for p, x in zip(parameters[first:], args[first:], strict=True)}
    return args[:first], {**named, **kwargs}


def _is_labels(x: Tensor) -> bool:
    return not x.is_floating_point() and x.ndim <= 1


def _positional(model: nn.Module, count: int, labelled: bool) -> int:
    """How many of an item's elements the model takes; the rest are labels."""
    if count > 1 and labelled:
        count -= 1
    return max(1, min(count, len(_required(model)) or count))


def _surplus(item: Sequence[Any], model: nn.Module) -> Tensor | None:
    """The last element where the model has no argument for it: labels, one entry per sample."""
    parameters = inspect.signature(model.forward).parameters.values()
    kinds = [
        p.kind for p in parameters if p.kind is not p.KEYWORD_ONLY and p.kind is not p.VAR_KEYWORD
    ]
    first, last = item[0], item[-1]
    if inspect.Parameter.VAR_POSITIONAL in kinds or len(item) != len(kinds) + 1:
        return None
    if (
        not isinstance(first, Tensor)
        or not isinstance(last, Tensor)
        or not first.ndim
        or not last.ndim
    ):
        return None
    return last if last.shape[0] == first.shape[0] else None


def _label_keys(item: Mapping[str, Any], model: nn.Module) -> list[str]:
    """What to set aside: not what the model cannot be called without, nor a `y` that it has a use
    for.
    """
    takes = inspect.signature(model.forward).parameters
    inputs = [*_required(model), *(k for k in ("y",) if k in takes)]
    return [k for k in LABEL_KEYS if k in item and k not in inputs]


def _required(model: nn.Module) -> list[str]:
    """The arguments that every call of the model needs."""
    parameters = inspect.signature(model.forward).parameters.values()
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind in by_place]


def _arguments(item: Any) -> Inputs:
    if isinstance(item, Tensor):
        return (item,), {}
    if isinstance(item, Mapping):
        return (), dict(item)
    if isinstance(item, tuple | list):
        return tuple(item), {}
    raise DataError(
        f"an item of the data is of type {type(item).__name__}; allowed are tensors, tuples "
        "and dicts (in Python, or anything else with forward=, which turns it into one of these)"
    )


def _check(batch: Batch, number: int) -> None:
    for x in tree_flatten(batch.inputs)[0]:
        if isinstance(x, Tensor) and x.is_meta:
            raise DataError(f"batch {number} of the data is on the meta device and has no values")
        if isinstance(x, Tensor) and x.is_floating_point() and not bool(torch.isfinite(x).all()):
            bad = torch.nonzero(~torch.isfinite(x).reshape(x.shape[0] if x.ndim else 1, -1).all(1))
            which = ", ".join(str(int(i)) for i in bad[:5]) + (", …" if len(bad) > 5 else "")
            raise DataError(
                f"batch {number} of the data contains NaN or infinity, in its inputs "
                f"{which} (counted from 0); remove those"
            )
