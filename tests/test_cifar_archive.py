"""CIFAR-10 from folders and from archives that stay packed."""

from __future__ import annotations

import io
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest

from subprune.errors import DataError
from subprune.zoo import readers
from subprune.zoo.datasets import load
from tests.cifar_files import FEW, binary, made
from tests.hostile_files import MARK, Bomb


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(readers, "CIFAR_RECORDS", FEW)
    return FEW


def archived(path: Path, files: dict[str, bytes], kind: bytes = tarfile.REGTYPE) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.type, info.linkname = len(content), kind, "/etc/passwd"
            tar.addfile(info, io.BytesIO(content))
    return path


def batches() -> dict[str, bytes]:
    """The six files; the images of each are its own."""
    stems = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    return {
        f"cifar-10-batches-bin/{stem}.bin": binary(*made(seed=i)) for i, stem in enumerate(stems)
    }


ARCHIVE = "cifar-10-binary.tar.gz"


@pytest.mark.parametrize("packed", [False, True])
def test_folders_and_archives_give_the_same(tmp_path: Path, few: int, packed: bool) -> None:
    if packed:
        archived(tmp_path / ARCHIVE, {"readme.html": b"x", "../outside": b"y", **batches()})
    else:
        (tmp_path / "cifar-10-batches-bin").mkdir()
        for name, content in batches().items():
            (tmp_path / name).write_bytes(content)
    before = sorted(tmp_path.rglob("*"))
    train, test = load("cifar10", "train", tmp_path), load("cifar10", "test", tmp_path)
    assert (
        train.images.flatten(1).tolist()
        == np.concatenate([made(seed=i)[0] for i in range(5)]).tolist()
    )
    assert train.labels.tolist() == [label for i in range(5) for label in made(seed=i)[1]]
    assert test.labels.tolist() == made(seed=5)[1]
    assert sorted(tmp_path.rglob("*")) == before, "nothing is unpacked"


def test_the_folder_comes_before_the_archive(tmp_path: Path, few: int) -> None:
    archived(tmp_path / ARCHIVE, {"cifar-10-batches-bin/x": b""})
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    (folder / "test_batch.bin").write_bytes(binary(made()[0], [9] * few))
    assert load("cifar10", "test", tmp_path).labels.tolist() == [9] * few
    with pytest.raises(
        DataError,
        match=r"binary\.tar\.gz is damaged or not the official archive .*data_batch_1\.bin",
    ):
        load("cifar10", "train", tmp_path)


@pytest.mark.parametrize(
    "place", ["cifar-10-batches-py/test_batch", "test_batch", "cifar-10-python.tar.gz"]
)
@pytest.mark.parametrize("split", ["train", "test"])
def test_the_python_version_is_refused_unread_and_the_binary_one_named(
    tmp_path: Path, few: int, place: str, split: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where the pickle would leave its mark
    path = tmp_path / place
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(DataError, match=r"python version.* put the official cifar-10-binary") as no:
        load("cifar10", split, tmp_path)
    assert str(path) in str(no.value)
    assert not (tmp_path / MARK).exists()
    archived(tmp_path / ARCHIVE, batches())
    assert len(load("cifar10", split, tmp_path)) == (5 * few if split == "train" else few)


def one(content: bytes, name: str = "cifar-10-batches-bin/test_batch.bin") -> dict[str, bytes]:
    return {name: content}


GOOD = binary(*made())
TARS: dict[str, tuple[dict[str, bytes], bytes, str]] = {
    "missing": (
        one(GOOD, "test_batch.bin"),
        tarfile.REGTYPE,
        r"cifar-10-batches-bin/test_batch\.bin is not in it",
    ),
    "above": (one(GOOD, "../cifar-10-batches-bin/test_batch.bin"), tarfile.REGTYPE, "is not in it"),
    "a link": (one(b""), tarfile.SYMTYPE, "not a plain file"),
    "a hard link": (one(b""), tarfile.LNKTYPE, "not a plain file"),
    "a device": (one(b""), tarfile.CHRTYPE, "not a plain file"),
    "too long": (one(GOOD + b"x"), tarfile.REGTYPE, "has 12293 bytes; expected are 12292"),
    "too many": ({f"{i}": b"" for i in range(60)}, tarfile.REGTYPE, "more than 50 members"),
    "a bomb": ({"x": bytes(9_000_000)}, tarfile.REGTYPE, "larger than the official one"),
    "a long header": ({"x": bytes(3_000_000)}, tarfile.XHDTYPE, "larger than the official one"),
}


@pytest.mark.parametrize("case", TARS)
def test_hostile_archives_are_named(tmp_path: Path, few: int, case: str) -> None:
    files, kind, words = TARS[case]
    path = archived(tmp_path / ARCHIVE, files, kind)
    with pytest.raises(DataError, match=words) as caught:
        load("cifar10", "test", tmp_path)
    assert str(path) in str(caught.value)
    assert list(tmp_path.iterdir()) == [path]


def test_cut_or_damaged_archives_are_refused(tmp_path: Path, few: int) -> None:
    path = archived(tmp_path / ARCHIVE, batches())
    good = path.read_bytes()
    flipped = bytearray(good)
    flipped[-6] ^= 0xFF
    for content in [
        b"",
        b"x" * 600,
        bytes(flipped),
        *(good[:cut] for cut in range(0, len(good), 4001)),
        good[:-1],
    ]:
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"binary\.tar\.gz is damaged"):
            load("cifar10", "test", tmp_path)
