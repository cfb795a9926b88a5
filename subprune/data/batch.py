"""One call of the model on calibration data, and what can be done with its samples."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

if TYPE_CHECKING:
    from subprune.program.program import Inputs

__all__ = [
    "Batch",
    "fingerprint",
    "first_samples",
    "on_device",
    "per_sample",
    "signature",
    "some_samples",
]


@dataclass(frozen=True)
class Batch:
    """Arguments for one call of the model, and labels if there are any."""

    inputs: Inputs
    labels: Tensor | None
    size: int


def first_samples(batch: Batch, count: int) -> Batch:
    """The first samples of a batch."""
    return some_samples(batch, slice(0, count))


def some_samples(batch: Batch, chosen: slice) -> Batch:
    """Some samples of a batch; tensors with another first dimension stay whole."""
    kept = len(range(batch.size)[chosen])
    labels = None if batch.labels is None else batch.labels[chosen]
    return Batch(
        tree_map(lambda x: x[chosen] if per_sample(x, batch) else x, batch.inputs), labels, kept
    )


def per_sample(x: Any, batch: Batch) -> bool:
    """Whether it is a tensor with one entry for each sample of the batch."""
    return isinstance(x, Tensor) and x.ndim > 0 and x.shape[0] == batch.size


def on_device(batch: Batch, device: torch.device | None) -> Batch:
    """The same there; None leaves it where it is."""
    if device is None:
        return batch
    moved = tree_map(lambda x: x.to(device) if isinstance(x, Tensor) else x, batch.inputs)
    return Batch(moved, None if batch.labels is None else batch.labels.to(device), batch.size)


def signature(inputs: Inputs) -> tuple[Any, ...]:
    """What a recorded program depends on: shapes and types of all tensors,
    and the other arguments.
    """
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
                digest.update(
                    x.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
                )
            else:
                digest.update(
                    repr(x).encode()
                    if isinstance(x, str | int | float | bool | None)
                    else b"object"
                )
    return digest.hexdigest()[:32]
