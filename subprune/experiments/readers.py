"""Readers of the idx and CIFAR-10 binary formats that trust no file.

A file is read whole and is exactly what was asked for, or a DataError names it. Headers and sizes are
compared with what is expected before memory is taken, so a hostile header cannot make a reader allocate.
"""

from __future__ import annotations

import gzip
import os
import struct
import zlib
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from subprune.errors import DataError

__all__ = ["check_labels", "idx_bytes", "read_cifar", "read_idx"]

CLASSES = 10
CIFAR_RECORDS = 10_000
CIFAR_SHAPE = (3, 32, 32)
_IDX_UBYTE = 0x08


def read_idx(path: Path, shape: tuple[int, ...]) -> Tensor:
    """Read an idx file of unsigned bytes, gzipped if its name ends in .gz, that must have exactly `shape`."""
    header = 4 + 4 * len(shape)
    expected = int(np.prod(shape))
    try:
        with _open(path) as file:
            _check_idx_header(path, file.read(header), shape)
            # One byte more than expected: shows a file that is too long, and makes gzip check its sum.
            content = file.read(expected + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"{path} is damaged, cut short or not what its name says ({error}); download it again."
        ) from error
    if len(content) != expected:
        found = f"more than {expected}" if len(content) > expected else f"{len(content)}"
        raise DataError(f"{path} has {found} bytes of data where its header declares {expected}; download it again.")
    return _as_tensor(content).reshape(shape)


def _open(path: Path) -> BinaryIO | gzip.GzipFile:
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")


def _check_idx_header(path: Path, header: bytes, shape: tuple[int, ...]) -> None:
    """Refuse anything but an idx header of unsigned bytes with exactly this shape."""
    magic = _idx_magic(len(shape))
    if header[:4] != magic:
        raise DataError(
            f"{path} is not the idx file expected: it starts with {header[:4].hex() or 'nothing'}, "
            f"not {magic.hex()}. Use the official MNIST file of that name."
        )
    if len(header) != 4 + 4 * len(shape):
        raise DataError(f"{path} ends inside its header; download it again.")
    declared = struct.unpack(f">{len(shape)}I", header[4:])
    if declared != shape:
        raise DataError(
            f"{path} declares the shape {_times(declared)}; expected is {_times(shape)}. "
            "Use the official MNIST file of that name."
        )


def _times(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, shape))


def read_cifar(path: Path) -> tuple[Tensor, Tensor]:
    """Read one file of CIFAR-10's binary version: a label byte and 3·32·32 pixels, plane by plane, each."""
    record = 1 + int(np.prod(CIFAR_SHAPE))
    expected = CIFAR_RECORDS * record
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            content = file.read(expected) if size == expected else b""
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error}); check the file and its permissions.") from error
    if size != expected or len(content) != expected:
        raise DataError(
            f"{path} has {size} bytes; expected are {expected} ({CIFAR_RECORDS} records of {record}). "
            "Use the files of cifar-10-binary.tar.gz, downloaded again if need be."
        )
    records = _as_tensor(content).reshape(CIFAR_RECORDS, record)
    labels = check_labels(path, records[:, 0])
    return records[:, 1:].reshape(CIFAR_RECORDS, *CIFAR_SHAPE), labels


def _as_tensor(content: bytes) -> Tensor:
    """Bytes → a writable uint8 tensor."""
    return torch.from_numpy(np.frombuffer(content, dtype=np.uint8).copy())


def check_labels(path: Path, labels: Tensor) -> Tensor:
    """Labels as int64; one that is no class means the file is damaged."""
    if len(labels) and int(labels.max()) >= CLASSES:
        raise DataError(f"{path} has the label {int(labels.max())}; allowed are 0 to {CLASSES - 1}. Download it again.")
    return labels.long()


def idx_bytes(tensor: Tensor) -> bytes:
    """A uint8 tensor as a gzipped idx file; the same tensor always gives the same bytes."""
    header = _idx_magic(tensor.dim()) + struct.pack(f">{tensor.dim()}I", *tensor.shape)
    return gzip.compress(header + tensor.to(torch.uint8).contiguous().numpy().tobytes(), 9, mtime=0)


def _idx_magic(dimensions: int) -> bytes:
    return struct.pack(">HBB", 0, _IDX_UBYTE, dimensions)
