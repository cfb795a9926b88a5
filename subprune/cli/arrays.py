"""Arrays and images from files that nobody vouches for: sizes are compared before memory is taken; no pickles."""

from __future__ import annotations

import os
import warnings
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.lib import format as npy
from safetensors import safe_open
from torch import Tensor

from subprune.errors import DataError

__all__ = ["IMAGES", "read_arrays", "read_image"]

IMAGES = (".pgm", ".ppm", ".npy", ".png", ".jpg", ".jpeg", ".bmp", ".webp")
_KINDS = "fiub"
_MOST_PIXELS = 2**26
_MOST_BYTES = 2**33


def read_arrays(path: Path, rows: int | None) -> dict[str, Tensor]:
    """The arrays of a .npy, .npz or .safetensors file, at most the first `rows` rows of each."""
    readers = {".npy": _read_npy, ".npz": _read_npz, ".safetensors": _read_safetensors}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of sizes that overflow; they are refused
            found = readers[path.suffix](path, rows)
    except DataError:
        raise
    except Exception as error:  # the readers below raise all sorts of things on damaged files
        text = str(error).strip().split("\n")[0][:200]
        raise DataError(f"{path} is damaged or not what its name says: {type(error).__name__}: {text}") from error
    if not found:
        raise DataError(f"{path} holds no array; it needs at least one of inputs")
    return found


def _read_npy(path: Path, rows: int | None) -> dict[str, Tensor]:
    mapped = np.load(path, mmap_mode="r", allow_pickle=False)  # a size beyond the file's own is refused here
    if not isinstance(mapped, np.ndarray):
        raise DataError(f"{path} is not a plain array")
    return {"": _tensor(path, np.array(mapped[:rows]) if mapped.ndim else np.array(mapped))}


def _read_npz(path: Path, rows: int | None) -> dict[str, Tensor]:
    found = {}
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            if not info.filename.endswith(".npy"):
                raise DataError(f"{path} holds {info.filename[:60]!r}, which is not an array; allowed are .npy members")
            with archive.open(info) as stream:
                name = info.filename.removesuffix(".npy")
                found[name] = _tensor(path, _stream_npy(path, stream, info.file_size, rows))  # type: ignore[arg-type]
    return found


def _stream_npy(path: Path, stream: BinaryIO, size: int, rows: int | None) -> np.ndarray:
    """The first rows of an array in a stream; the header must fit the size declared for the member."""
    version = npy.read_magic(stream)
    read_header = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(version)
    if read_header is None:
        raise DataError(f"{path}: version {version} of the array format is not known; allowed are 1.0 and 2.0")
    shape, fortran, dtype = read_header(stream)
    if dtype.hasobject or dtype.kind not in _KINDS:
        raise DataError(f"{path} holds values of type {dtype}; allowed are numbers")
    if fortran and len(shape) > 1:
        raise DataError(f"{path} holds an array in Fortran order; save np.ascontiguousarray of it")
    count = 1
    for n in shape:
        count *= n
    if count * dtype.itemsize > size:
        raise DataError(f"{path} declares an array of shape {shape}, more than the file holds")
    taken = (min(shape[0], rows), *shape[1:]) if shape and rows is not None else shape
    wanted = int(np.prod(taken, dtype=object)) * dtype.itemsize
    if wanted > _MOST_BYTES:
        raise DataError(f"{path} holds {wanted:,} bytes for these inputs, too many for .npz; save it as .npy")
    content = stream.read(wanted)
    if len(content) != wanted:
        raise DataError(f"{path} ends early: {len(content)} of {wanted} bytes")
    return np.frombuffer(content, dtype=dtype).reshape(taken).copy()


def _read_safetensors(path: Path, rows: int | None) -> dict[str, Tensor]:
    with safe_open(str(path), framework="pt") as file:
        found = {}
        for name in file.keys():  # noqa: SIM118  (not a dict)
            part = file.get_slice(name)
            found[name] = part[:rows] if len(part.get_shape()) else file.get_tensor(name)
    return found


def _tensor(path: Path, array: np.ndarray) -> Tensor:
    if array.dtype.kind not in _KINDS:
        raise DataError(f"{path} holds values of type {array.dtype}; allowed are numbers")
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    if native.dtype.kind == "u" and native.dtype.itemsize > 1:
        native = native.astype(np.int64)
    return torch.from_numpy(np.ascontiguousarray(native))


# ---- images -----------------------------------------------------------------------------------------


def read_image(path: Path) -> Tensor:
    """One image as [channels, height, width]; whole numbers are scaled to 0 … 1."""
    if path.suffix.lower() == ".npy":
        pixels = read_arrays(path, None)[""]
    elif path.suffix.lower() in (".pgm", ".ppm"):
        pixels = _read_pnm(path)
    else:
        pixels = _read_with_pillow(path)
    if pixels.ndim == 2:
        pixels = pixels[None]
    if pixels.ndim != 3:
        raise DataError(f"{path} holds an array of shape {tuple(pixels.shape)}, which is not an image")
    return pixels.float() if pixels.is_floating_point() else pixels.float() / 255


def _read_pnm(path: Path) -> Tensor:
    """Binary PGM (P5) and PPM (P6) with values up to 255."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        fields: list[bytes] = []
        while len(fields) < 4 and file.tell() < 1024:
            line = file.readline(256)
            if not line:
                break
            fields += line.split(b"#")[0].split()
        channels = {b"P5": 1, b"P6": 3}.get(fields[0] if fields else b"")
        if channels is None or len(fields) != 4 or not all(f.isdigit() and len(f) < 8 for f in fields[1:]):
            raise DataError(f"{path} is not a binary PGM or PPM image")
        width, height, top = (int(f) for f in fields[1:])
        count = width * height * channels
        if not 0 < count <= 3 * _MOST_PIXELS or not 0 < top < 256 or count > size - file.tell():
            raise DataError(f"{path} declares {width} × {height} pixels up to {top}, more than the file holds")
        content = np.frombuffer(file.read(count), dtype=np.uint8)
    return torch.from_numpy(content.reshape(height, width, channels).transpose(2, 0, 1).copy())


def _read_with_pillow(path: Path) -> Tensor:
    try:
        from PIL import Image
    except ImportError as error:
        raise DataError(
            f"{path.name} needs Pillow: pip install 'subprune[images]', or give .pgm, .ppm or .npy files"
        ) from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a picture of too many pixels is an error, not a remark
            with Image.open(path) as image:
                if image.width * image.height > _MOST_PIXELS:
                    raise DataError(f"{path} has {image.width} × {image.height} pixels, too many")
                pixels: Any = np.array(image.convert("L" if image.mode in ("1", "L", "I;16") else "RGB"))
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"{path} cannot be read as an image: {type(error).__name__}: {error}") from error
    return torch.from_numpy(pixels if pixels.ndim == 2 else pixels.transpose(2, 0, 1).copy())
