"""Files made to confuse, exhaust or escape, and how they are made."""

from __future__ import annotations

import io
import json
import pickle
import struct
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from subprune.zoo.models import LeNet

MARK = "hostile-was-here"


class Bomb:
    """Runs code when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (f"open({MARK!r}, 'w').write('x')",)


def header(entries: dict[str, Any], body: bytes = b"", size: int | None = None) -> bytes:
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text) if size is None else size) + text + body


def one(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"a": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}


TENSORS: dict[str, bytes] = {
    "empty": b"",
    "one byte": b"\0",
    "a huge header": struct.pack("<Q", 2**63) + b"{}",
    "a header of 90 MB that is not there": struct.pack("<Q", 90_000_000) + b"{}",
    "no JSON": struct.pack("<Q", 4) + b"\xff\xfe{{",
    "a list": struct.pack("<Q", 2) + b"[]",
    "deep JSON": struct.pack("<Q", 20_000) + b"[" * 20_000,
    "deep objects": struct.pack("<Q", 60_000) + b'{"a":' * 12_000,
    "zero header": struct.pack("<Q", 0),
    "huge shape": header(one(shape=[2**40, 2**40]), bytes(8)),
    "negative shape": header(one(shape=[-2]), bytes(8)),
    "overflowing shape": header(one(shape=[2**62, 4, 2]), bytes(8)),
    "fractional shape": header(one(shape=[1.5]), bytes(8)),
    "offsets past the end": header(one(offsets=[0, 2**40]), bytes(8)),
    "offsets backwards": header(one(offsets=[8, 0]), bytes(8)),
    "offsets of text": header(one(offsets="all"), bytes(8)),
    "unknown type": header(one(dtype="OBJECT"), bytes(8)),
    "type of wrong size": header(one(dtype="F64"), bytes(8)),
    "overlap": header({**one(), "b": one()["a"]}, bytes(8)),
    "metadata of numbers": header({"__metadata__": {"format": 3}, **one()}, bytes(8)),
    "metadata as a list": header({"__metadata__": ["format"], **one()}, bytes(8)),
    "a pickle": pickle.dumps(Bomb()),
    "a zip": b"PK\3\4" + bytes(100),
    "text": b"weights, please" * 20,
}


def fuzzed(content: bytes, count: int, seed: int) -> list[bytes]:
    """Copies with bytes flipped, cut out, put in or cut off."""
    random = np.random.default_rng(seed)
    found = []
    for i in range(count):
        data = bytearray(content)
        at = int(random.integers(0, min(len(data), 6000)))
        if i % 4 == 0:
            data[at] ^= int(random.integers(1, 256))
        elif i % 4 == 1:
            del data[at : at + int(random.integers(1, 50))]
        elif i % 4 == 2:
            data[at:at] = bytes(
                random.integers(0, 256, int(random.integers(1, 30)), dtype=np.uint8)
            )
        else:
            del data[at:]
        found.append(bytes(data))
    return found


def saved(content: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(content, stream)
    return stream.getvalue()


PICKLES: dict[str, Callable[[], bytes]] = {
    "a bomb": lambda: pickle.dumps(Bomb()),
    "a bomb in torch's format": lambda: saved({"w": Bomb()}),
    "a bomb of old": lambda: pickle.dumps({"w": Bomb()}, protocol=2),
    "a whole module": lambda: saved(LeNet()),
    "a list": lambda: saved([torch.zeros(2)]),
    "a number": lambda: saved(3),
    "an empty dict": lambda: saved({}),
    "text for tensors": lambda: saved({"conv1.weight": "zeros"}),
    "another model": lambda: saved({"layer.weight": torch.zeros(3)}),
    "other shapes": lambda: saved({k: torch.zeros(1) for k in LeNet().state_dict()}),
    "nothing": lambda: b"",
    "noise": lambda: np.random.default_rng(0).bytes(500),
    "a zip of nothing": lambda: b"PK\5\6" + bytes(18),
    "half a file": lambda: saved(LeNet().state_dict())[:3000],
}


def npy(
    shape: Any = (2, 3), descr: str = "<f4", body: bytes = bytes(24), fortran: bool = False
) -> bytes:
    text = (
        f"{{'descr': {descr!r}, 'fortran_order': {fortran}, 'shape': {shape!r}, }}".encode() + b"\n"
    )
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + body


def npz(members: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return stream.getvalue()


def objects() -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.array([Bomb()], dtype=object), allow_pickle=True)
    return stream.getvalue()


ARRAYS: dict[str, tuple[str, bytes]] = {
    "empty npy": ("x.npy", b""),
    "objects": ("x.npy", objects()),
    "huge": ("x.npy", npy((2**40, 2**20))),
    "overflow": ("x.npy", npy((2**62, 8))),
    "negative": ("x.npy", npy((-1, 3))),
    "text dtype": ("x.npy", npy((1,), "<U6")),
    "unknown dtype": ("x.npy", npy((1,), "zzz")),
    "code in the header": ("x.npy", npy("__import__('os').system('touch hostile-was-here')")),
    "a long header": ("x.npy", b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**31) + b"{"),
    "an odd version": ("x.npy", b"\x93NUMPY\x09\x00" + bytes(50)),
    "a pickle": ("x.npy", pickle.dumps(Bomb())),
    "no zip": ("x.npz", b"PK"),
    "npz of objects": ("x.npz", npz({"x.npy": objects()})),
    "npz with a huge array": ("x.npz", npz({"x.npy": npy((2**40,))})),
    "npz with a path": ("x.npz", npz({"../../escape.txt": b"x"})),
    "npz with a path and an array": ("x.npz", npz({"../../../tmp/x.npy": npy((2**50,))})),
    "npz of pickles": ("x.npz", npz({"x.npy": pickle.dumps(Bomb())})),
    "npz of nothing": ("x.npz", npz({})),
    "npz cut short": ("x.npz", npz({"x.npy": npy(body=bytes(20))})),
    "npz in Fortran order": ("x.npz", npz({"x.npy": npy(fortran=True)})),
    "npz of text": ("x.npz", npz({"x.npy": npy((1,), "<U6")})),
    "npz of another version": ("x.npz", npz({"x.npy": b"\x93NUMPY\x03\x00" + bytes(80)})),
    "a flat zip bomb": ("x.npz", npz({"x.npy": npy((2**26,), body=bytes(2**20))})),
    "encrypted": (
        "x.npz",
        npz({"x.npy": npy()}).replace(b"PK\1\2\x14\x03\x14\0\0\0", b"PK\1\2\x14\x03\x14\0\1\0"),
    ),
}


PICTURES: dict[str, tuple[str, bytes]] = {
    "a huge pgm": ("x.pgm", b"P5\n9999999 9999999\n255\n" + bytes(10)),
    "a pgm of no size": ("x.pgm", b"P5\n0 0\n255\n"),
    "a pgm cut short": ("x.pgm", b"P5\n10 10\n255\n" + bytes(99)),
    "a deep pgm": ("x.pgm", b"P5\n1 1\n65535\n" + bytes(9)),
    "negative": ("x.ppm", b"P6\n-3 3\n255\n" + bytes(99)),
    "comments without end": ("x.ppm", b"P6\n" + b"#" * 100_000),
    "numbers without end": ("x.ppm", b"P6\n" + b"9" * 100_000),
    "plain text pnm": ("x.pgm", b"P2\n2 2\n255\n1 2 3 4"),
    "empty": ("x.ppm", b""),
    "a flat array": ("x.npy", npy((6,))),
    "a png of noise": ("x.png", b"\x89PNG\r\n\x1a\n" + bytes(100)),
    "a jpeg of noise": ("x.jpg", b"\xff\xd8\xff" + bytes(100)),
    "a huge png": (
        "x.png",
        b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"
        + struct.pack(">II", 2**30, 2**30)
        + b"\x08\x02\0\0\0"
        + bytes(4),
    ),
    "a bmp": ("x.bmp", b"BM" + bytes(20)),
}
