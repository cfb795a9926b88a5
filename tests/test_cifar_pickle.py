"""CIFAR-10's python version gives what the binary one gives, and nothing in a file is ever run."""

from __future__ import annotations

import pickle
import pickletools
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch

from subprune.errors import DataError
from subprune.experiments import readers
from subprune.experiments.cifar_pickle import cifar_pickle_sizes, read_cifar_pickle
from subprune.experiments.readers import read_cifar
from tests.cifar_files import FEW, array, binary, entries, made, python2, python3, text


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(readers, "CIFAR_RECORDS", FEW)
    return FEW


def read(folder: Path, content: bytes) -> tuple[torch.Tensor, torch.Tensor]:
    (folder / "test_batch").write_bytes(content)
    return read_cifar_pickle(folder / "test_batch")


def same(
    found: tuple[torch.Tensor, torch.Tensor], expected: tuple[torch.Tensor, torch.Tensor]
) -> bool:
    return all(
        torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(found, expected, strict=True)
    )


# ---- what is read


def test_full_batches_equal_those_of_the_binary_version(tmp_path: Path) -> None:
    data, labels = made(10_000)
    (tmp_path / "test_batch.bin").write_bytes(binary(data, labels))
    expected = read_cifar(tmp_path / "test_batch.bin")
    old = python2(entries(data, labels))
    assert pickle.loads(old, encoding="bytes")[b"labels"] == labels, (
        "the opcodes above are a pickle"
    )
    assert same(read(tmp_path, old), expected)
    for protocol in (2, 4):
        assert same(read(tmp_path, python3(data, labels, protocol)), expected)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("keys", [bytes, str])
def test_every_protocol_of_python_3_is_read(
    tmp_path: Path, few: int, protocol: int, keys: type
) -> None:
    data, labels = made()
    content = python3(data, labels, protocol, keys)
    expected = torch.from_numpy(data).reshape(few, 3, 32, 32), torch.tensor(labels)
    assert same(read(tmp_path, content), expected)
    assert same(read(tmp_path, pickletools.optimize(content)), expected)
    older = content.replace(b"numpy._core", b"numpy.core") if protocol < 4 else content
    assert same(read(tmp_path, older), expected)


# ---- what is refused


def changed(**other: Any) -> bytes:
    return python2(entries(*made(), **other))


def with_entry(key: bytes, value: bytes) -> bytes:
    return python2({**entries(*made()), key: value})


def twice() -> bytes:
    return changed()[:-2] + text(b"labels") + b"]" + b"u."


RUN = text(b"touch hostile-was-here") + b"\x85R"
HOSTILE = {
    "os.system": (
        lambda: with_entry(b"batch_label", b"cos\nsystem\n" + RUN),
        "names 'os.system'; allowed are numpy",
    ),
    "builtins.eval": (
        lambda: with_entry(b"x", b"cbuiltins\neval\n" + RUN),
        "names 'builtins.eval'",
    ),
    "by the stack": (
        lambda: with_entry(b"x", b"X\x02\0\0\0osX\x06\0\0\0system\x93" + RUN),
        "names 'os.system'",
    ),
    "as constructor": (lambda: changed(name=b"os\nsystem"), "names 'os.system'"),
    "INST": (
        lambda: with_entry(b"x", b"(" + text(b"true") + b"ios\nsystem\n"),
        "opcode INST; allowed are APPEND",
    ),
    "OBJ": (lambda: with_entry(b"x", b"(cnumpy\nndarray\no"), "opcode OBJ"),
    "NEWOBJ": (lambda: with_entry(b"x", b"cnumpy\nndarray\n)\x81"), "opcode NEWOBJ"),
    "EXT1": (lambda: with_entry(b"x", b"\x82\x01"), "opcode EXT1"),
    "PERSID": (lambda: with_entry(b"x", b"Pa\n"), "opcode PERSID"),
    "an odd escape": (lambda: with_entry(b"x", b"S'\\d'\n"), "python version"),
    "protocol 0": (lambda: changed()[2:], "must start with PROTO 2 to 5"),
    "protocol 9": (lambda: b"\x80\x09" + changed()[2:], "has PROTO '9'"),
    "bytes behind": (lambda: changed() + b"garbage", "7 bytes follow its end"),
    "a pickle behind": (lambda: changed() + b"cos\nsystem\n" + RUN + b".", "bytes follow its end"),
    "wrong shape": (
        lambda: changed(dtype=b"u1").replace(b"J\0\x0c\0\0", b"J\1\x0c\0\0"),
        r"shape \(4, 3073\)",
    ),
    "wide dtype": (lambda: changed(dtype=b"u2"), "another dtype than 'u1'"),
    "objects": (lambda: changed(dtype=b"O8"), "another dtype"),
    "Fortran order": (lambda: changed(fortran=b"\x88"), "Fortran order"),
    "short data": (
        lambda: with_entry(b"data", array(bytes(12_287), (FEW, 3072))),
        "12287 bytes; expected are 12288",
    ),
    "POP": (lambda: with_entry(b"x", b"N0N"), "opcode POP;"),
    "a bare string": (
        lambda: with_entry(b"data", b"T\0\x31\0\0" + bytes(12_544)),
        "'data' is no numpy array",
    ),
    "no labels": (
        lambda: changed().replace(b"U\6labels", b"U\6Labels"),
        "needed are 'data' and 'labels'",
    ),
    "label 10": (
        lambda: python2(entries(made()[0], [1, 2, 3, 10])),
        "label 10; allowed are 0 to 9",
    ),
    "label -1": (lambda: python2(entries(made()[0], [1, 2, 3, -1])), "label -1; allowed"),
    "label true": (lambda: with_entry(b"labels", b"](K\1K\1K\1\x88e"), "label bool; allowed"),
    "three labels": (
        lambda: python2(entries(made()[0], [1, 2, 3])),
        "labels are 3 values; expected is a list of 4",
    ),
    "labels twice": (twice, "sets a key twice"),
    "a list as key": (lambda: changed()[:-2] + b"]Nu.", "key twice, or one that is no text"),
    "half an entry": (lambda: changed()[:-2] + b"Nu.", "has no value"),
    "huge length": (
        lambda: changed().replace(b"T\0\x30\0\0", b"T\xff\xff\xff\x7f"),
        "expected 2147483647 bytes",
    ),
    "negative length": (
        lambda: changed().replace(b"T\0\x30\0\0", b"T\xff\xff\xff\xff"),
        "byte count < 0",
    ),
    "huge bytes": (lambda: with_entry(b"x", b"\x8e" + struct.pack("<Q", 2**62)), "python version"),
    "nothing kept": (lambda: with_entry(b"x", b"h\xff"), "fetches the value 255"),
    "no mark": (lambda: b"\x80\x02u" + changed()[2:], "a mark is missing"),
    "no value": (lambda: b"\x80\x02R" + changed()[2:], "a value is missing"),
    "a cycle": (
        lambda: with_entry(b"labels", b"]q\x20(h\x20h\x20h\x20h\x20e"),
        "label list; allowed",
    ),
    "many opcodes": (
        lambda: with_entry(b"x", b"](" + b"N" * 2000 + b"e"),
        "more than 1080 opcodes",
    ),
    "many copies": (
        lambda: with_entry(
            b"x",
            b"X"
            + struct.pack("<I", 9000)
            + b"x" * 9000
            + b"q\x20("
            + b"c_codecs\nencode\nh\x20U\6latin1\x86R" * 9,
        ),
        "encodes more text than it has",
    ),
    "another encoding": (
        lambda: with_entry(b"x", b"c_codecs\nencode\nX\1\0\0\0aU\5rot13\x86R"),
        "_codecs.encode with",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_batch_is_named_and_not_run(
    tmp_path: Path, few: int, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    monkeypatch.chdir(tmp_path)
    content, words = HOSTILE[case]
    with pytest.raises(DataError, match=words) as caught:
        read(tmp_path, content())
    assert str(tmp_path / "test_batch") in str(caught.value)
    assert "Use the files of cifar-10-python.tar.gz" in str(caught.value)
    assert len(str(caught.value)) < 1200
    assert [p.name for p in tmp_path.iterdir()] == ["test_batch"], "nothing was run"


def test_the_hostile_batch_would_run_if_it_were_unpickled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pickle.loads(HOSTILE["os.system"][0](), encoding="bytes")
    assert (tmp_path / "hostile-was-here").exists()


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_every_cut_is_refused(tmp_path: Path, few: int, protocol: int) -> None:
    data, labels = made()
    content = python3(data, labels, protocol) if protocol else changed()
    for cut in [*range(0, len(content), 397), len(content) - 1]:
        with pytest.raises(DataError, match="test_batch"):
            read(tmp_path, content[:cut])


@pytest.mark.parametrize("size", [0, 30_000_000, 2**40])
def test_a_file_of_a_size_it_cannot_have_is_not_read(tmp_path: Path, size: int) -> None:
    path = tmp_path / "data_batch_1"
    with path.open("wb") as file:
        file.truncate(size)
    tracemalloc.start()
    with pytest.raises(
        DataError, match=f"data_batch_1 has {size} bytes; expected are 30740000 to 63442000"
    ):
        read_cifar_pickle(path)
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()
    assert cifar_pickle_sizes()[0] < 31_035_704 < cifar_pickle_sizes()[1], (
        "the size of the official files"
    )
