"""CIFAR-10's files in small, as either version has them."""

from __future__ import annotations

import pickle
import struct
from typing import Any

import numpy as np

FEW = 4


def made(count: int = FEW, seed: int = 0) -> tuple[np.ndarray, list[int]]:
    random = np.random.default_rng(seed)
    return random.integers(0, 256, (count, 3072), dtype=np.uint8), random.integers(
        0, 10, count
    ).tolist()


def binary(data: np.ndarray, labels: list[int]) -> bytes:
    return np.concatenate([np.array(labels, np.uint8)[:, None], data], axis=1).tobytes()


# ---- a pickle as Python 2 wrote it, opcode by opcode


def text(value: bytes) -> bytes:
    return b"U" + bytes([len(value)]) + value


def number(value: int) -> bytes:
    return b"K" + bytes([value]) if 0 <= value < 256 else b"J" + struct.pack("<i", value)


def array(
    data: bytes,
    shape: tuple[int, ...],
    dtype: bytes = b"u1",
    fortran: bytes = b"\x89",
    name: bytes = b"numpy.core.multiarray\n_reconstruct",
) -> bytes:
    kind = b"cnumpy\ndtype\nq\x08" + text(dtype) + b"K\x00K\x01\x87Rq\x09"
    kind += b"(K\x03" + text(b"|") + b"NNN" + number(-1) * 2 + b"K\x00tb"
    content = b"T" + struct.pack("<i", len(data)) + data + b"q\x0a"
    shaped = b"(" + b"".join(map(number, shape)) + b"tq\x07"
    return (
        b"c"
        + name
        + b"\nq\x05cnumpy\nndarray\nq\x06K\x00\x85U\x01b\x87R(K\x01"
        + shaped
        + kind
        + fortran
        + content
        + b"tb"
    )


def entries(data: np.ndarray, labels: list[int], **other: Any) -> dict[bytes, bytes]:
    return {
        b"batch_label": text(b"training batch 1 of 5") + b"q\x02",
        b"labels": b"]q\x03(" + b"".join(map(number, labels)) + b"e",
        b"data": array(data.tobytes(), data.shape, **other),
        b"filenames": b"]q\x0b("
        + b"".join(text(b"image_%d.png" % i) for i in range(len(labels)))
        + b"e",
    }


def python2(values: dict[bytes, bytes]) -> bytes:
    return b"\x80\x02}q\x01(" + b"".join(text(key) + value for key, value in values.items()) + b"u."


def python3(data: np.ndarray, labels: list[int], protocol: int, keys: type = bytes) -> bytes:
    names = [f"image_{i}.png" for i in range(len(labels))]
    batch = {"batch_label": "test", "labels": labels, "data": data, "filenames": names}
    if keys is bytes:
        batch = {key.encode(): value for key, value in batch.items()}  # type: ignore[misc]
        batch[b"filenames"] = [name.encode() for name in names]  # type: ignore[index]
    return pickle.dumps(batch, protocol=protocol)
