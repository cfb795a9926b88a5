"""Arrays and images from files that nobody vouches for: sizes are compared before memory is taken;
no pickles.
"""

from __future__ import annotations

import io
import os
import warnings
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.lib import format as npy
from safetensors import safe_open
from torch import Tensor

from subprune.data.sources import ALLOWED_VALUES, as_tensor, draw, wrong_values
from subprune.errors import DataError

__all__ = ["IMAGES", "decode_image", "read_arrays", "read_image"]

IMAGES = (".pgm", ".ppm", ".npy", ".png", ".jpg", ".jpeg", ".bmp", ".webp")
_KINDS = "fiub"
_MOST_PIXELS = 2**26
_MOST_BYTES = 2**33
_PIECE = 2**20
# of an array's name and length: which rows, None for all
Rows = Callable[[str, int], "list[int] | None"]


def read_arrays(path: Path, n: int | None, seed: int = 0) -> dict[str, Tensor]:
    """The arrays of a .npy, .npz or .safetensors file: the same `n` rows of each, drawn by seed, or
    all of them.
    """
    readers = {".npy": _read_npy, ".npz": _read_npz, ".safetensors": _read_safetensors}
    lengths: dict[str, int] = {}

    def rows(name: str, length: int) -> list[int] | None:
        lengths[name] = length
        return draw(length, n, seed)

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of sizes that overflow; they are refused
            arrays = readers[path.suffix](path, rows)
    except DataError:
        raise
    except PermissionError as error:
        raise DataError(
            f"{path} may not be read by this user; change its permissions, or copy it"
        ) from error
    except Exception as error:  # the readers below raise all sorts of things on damaged files
        text = str(error).strip().split("\n")[0][:200]
        if "Python objects" in text:
            raise DataError(f"{path} holds Python objects; allowed are numbers") from error
        raise DataError(
            f"{path} is damaged or not what its name says ({type(error).__name__}: {text}); save "
            "or download it again"
        ) from error
    if not arrays:
        raise DataError(f"{path} holds no array; it needs at least one of inputs")
    if len(set(lengths.values())) > 1:
        raise DataError(
            f"{path} holds arrays of different length: {lengths}; each needs one row per input"
        )
    return arrays


def _read_npy(path: Path, rows: Rows) -> dict[str, Tensor]:
    with path.open("rb") as file:
        if file.read(len(npy.MAGIC_PREFIX)) != npy.MAGIC_PREFIX:
            raise DataError(f"{path} is not a file that numpy.save wrote; save the array again")
    # a size beyond the file's own is refused here
    mapped = np.load(path, mmap_mode="r", allow_pickle=False)
    if not isinstance(mapped, np.ndarray):
        raise DataError(f"{path} is not a plain array")
    chosen = rows("", mapped.shape[0]) if mapped.ndim else None
    return {"": _tensor(path, np.array(mapped if chosen is None else mapped[chosen]))}


def _read_npz(path: Path, rows: Rows) -> dict[str, Tensor]:
    arrays = {}
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            if not info.filename.endswith(".npy"):
                raise DataError(
                    f"{path} holds {info.filename[:60]!r}, which is not an array; "
                    "allowed are .npy members"
                )
            with archive.open(info) as stream:
                name = info.filename.removesuffix(".npy")
                arrays[name] = _tensor(path, _stream_npy(path, name, stream, info.file_size, rows))  # type: ignore[arg-type]
    return arrays


def _stream_npy(path: Path, name: str, stream: BinaryIO, size: int, rows: Rows) -> np.ndarray:
    """Rows of an array in a stream; the header must fit the size declared for the member."""
    version = npy.read_magic(stream)
    read_header = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(
        version
    )
    if read_header is None:
        raise DataError(
            f"{path}: version {version} of the array format is not known; allowed are 1.0 and 2.0"
        )
    shape, fortran, dtype = read_header(stream)
    if dtype.hasobject or dtype.kind not in _KINDS:
        of = f" in {name!r}" if name else ""
        raise DataError(f"{path} holds {wrong_values(dtype)}{of}; {ALLOWED_VALUES}")
    if fortran and len(shape) > 1:
        raise DataError(f"{path} holds an array in Fortran order; save np.ascontiguousarray of it")
    count = 1
    for n in shape:
        count *= n
    if count * dtype.itemsize > size:
        raise DataError(f"{path} declares an array of shape {shape}, more than the file holds")
    total = count * dtype.itemsize
    if total > _MOST_BYTES:
        raise DataError(
            f"{path} holds {total:,} bytes of {name!r}, too many for .npz; save it as .npy"
        )
    chosen = rows(name, shape[0]) if shape else None
    if chosen is None:
        return np.frombuffer(_exactly(path, stream, total), dtype=dtype).reshape(shape).copy()
    content = _chosen_rows(path, stream, chosen, count // max(shape[0], 1) * dtype.itemsize)
    return np.frombuffer(content, dtype=dtype).reshape(len(chosen), *shape[1:]).copy()


def _chosen_rows(path: Path, stream: BinaryIO, chosen: Sequence[int], width: int) -> bytes:
    """Rows of this many bytes in the order they are asked for; what lies between is read and dropped,
    bit by bit.
    """
    rows: dict[int, bytes] = {}
    place = 0
    for row in sorted(chosen):
        gap = (row - place) * width
        while gap > 0:
            gap -= len(_exactly(path, stream, min(gap, _PIECE)))
        rows[row] = _exactly(path, stream, width)
        place = row + 1
    return b"".join(rows[row] for row in chosen)


def _exactly(path: Path, stream: BinaryIO, wanted: int) -> bytes:
    content = stream.read(wanted)
    if len(content) != wanted:
        raise DataError(f"{path} ends early: {len(content)} of {wanted} bytes")
    return content


def _read_safetensors(path: Path, rows: Rows) -> dict[str, Tensor]:
    arrays = {}
    with safe_open(str(path), framework="pt") as file:
        for name in file.keys():  # noqa: SIM118  (not a dict)
            part = file.get_slice(name)
            shape = part.get_shape()
            chosen = rows(name, shape[0]) if shape else None
            arrays[name] = (
                file.get_tensor(name)
                if chosen is None
                else torch.cat([part[i : i + 1] for i in chosen])
            )
    return arrays


def _tensor(path: Path, array: np.ndarray) -> Tensor:
    try:
        return as_tensor(array)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


# ---- images --------------------------------------------------------------------------------------


def read_image(path: Path) -> Tensor:
    """One image as [channels, height, width]; whole numbers are scaled to 0 … 1."""
    if path.suffix.lower() == ".npy":
        pixels = read_arrays(path, None)[""]
    elif path.suffix.lower() in (".pgm", ".ppm"):
        pixels = _read_pnm(path)
    else:
        pixels = _read_with_pillow(path, str(path))
    return _as_image(pixels, str(path))


def decode_image(content: bytes, name: str) -> Tensor:
    """One image from the bytes of a file; `name` says in messages which."""
    return _as_image(_read_with_pillow(io.BytesIO(content), name), name)


def _as_image(pixels: Tensor, name: str) -> Tensor:
    """[channels, height, width], fractions from 0 to 1 where they were whole numbers."""
    if pixels.ndim == 2:
        pixels = pixels[None]
    if pixels.ndim != 3:
        raise DataError(
            f"{name} holds an array of shape {tuple(pixels.shape)}, which is not an image"
        )
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
        if (
            channels is None
            or len(fields) != 4
            or not all(f.isdigit() and len(f) < 8 for f in fields[1:])
        ):
            raise DataError(f"{path} is not a binary PGM or PPM image")
        width, height, top = (int(f) for f in fields[1:])
        count = width * height * channels
        if not 0 < count <= 3 * _MOST_PIXELS or not 0 < top < 256 or count > size - file.tell():
            raise DataError(
                f"{path} declares {width} × {height} pixels up to {top}, more than the file holds"
            )
        content = np.frombuffer(file.read(count), dtype=np.uint8)
    return torch.from_numpy(content.reshape(height, width, channels).transpose(2, 0, 1).copy())


def _read_with_pillow(file: Path | BinaryIO, name: str) -> Tensor:
    try:
        from PIL import Image
    except ImportError as error:
        raise DataError(
            f"{Path(name).name} needs Pillow: pip install 'subprune[images]', or give "
            ".pgm, .ppm or .npy files"
        ) from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a picture of too many pixels is an error, not a remark
            with Image.open(file) as image:
                if image.width * image.height > _MOST_PIXELS:
                    raise DataError(f"{name} has {image.width} × {image.height} pixels, too many")
                pixels: Any = np.array(
                    image.convert("L" if image.mode in ("1", "L", "I;16") else "RGB")
                )
    except DataError:
        raise
    except Exception as error:
        raise DataError(
            f"{name} cannot be read as an image ({type(error).__name__}: {error}); remove it from "
            "the folder, or save it again"
        ) from error
    return torch.from_numpy(pixels if pixels.ndim == 2 else pixels.transpose(2, 0, 1).copy())
