"""Calibration data: whatever the caller has, as checked batches of inputs."""

from __future__ import annotations

import bisect
import hashlib
import inspect
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map

from subprune.errors import DataError
from subprune.record import Inputs

__all__ = ["LABEL_KEYS", "Batch", "batches", "fingerprint", "first_samples", "folded", "signature"]

LABEL_KEYS = ("labels", "label", "targets", "target", "y")  # what labels are called in dicts and files
CHUNK = 128  # a single tensor is worked through in batches of this many samples


@dataclass(frozen=True)
class Batch:
    """Arguments for one call of the model, and labels if they came along."""

    inputs: Inputs
    labels: Tensor | None
    size: int


def batches(
    data: Any,
    model: nn.Module,
    n_samples: int | None = 512,
    *,
    forward: Callable[[Any], Any] | None = None,
    device: torch.device | None = None,
) -> list[Batch]:
    """The first `n_samples` samples of `data` as batches; None takes all.

    `data` is a tensor of inputs, a DataLoader, or any iterable of tensors, of tuples ``(inputs, labels)`` or
    of dicts of keyword arguments. Labels are set aside. `forward` turns an item into the model's arguments
    (a tensor, tuple or dict) where these conventions do not fit.
    """
    if n_samples is not None and (not isinstance(n_samples, int) or n_samples < 1):
        raise DataError(f"n_samples must be a positive integer or None, got {n_samples!r}")
    found: list[Batch] = []
    left = n_samples
    for item in _items(data):
        batch = _batch(item, model, forward)
        if batch.size == 0:
            continue
        if left is not None and batch.size > left:
            batch = first_samples(batch, left)
        found.append(_to(batch, device))
        _check(found[-1], len(found))
        if left is not None:
            left -= batch.size
            if left <= 0:
                break
    if not found:
        raise DataError("the calibration data is empty; give at least one input, a few hundred are best")
    return found


def _items(data: Any) -> Iterable[Any]:
    if isinstance(data, Tensor):
        if data.ndim == 0 or data.shape[0] == 0:
            raise DataError(f"the calibration data is empty: a tensor of shape {tuple(data.shape)}")
        return data.split(CHUNK)
    if isinstance(data, Mapping):
        return [data]
    if isinstance(data, str | bytes) or not isinstance(data, Iterable):
        raise DataError(
            f"calibration data of type {type(data).__name__} cannot be read; give a tensor, a DataLoader, or an "
            "iterable of tensors, (inputs, labels) tuples or dicts"
        )
    if isinstance(data, tuple) and data and all(isinstance(x, Tensor) for x in data):
        sizes = {x.shape[0] if x.ndim else 0 for x in data}
        if len(sizes) == 1:  # (inputs, labels) of the whole set
            return zip(*(x.split(CHUNK) for x in data), strict=True)
    return data


def _batch(item: Any, model: nn.Module, forward: Callable[[Any], Any] | None) -> Batch:
    labels: Tensor | None = None
    if isinstance(item, Mapping):
        aside = _label_keys(item, model)
        labels = next((item[k] for k in aside if isinstance(item[k], Tensor)), None)
    elif isinstance(item, Sequence) and len(item) > 1 and isinstance(item[-1], Tensor) and _is_labels(item[-1]):
        labels = item[-1]
    if forward is not None:
        item = forward(item)
        inputs = _arguments(item)
    elif isinstance(item, Mapping):
        inputs = ((), {k: v for k, v in item.items() if k not in aside})
    elif isinstance(item, Sequence) and not isinstance(item, str | bytes):
        inputs = (tuple(item[: _positional(model, len(item), labels is not None)]), {})
    else:
        inputs = _arguments(item)
    tensors = [x for x in tree_flatten(inputs)[0] if isinstance(x, Tensor)]
    if not tensors:
        raise DataError(f"an item of the calibration data holds no tensor: {type(item).__name__}")
    return Batch(inputs, labels, tensors[0].shape[0] if tensors[0].ndim else 1)


def _is_labels(x: Tensor) -> bool:
    return not x.is_floating_point() and x.ndim <= 1


def _positional(model: nn.Module, given: int, labelled: bool) -> int:
    """How many of an item's elements the model takes; the rest are labels."""
    if given > 1 and labelled:
        given -= 1
    return max(1, min(given, len(_required(model)) or given))


def _label_keys(item: Mapping[str, Any], model: nn.Module) -> list[str]:
    """What to set aside: not what the model cannot be called without, nor a `y` that it has a use for."""
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
        f"an item of the calibration data is a {type(item).__name__}; allowed are tensors, tuples and dicts "
        "(or pass forward= to turn it into one)"
    )


def first_samples(batch: Batch, count: int) -> Batch:
    """The first samples of a batch."""
    return _samples(batch, 0, count)


def _samples(batch: Batch, start: int, stop: int) -> Batch:
    """Samples start … stop - 1 of a batch; tensors with another first dimension stay whole."""

    def cut(x: Any) -> Any:
        whole = not isinstance(x, Tensor) or not x.ndim or x.shape[0] != batch.size
        return x if whole else x[start:stop]

    labels = None if batch.labels is None else batch.labels[start:stop]
    return Batch(tree_map(cut, batch.inputs), labels, stop - start)


def folded(batches: Sequence[Batch], parts: int) -> tuple[list[Batch], list[int]]:
    """The batches, and for each the number of the fold that it belongs to.

    Folds are numbered from 0 without gaps, at most `parts` of them, and are as equal in samples as
    whole batches allow; only where there are fewer batches than parts are these cut, at the borders of
    equal parts of all samples. No sample is moved, lost or repeated. A lone batch that cannot be cut
    (of one sample, or with tensors of different lengths) makes one fold, so nothing can be held out.
    """
    if parts < 1:
        raise DataError(f"the samples are divided into at least 1 part, got {parts}")
    if len(batches) >= parts or not all(_divisible(b) for b in batches):
        return list(batches), _balanced([b.size for b in batches], min(parts, len(batches)))
    total = sum(b.size for b in batches)
    borders = sorted({round(i * total / parts) for i in range(1, parts)} - {0, total})
    pieces, folds, start = [], [], 0
    for batch in batches:
        inside = [b - start for b in borders if start < b < start + batch.size]
        for a, b in itertools.pairwise([0, *inside, batch.size]):
            pieces.append(_samples(batch, a, b) if inside else batch)
            folds.append(bisect.bisect_right(borders, start + a))
        start += batch.size
    return pieces, folds


def _divisible(batch: Batch) -> bool:
    """Whether every tensor has one entry per sample, or one for all."""
    tensors = [x for x in tree_flatten(batch.inputs)[0] if isinstance(x, Tensor) and x.ndim]
    return all(x.shape[0] in (1, batch.size) for x in tensors)


def _balanced(sizes: Sequence[int], folds: int) -> list[int]:
    """A fold for each size: the largest first, each to the fold with the fewest samples so far."""
    held = [0] * folds
    chosen = [0] * len(sizes)
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        chosen[i] = min(range(folds), key=lambda f: held[f])
        held[chosen[i]] += sizes[i]
    return chosen


def _to(batch: Batch, device: torch.device | None) -> Batch:
    if device is None:
        return batch
    moved = tree_map(lambda x: x.to(device) if isinstance(x, Tensor) else x, batch.inputs)
    return Batch(moved, None if batch.labels is None else batch.labels.to(device), batch.size)


def _check(batch: Batch, number: int) -> None:
    for x in tree_flatten(batch.inputs)[0]:
        if isinstance(x, Tensor) and x.is_floating_point() and not bool(torch.isfinite(x).all()):
            raise DataError(f"batch {number} of the calibration data contains NaN or infinity; remove those samples")


def signature(inputs: Inputs) -> tuple[Any, ...]:
    """What a recorded program depends on: shapes and types of all tensors, and the other arguments."""
    flat, spec = tree_flatten(inputs)
    parts = [(tuple(x.shape), str(x.dtype)) if isinstance(x, Tensor) else repr(x) for x in flat]
    return (str(spec), *parts)


def fingerprint(batches: Sequence[Batch]) -> str:
    """A hash of all inputs, to tell later whether a result was made with the same data."""
    digest = hashlib.sha256()
    for batch in batches:
        for x in tree_flatten(batch.inputs)[0]:
            if isinstance(x, Tensor):
                digest.update(f"{tuple(x.shape)}{x.dtype}".encode())
                digest.update(x.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
            else:
                digest.update(repr(x).encode() if isinstance(x, str | int | float | bool | None) else b"object")
    return digest.hexdigest()[:32]
