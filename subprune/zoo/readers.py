"""Readers of the idx and CIFAR-10 binary formats, and of archives, that trust no file.

A file is read whole and is exactly what was asked for, or a DataError names it. Headers and sizes
are compared with what is expected before memory is taken, so a hostile header cannot make a reader
allocate.
"""

from __future__ import annotations

import gzip
import io
import os
import struct
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from subprune.errors import DataError

__all__ = [
    "CLASSES",
    "archive_bytes",
    "as_tensor",
    "check_labels",
    "cifar_size",
    "file_bytes",
    "idx_bytes",
    "parse_cifar",
    "read_cifar",
    "read_idx",
]

CLASSES = 10  # of every data set here
CIFAR_RECORDS = 10_000
CIFAR_SHAPE = (3, 32, 32)
ARCHIVE_MEMBERS = 50  # the official archives have 9
_IDX_UBYTE = 0x08


def read_idx(path: Path, shape: tuple[int, ...]) -> Tensor:
    """Read an idx file of unsigned bytes, gzipped if its name ends in .gz, that must have exactly
    `shape`.
    """
    header = 4 + 4 * len(shape)
    expected = int(np.prod(shape))
    try:
        with _open(path) as file:
            _check_idx_header(path, file.read(header), shape)
            # One byte more than expected: shows a file that is too long, and makes gzip check its
            # sum.
            content = file.read(expected + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"{path} is damaged, cut short or not what its name says ({error}); download it again."
        ) from error
    if len(content) != expected:
        length = f"more than {expected}" if len(content) > expected else f"{len(content)}"
        raise DataError(
            f"{path} has {length} bytes of data where its header declares {expected}; "
            "download it again."
        )
    return as_tensor(content).reshape(shape)


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
    """Read one file of CIFAR-10's binary version: images [N, 3, 32, 32] and labels [N]."""
    return parse_cifar(path, file_bytes(path, cifar_size()))


def cifar_size() -> int:
    """Bytes of every file of the binary version: a label and the pixels of each image."""
    return CIFAR_RECORDS * (1 + int(np.prod(CIFAR_SHAPE)))


def parse_cifar(name: Path | str, content: bytes) -> tuple[Tensor, Tensor]:
    """A label byte and 3·32·32 pixels, plane by plane, each; `name` is what messages call it."""
    records = as_tensor(content).reshape(CIFAR_RECORDS, -1)
    labels = check_labels(name, records[:, 0])
    return records[:, 1:].reshape(CIFAR_RECORDS, *CIFAR_SHAPE), labels


def file_bytes(path: Path, expected: int) -> bytes:
    """The content of a file that must have this size, which is looked at before it is read."""
    try:
        with path.open("rb") as file:
            _check_size(path, os.fstat(file.fileno()).st_size, expected)
            content = file.read(expected)
    except OSError as error:
        raise DataError(
            f"{path} cannot be read ({error}); check the file and its permissions."
        ) from error
    _check_size(path, len(content), expected)
    return content


def _check_size(name: Path | str, size: int, expected: int) -> None:
    if size != expected:
        raise DataError(
            f"{name} has {size} bytes; expected are {expected}. "
            "Use the official CIFAR-10 file, downloaded again if "
            "need be."
        )


class _Bounded(gzip.GzipFile):
    """A gzip stream that neither gives nor skips more than it is allowed to, whatever a tar header
    asks for.
    """

    def __init__(self, path: Path, once: int, total: int) -> None:
        super().__init__(path, "rb")
        self._once, self._total = once, total

    def read(self, size: int | None = -1) -> bytes:
        if size is None or not 0 <= size <= self._once or self.tell() + size > self._total:
            raise tarfile.ReadError("it is larger than the official one")
        return super().read(size)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if offset > self._total:
            raise tarfile.ReadError("it is larger than the official one")
        return super().seek(offset, whence)


def archive_bytes(archive: Path, members: Sequence[str], size: int) -> Iterator[tuple[str, bytes]]:
    """The files of these names, each of this size, in a .tar.gz archive, in the archive's order;
    nothing is written, other members are skipped.
    """
    missing, slack = set(members), 1 << 20
    once, total = size + slack, 8 * size + slack
    try:
        if archive.stat().st_size > total:
            raise tarfile.ReadError("it is larger than the official one")
        with (
            _Bounded(archive, once, total) as stream,
            tarfile.open(fileobj=stream, mode="r:") as tar,
        ):
            for count, info in enumerate(tar):
                if count == ARCHIVE_MEMBERS:
                    raise tarfile.ReadError(f"it has more than {ARCHIVE_MEMBERS} members")
                if info.name in members:
                    yield info.name, _member(archive, tar, info, size, info.name in missing)
                    missing.discard(info.name)
            if missing:
                raise tarfile.ReadError(f"{', '.join(sorted(missing))} is not in it")
            while stream.read(slack):  # to the end, where gzip compares its sum
                pass
    except DataError:
        raise
    except (
        tarfile.TarError,
        OSError,
        EOFError,
        zlib.error,
        ValueError,
        LookupError,
        RecursionError,
    ) as error:
        raise DataError(
            f"{archive} is damaged or not the official archive ({str(error)[:200]}); "
            "download it again."
        ) from error


def _member(
    archive: Path, tar: tarfile.TarFile, info: tarfile.TarInfo, size: int, first: bool
) -> bytes:
    """One file's content: a plain file that is there once and has the size it must have."""
    file = tar.extractfile(info) if info.isreg() and not info.issparse() and first else None
    if file is None:
        raise tarfile.ReadError(f"{info.name} is not a plain file, or is there twice")
    _check_size(f"{archive}: {info.name}", info.size, size)
    content = file.read()
    _check_size(f"{archive}: {info.name}", len(content), size)
    return content


def as_tensor(content: bytes) -> Tensor:
    """Bytes → a writable uint8 tensor."""
    return torch.from_numpy(np.frombuffer(content, dtype=np.uint8).copy())


def check_labels(path: Path | str, labels: Tensor) -> Tensor:
    """Labels as int64; one that is not a class means the file is damaged."""
    if len(labels) and int(labels.max()) >= CLASSES:
        raise DataError(
            f"{path} has the label {int(labels.max())}; allowed are 0 to {CLASSES - 1}. "
            "Download it again."
        )
    return labels.long()


def idx_bytes(tensor: Tensor) -> bytes:
    """A uint8 tensor as a gzipped idx file; the same tensor always gives the same bytes."""
    header = _idx_magic(tensor.dim()) + struct.pack(f">{tensor.dim()}I", *tensor.shape)
    return gzip.compress(header + tensor.to(torch.uint8).contiguous().numpy().tobytes(), 9, mtime=0)


def _idx_magic(dimensions: int) -> bytes:
    return struct.pack(">HBB", 0, _IDX_UBYTE, dimensions)
