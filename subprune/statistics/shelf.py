"""Values of a run that would fill the memory, in temporary files.

A run holds, for every batch, what is alive between two operations: of hundreds of large images that
is gigabytes. A tensor on the shelf is an ordinary one whose numbers lie in a file that is mapped
into memory. The file has no name and goes when nobody holds the tensor any more; what was read of
it is given back to the system when a batch has been dealt with (`rest`), which keeps it in memory
as long as there is enough.
"""

from __future__ import annotations

import mmap
import tempfile
import weakref

import torch
from torch import Tensor

__all__ = ["RUN_BYTES", "rest", "shelved"]

RUN_BYTES = 384 * 2**20
"""Bytes of a run's values that stay in memory; those of larger runs go to files."""

_SMALL = 2**18  # bytes of a tensor that stays in memory in any case

# By address; the tensor's storage holds the map.
_maps: weakref.WeakValueDictionary[int, mmap.mmap] = weakref.WeakValueDictionary()


def shelved(x: Tensor) -> Tensor:
    """The tensor in a file; itself if it is small, not on the CPU, or there already."""
    if x.nbytes < _SMALL or x.device.type != "cpu" or not _plain(x) or x.data_ptr() in _maps:
        return x
    numbers = x.detach().as_strided((x.numel(),), (1,)).view(torch.uint8).numpy()
    try:
        with tempfile.TemporaryFile(prefix="subprune-") as file:
            # Written, not filled through the map: a full disk is then an error, not a signal.
            file.write(numbers.data)
            file.flush()
            pages = mmap.mmap(file.fileno(), x.nbytes)
    except OSError:  # no room, or no place for files: it stays in memory
        return x
    copy = torch.frombuffer(pages, dtype=x.dtype).as_strided(x.shape, x.stride())
    _maps[copy.data_ptr()] = pages
    rest(copy)
    return copy


def rest(x: Tensor) -> None:
    """Take a tensor on the shelf out of this process's memory until it is read again."""
    pages = _maps.get(x.data_ptr())
    if pages is not None and hasattr(mmap, "MADV_DONTNEED"):
        pages.madvise(mmap.MADV_DONTNEED)


def _plain(x: Tensor) -> bool:
    """Whether the tensor is all of its own numbers, each once: not a part of a larger one."""
    if x.layout != torch.strided or x.is_conj() or x.is_neg():
        return False
    whole = x.untyped_storage().nbytes() == x.nbytes
    return whole and bool(torch.ops.aten.is_non_overlapping_and_dense(x))
