"""What a caller gives as data, as batches in the caller's own form.

Samples are drawn by seed wherever the data can be indexed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate
from torch.utils.data import sampler as samplers

from subprune.errors import DataError

__all__ = [
    "ALLOWED_VALUES",
    "CHUNK",
    "Lot",
    "Source",
    "as_tensor",
    "collate",
    "draw",
    "plain_item",
    "read",
    "wrong_values",
]

CHUNK = 128  # samples are worked through in batches of this many, unless the caller made batches
_ALLOWED = (
    "give a tensor, a NumPy array, a tuple of these, a Dataset, a DataLoader, or an iterable of "
    "tensors, (inputs, labels) tuples or dicts"
)
ALLOWED_VALUES = "allowed are numbers; classes are numbered 0, 1, 2, …"
_RANDOM = (samplers.RandomSampler, samplers.SubsetRandomSampler, samplers.WeightedRandomSampler)
Single = Callable[[Any], bool]  # whether an item is one sample, without a batch dimension


@dataclass(frozen=True)
class Source:
    """Batches as the caller has them, each still to be turned into arguments of the model."""

    items: Iterable[Any]
    stream: bool = False  # its order is not known here: the first samples are not random
    length: int | None = None  # of a stream, in items, if it says


@dataclass(frozen=True)
class Lot:
    """How samples are drawn: `n` of them, by seed; all in their own order if there are no more."""

    n: int | None  # None: all
    seed: int = 0
    shuffled: bool = False  # all of them in random order too: the caller may take just the first

    def holds(self, length: int) -> bool:
        """Whether that number of samples is taken as they come."""
        return self.n is None or (length <= self.n and not self.shuffled)

    def rows(self, length: int) -> list[int] | None:
        """The numbers of those drawn; None if they are taken as they come."""
        if self.holds(length) or self.n is None:
            return None
        generator = torch.Generator().manual_seed(self.seed)
        if length <= max(2**24, 2 * self.n):
            return torch.randperm(length, generator=generator)[: self.n].tolist()
        drawn: dict[int, None] = {}  # of a large number, hardly any is drawn twice
        while len(drawn) < self.n:
            more = torch.randint(length, (self.n,), generator=generator).tolist()
            drawn.update(dict.fromkeys(more))
        return list(drawn)[: self.n]


def read(data: Any, lot: Lot, single: Single) -> Source:
    """Samples of the data as batches, drawn without replacement as `lot` says.

    `single` says of an item whether it is one sample or a batch; lists and data sets may hold
    either. A stream is returned whole, in its own order.
    """
    data = data if isinstance(data, list) else plain_item(data)
    if isinstance(data, Tensor):
        return Source(_rows(data, lot))
    if isinstance(data, Mapping):
        return Source([_picked(data, lot)])
    if isinstance(data, tuple) and data and all(isinstance(x, Tensor) for x in data):
        sizes = {x.shape[0] if x.ndim else 0 for x in data}
        if len(sizes) == 1:  # (inputs, labels) of the whole set
            return Source(zip(*(_rows(x, lot) for x in data), strict=True))
    if isinstance(data, DataLoader):
        return _loader(data, lot, single)
    if isinstance(data, list | tuple):
        return Source(_listed([plain_item(x) for x in data], lot, single))
    if _indexable(data):
        return Source(_indexed(data, lot, single))
    if isinstance(data, Iterable) and not isinstance(data, str | bytes):
        return _stream(data, single)
    if isinstance(data, str | Path):
        raise DataError(
            f"data of type {type(data).__name__} cannot be read; {_ALLOWED}, or what "
            "subprune.read_data(path, model) makes of a file or folder"
        )
    raise DataError(f"data of type {type(data).__name__} cannot be read; {_ALLOWED}")


def draw(length: int, n: int | None, seed: int) -> list[int] | None:
    """`n` different numbers below `length`, in random order; None if that is all of them."""
    return Lot(n, seed).rows(length)


# ---- kinds of data ------------------------------------------------------------------------------


def _rows(data: Tensor, lot: Lot) -> tuple[Tensor, ...]:
    """The whole set in one tensor [samples, …]."""
    if data.ndim == 0 or data.shape[0] == 0:
        raise DataError(f"the data is empty: a tensor of shape {tuple(data.shape)}")
    rows = lot.rows(data.shape[0])
    return (data if rows is None else data[torch.tensor(rows)]).split(CHUNK)


def _picked(data: Mapping[str, Any], lot: Lot) -> Mapping[str, Any]:
    """The whole set as keyword arguments: the same samples of each."""
    tensors = [x for x in tree_flatten(dict(data))[0] if isinstance(x, Tensor)]
    sizes = {x.shape[0] if x.ndim else 0 for x in tensors}
    rows = lot.rows(sizes.pop()) if len(sizes) == 1 else None
    if rows is None:
        return data
    return tree_map(lambda x: x[torch.tensor(rows)] if isinstance(x, Tensor) else x, dict(data))


def _loader(loader: DataLoader[Any], lot: Lot, single: Single) -> Source:
    """A loader that goes in order is drawn from; one that shuffles has drawn already."""
    dataset, size = loader.dataset, loader.batch_size
    if isinstance(loader.sampler, _RANDOM) and size is not None:
        return Source(loader)
    in_order = isinstance(loader.sampler, samplers.SequentialSampler) and _indexable(dataset)
    if size is None or not in_order:
        return _stream(loader, single)
    rows = lot.rows(len(dataset))  # type: ignore[arg-type]
    if rows is None:
        return Source(loader)
    parts = [rows[i : i + size] for i in range(0, len(rows), size)]
    return Source(loader.collate_fn([dataset[i] for i in part]) for part in parts)


def _listed(items: list[Any], lot: Lot, single: Single) -> Iterable[Any]:
    """A list of samples, or of batches; batches that are not alike are drawn whole."""
    if not items:
        return items
    if single(items[0]):
        rows = lot.rows(len(items))
        return collate(items if rows is None else (items[i] for i in rows))
    sizes = [_size(x) for x in items]
    if None in sizes:  # no tensors yet: `forward` makes them
        return _whole(items, lot)
    rows = lot.rows(sum(s or 0 for s in sizes))
    if rows is None:
        return items
    if not _alike(items):
        return _whole(items, lot)
    places = [(i, row) for i, size in enumerate(sizes) for row in range(size or 0)]
    chosen = [places[r] for r in rows]
    length = max(s or 0 for s in sizes)
    return (_joined(items, chosen[i : i + length]) for i in range(0, len(chosen), length))


def _indexed(data: Any, lot: Lot, single: Single) -> Iterable[Any]:
    """A map-style data set of samples, or of batches; those of the datasets library as tensors."""
    if hasattr(data, "with_format") and hasattr(data, "column_names"):
        data = data.with_format("torch")
    if len(data) == 0:
        return []
    if not single(plain_item(data[0])):
        return _whole(data, lot)
    rows = lot.rows(len(data))
    return collate(plain_item(data[i]) for i in (range(len(data)) if rows is None else rows))


def _whole(items: Any, lot: Lot) -> Iterator[Any]:
    """Batches, in random order if they hold more samples than asked for, judging by the first."""
    total = len(items) * (_size(plain_item(items[0])) or 1)
    if lot.holds(total):
        return (items[i] for i in range(len(items)))
    generator = torch.Generator().manual_seed(lot.seed)
    order = torch.randperm(len(items), generator=generator).tolist()
    return (items[i] for i in order)


def _stream(data: Iterable[Any], single: Single) -> Source:
    """Anything that can only be gone through; the first item tells whether it holds samples."""
    length = _length(data)
    items = iter(data)
    first = list(itertools.islice(items, 1))
    whole: Iterator[Any] = itertools.chain(first, items)
    if first and single(plain_item(first[0])):
        batches = None if length is None else -(-length // CHUNK)
        return Source(collate(plain_item(x) for x in whole), stream=True, length=batches)
    return Source(whole, stream=True, length=length)


def _length(data: Any) -> int | None:
    """How many items there are; None where a loader of a stream has no answer."""
    try:
        return len(data)
    except TypeError:
        return None


def _indexable(data: Any) -> bool:
    if isinstance(data, IterableDataset | Mapping | str | bytes):
        return False
    return (isinstance(data, Dataset) or hasattr(data, "__getitem__")) and hasattr(data, "__len__")


# ---- samples and batches ------------------------------------------------------------------------


def collate(samples: Iterable[Any]) -> Iterator[Any]:
    """Batches of samples that follow each other and have the same shapes."""
    for _, alike in itertools.groupby(samples, _shapes):
        while part := list(itertools.islice(alike, CHUNK)):
            yield _collated(part)


def _collated(samples: Sequence[Any]) -> Any:
    try:
        return default_collate(list(samples))
    except (TypeError, RuntimeError, KeyError) as error:
        text = str(error).strip().split("\n")[0][:200]
        raise DataError(
            f"samples of the data ({type(samples[0]).__name__}) cannot be put "
            f"into one batch: {text}; let the data set return tensors, or give a "
            "DataLoader with a collate_fn"
        ) from error


def _shapes(item: Any) -> tuple[Any, ...]:
    leaves, spec = tree_flatten(item)
    return (str(spec), *(tuple(x.shape) if isinstance(x, Tensor) else type(x) for x in leaves))


def _size(item: Any) -> int | None:
    """Samples in a batch; None if it holds no tensor."""
    tensors = [x for x in tree_flatten(item)[0] if isinstance(x, Tensor)]
    return (tensors[0].shape[0] if tensors[0].ndim else 1) if tensors else None


def _alike(items: Sequence[Any]) -> bool:
    """Whether any samples of these batches could have been in one batch."""

    def kind(item: Any) -> tuple[Any, ...] | None:
        leaves, spec = tree_flatten(item)
        if any(isinstance(x, Tensor) and (not x.ndim or x.shape[0] != _size(item)) for x in leaves):
            return None
        return (str(spec), *(_row_kind(x) for x in leaves))

    kinds = {kind(x) for x in items}
    return len(kinds) == 1 and None not in kinds


def _row_kind(x: Any) -> Any:
    return (tuple(x.shape[1:]), x.dtype, x.device) if isinstance(x, Tensor) else repr(x)


def _joined(items: Sequence[Any], places: Sequence[tuple[int, int]]) -> Any:
    """A batch of samples, each given by the number of its batch and its row there."""
    spec = tree_flatten(items[0])[1]
    columns = zip(*(tree_flatten(items[i])[0] for i, _ in places), strict=True)
    rows = [row for _, row in places]
    leaves = [
        torch.stack([x[row] for x, row in zip(column, rows, strict=True)])
        if isinstance(column[0], Tensor)
        else column[0]
        for column in columns
    ]
    return tree_unflatten(leaves, spec)


# ---- arrays -------------------------------------------------------------------------------------


def plain_item(data: Any) -> Any:
    """NumPy arrays as tensors, also inside tuples, lists and dicts; everything else as it is."""
    if isinstance(data, Tensor):
        return data
    if hasattr(data, "to_numpy") and not isinstance(data, np.ndarray):
        kind = type(data).__name__
        raise DataError(f"data of type {kind} cannot be read; give data.to_numpy()")
    if isinstance(data, Mapping) and not isinstance(data, dict):
        data = dict(data)
    if isinstance(data, np.ndarray | list | tuple | dict):
        return tree_map(lambda x: as_tensor(x) if isinstance(x, np.ndarray) else x, data)
    return data


def wrong_values(dtype: np.dtype) -> str:
    """What an array holds that has no numbers."""
    return "texts" if dtype.kind in "US" else f"values of type {dtype}"


def as_tensor(array: np.ndarray) -> Tensor:
    """The array as a tensor that shares its memory where it can."""
    if array.dtype.kind not in "fiub":
        raise DataError(f"the data holds {wrong_values(array.dtype)}; {ALLOWED_VALUES}")
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    if native.dtype.kind == "u" and native.dtype.itemsize > 1:
        native = native.astype(np.int64)
    if native.dtype == np.longdouble:
        native = native.astype(np.float64)
    contiguous = np.ascontiguousarray(native).reshape(array.shape)  # a lone number gets a dimension
    return torch.from_numpy(contiguous if contiguous.flags.writeable else contiguous.copy())
