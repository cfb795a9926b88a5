"""What would fill the memory, in temporary files.

A run holds, for every batch, what is alive between two operations: of hundreds of large images that
is gigabytes; and new weights of a large model are as large as it is. A tensor on the shelf is an
ordinary one whose numbers lie in a file that is mapped into memory. The file has no name and goes
when nobody holds the tensor any more; the system takes its pages out of memory when it needs the
room, and reads them again.

Values of a run are given back (`rest`) when a batch has been dealt with. Weights may end up in a
result, and be trained there: their map is the process's own, so that what is written into it lies in
memory like anything else, and is never given back.
"""

from __future__ import annotations

import mmap
import tempfile
import weakref
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

__all__ = ["MODEL_BYTES", "RUN_BYTES", "is_large", "keeper", "rest", "shelved", "stored"]

RUN_BYTES = 384 * 2**20
"""Bytes of a run's values that stay in memory; those of larger runs go to files."""

MODEL_BYTES = 2**30
"""Bytes of a model's parameters; new weights of larger models go to files."""

SMALL = 2**18
"""Bytes of a tensor that stays in memory in any case."""

# By address; the tensor's storage holds the map.
_maps: weakref.WeakValueDictionary[int, mmap.mmap] = weakref.WeakValueDictionary()


def shelved(x: Tensor) -> Tensor:
    """A run's value in a file; itself if it is small, not on the CPU, or there already."""
    if not _worth_it(x) or x.untyped_storage().nbytes() != x.nbytes or x.data_ptr() in _maps:
        return x
    return _mapped(x, mmap.ACCESS_WRITE)


def stored(x: Tensor) -> Tensor:
    """A copy of a large model's tensor in a file; itself if it is small or not on the CPU."""
    return _mapped(x, mmap.ACCESS_COPY) if _worth_it(x) else x


def is_large(tensors: Iterable[Tensor]) -> bool:
    """Whether tensors, each counted once, take more memory than a second copy of them may."""
    plain = {id(x): x for x in tensors if type(x) in (Tensor, nn.Parameter)}
    return sum(x.nbytes for x in plain.values() if x.device.type == "cpu") > MODEL_BYTES


def keeper(model: nn.Module) -> Callable[[Tensor], Tensor]:
    """Where new weights of a model are kept: in files if it is large, otherwise as they are."""
    return stored if is_large(model.parameters()) else lambda x: x


def rest(x: Tensor) -> None:
    """Take a run's value in a file out of this process's memory until it is read again."""
    pages = _maps.get(x.data_ptr())
    if pages is not None and hasattr(mmap, "MADV_DONTNEED"):
        pages.madvise(mmap.MADV_DONTNEED)


def _worth_it(x: Tensor) -> bool:
    """Whether a tensor is large, and its numbers lie side by side in memory, each once."""
    if x.nbytes < SMALL or x.device.type != "cpu" or x.layout != torch.strided:
        return False
    if x.is_conj() or x.is_neg():
        return False
    return bool(torch.ops.aten.is_non_overlapping_and_dense(x))


def _mapped(x: Tensor, access: int) -> Tensor:
    """The same numbers in a file; the tensor itself where there is no room for one."""
    numbers = x.detach().as_strided((x.numel(),), (1,)).view(torch.uint8).numpy()
    try:
        with tempfile.TemporaryFile(prefix="subprune-") as file:
            # Written, not filled through the map: a full disk is then an error, not a signal.
            file.write(numbers.data)
            file.flush()
            pages = mmap.mmap(file.fileno(), x.nbytes, access=access)
    except OSError:  # no room, or no place for files: it stays in memory
        return x
    copy = torch.frombuffer(pages, dtype=x.dtype).as_strided(x.shape, x.stride())
    if access == mmap.ACCESS_WRITE:
        _maps[copy.data_ptr()] = pages
        rest(copy)
    return copy
