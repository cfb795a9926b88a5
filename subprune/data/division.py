"""Batches in folds: the same samples, divided so that some can be held out, in pieces that fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from subprune.data.batch import Batch, per_sample, some_samples
from subprune.errors import DataError

__all__ = ["folded"]


def folded(
    batches: Sequence[Batch], parts: int, *, whole: bool = False, most: int | None = None
) -> tuple[list[Batch], list[int]]:
    """Batches of the same samples, and for each the number of the fold that it belongs to.

    Folds are numbered from 0 without gaps, at most `parts` of them. Samples are dealt out one by
    one, so that data sorted by class gives folds that are alike, and what a fold gets of several
    batches is put together again up to their size, or `most` samples if that is less. Batches that
    cannot be taken apart (tensors of different lengths), or that are to stay `whole`, go to folds
    as they are; a lone one makes one fold, so that nothing can be held out.
    """
    largest = max(b.size for b in batches)
    smaller = most is not None and most < largest
    if parts < 1:
        raise DataError(f"the samples are divided into at least 1 part, got {parts}")
    if whole or (parts == 1 and not smaller) or not all(_divisible(b) for b in batches):
        return list(batches), _balanced([b.size for b in batches], min(parts, len(batches)))
    parts = min(parts, sum(b.size for b in batches))
    # Dealt like cards: sample s of all goes to fold s mod parts. Of a batch that begins at sample
    # `start`, a fold gets every sample at a distance of `parts`, from its own first one on.
    hands: list[list[Batch]] = [[] for _ in range(parts)]
    start = 0
    for batch in batches:
        for fold in range(parts):
            first = (fold - start) % parts
            if first < batch.size:
                hands[fold].append(
                    some_samples(batch, slice(first, None, parts)) if batch.size > 1 else batch
                )
        start += batch.size
    pieces = [
        (piece, fold)
        for fold, hand in enumerate(hands)
        for b in _together(hand, largest)
        for piece in _divided(b, largest if most is None else most)
    ]
    return [b for b, _ in pieces], [fold for _, fold in pieces]


def _together(batches: Sequence[Batch], most: int) -> list[Batch]:
    """The same samples in fewer batches, of at most `most` samples each."""
    joined: list[Batch] = []
    for batch in batches:
        both = (
            _joined(joined[-1], batch) if joined and joined[-1].size + batch.size <= most else None
        )
        if both is None:
            joined.append(batch)
        else:
            joined[-1] = both
    return joined


def _divided(batch: Batch, most: int) -> Iterator[Batch]:
    """The samples of a batch in pieces of at most `most`."""
    if batch.size <= most:
        yield batch
        return
    for start in range(0, batch.size, most):
        yield some_samples(batch, slice(start, start + most))


def _joined(a: Batch, b: Batch) -> Batch | None:
    """Two batches as one; None where their tensors are not alike."""
    (flat_a, spec), (flat_b, other) = tree_flatten(a.inputs), tree_flatten(b.inputs)
    if spec != other or (a.labels is None) != (b.labels is None):
        return None
    leaves = []
    for x, y in zip(flat_a, flat_b, strict=True):
        if (
            per_sample(x, a)
            and per_sample(y, b)
            and x.shape[1:] == y.shape[1:]
            and x.dtype == y.dtype
        ):
            leaves.append(torch.cat([x, y]))
        elif isinstance(x, Tensor) or isinstance(y, Tensor) or x != y:
            return None
        else:
            leaves.append(x)
    labels = None
    if a.labels is not None and b.labels is not None:
        if a.labels.shape[1:] != b.labels.shape[1:] or a.labels.dtype != b.labels.dtype:
            return None
        labels = torch.cat([a.labels, b.labels])
    return Batch(tree_unflatten(leaves, spec), labels, a.size + b.size)


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
