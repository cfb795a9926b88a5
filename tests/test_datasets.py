"""Readers that refuse what is damaged, draws that are reproducible and disjoint."""

from __future__ import annotations

import gzip
import struct
import tracemalloc
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from subprune.errors import DataError, OptionError
from subprune.zoo import readers
from subprune.zoo.datasets import (
    Images,
    calibration_batches,
    dataset_names,
    load,
    split_verification,
)
from subprune.zoo.readers import idx_bytes, read_cifar, read_idx
from tests.shared import SHARED, needs_shared

SHAPE = (5, 4, 3)
RECORD = 3073


def pixels(shape: tuple[int, ...] = SHAPE) -> torch.Tensor:
    return torch.randint(256, shape, generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


def write(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def header(*shape: int, magic: int = 0x0803) -> bytes:
    return struct.pack(f">I{len(shape)}I", magic, *shape)


@pytest.fixture
def images() -> Images:
    return Images(pixels((50, 3, 32, 32)), torch.arange(50) % 10, "cifar10", "train")


# ---- idx files


@pytest.mark.parametrize("zipped", [True, False])
def test_idx_round_trip(tmp_path: Path, zipped: bool) -> None:
    content = idx_bytes(pixels())
    path = write(
        tmp_path, "a.gz" if zipped else "a", content if zipped else gzip.decompress(content)
    )
    assert torch.equal(read_idx(path, SHAPE), pixels())


BODY = pixels().numpy().tobytes()
HOSTILE = {
    "wrong magic": (header(*SHAPE, magic=0x0801) + BODY, "starts with 00000801, not 00000803"),
    "empty": (b"", "starts with nothing"),
    "header cut": (header(*SHAPE)[:9], "ends inside its header"),
    "huge sizes": (header(2**32 - 1, 2**32 - 1, 2**32 - 1) + BODY, "declares the shape 4294967295"),
    "other shape": (header(5, 3, 4) + BODY, "declares the shape 5 × 3 × 4; expected is 5 × 4 × 3"),
    "too short": (header(*SHAPE) + BODY[:-1], "has 59 bytes of data where its header declares 60"),
    "too long": (header(*SHAPE) + BODY + b"\0", "has more than 60 bytes"),
}


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_idx_is_named_and_explained(tmp_path: Path, case: str, zipped: bool) -> None:
    content, words = HOSTILE[case]
    path = write(tmp_path, "x.gz" if zipped else "x", gzip.compress(content) if zipped else content)
    with pytest.raises(DataError, match=words) as caught:
        read_idx(path, SHAPE)
    assert str(path) in str(caught.value)


def damaged_gzip() -> dict[str, bytes]:
    good = idx_bytes(pixels())
    flipped = bytearray(good)
    flipped[-6] ^= 0xFF
    return {
        "not gzip": b"plain bytes, whatever the name says",
        "cut in the data": good[: len(good) // 2],
        "cut in the sum": good[:-3],
        "wrong sum": bytes(flipped),
        "rubbish behind": good + b"rubbish",
    }


@pytest.mark.parametrize("case", damaged_gzip())
def test_damaged_gzip_is_named(tmp_path: Path, case: str) -> None:
    path = write(tmp_path, "x.gz", damaged_gzip()[case])
    with pytest.raises(DataError, match=r"x\.gz is damaged"):
        read_idx(path, SHAPE)


def test_a_gzip_bomb_is_not_unpacked(tmp_path: Path) -> None:
    path = write(tmp_path, "x.gz", gzip.compress(header(*SHAPE) + bytes(100_000_000), 1))
    tracemalloc.start()
    with pytest.raises(DataError, match="more than 60 bytes"):
        read_idx(path, SHAPE)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5_000_000


@settings(max_examples=150, deadline=None)
@given(position=st.integers(0, 75), value=st.integers(0, 255), cut=st.integers(0, 76))
def test_any_changed_or_cut_idx_is_read_exactly_or_refused(
    tmp_path_factory: pytest.TempPathFactory, position: int, value: int, cut: int
) -> None:
    content = bytearray(header(*SHAPE) + BODY)
    content[position] = value
    path = write(tmp_path_factory.getbasetemp(), "fuzz", bytes(content[:cut]))
    whole = cut == len(content) and bytes(content[:16]) == header(*SHAPE)
    if whole:
        assert read_idx(path, SHAPE).numpy().tobytes() == content[16:]
    else:
        with pytest.raises(DataError, match="fuzz"):
            read_idx(path, SHAPE)


# ---- CIFAR-10 files


def cifar_bytes(labels: list[int]) -> bytes:
    return b"".join(bytes([label]) + bytes([label]) * (RECORD - 1) for label in labels)


def test_cifar_files_are_found_and_joined_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "CIFAR_RECORDS", 2)
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    for i in range(1, 6):
        write(folder, f"data_batch_{i}.bin", cifar_bytes([i, i + 1]))
    write(folder, "test_batch.bin", cifar_bytes([0, 9]))
    monkeypatch.setenv("SUBPRUNE_DATA", str(tmp_path))
    train, test = load("cifar10", "train"), load("cifar10", "test", folder)
    assert train.labels.tolist() == [1, 2, 2, 3, 3, 4, 4, 5, 5, 6]
    assert train.images.shape == (10, 3, 32, 32)
    assert train.images[:, 2, 31, 31].tolist() == train.labels.tolist()
    assert test.labels.tolist() == [0, 9]


@pytest.mark.parametrize("size", [0, 1, RECORD, 2 * RECORD - 1, 2 * RECORD + 1, 3 * RECORD])
def test_cifar_of_another_length_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(readers, "CIFAR_RECORDS", 2)
    path = write(tmp_path, "test_batch.bin", bytes(size))
    with pytest.raises(
        DataError, match=rf"test_batch\.bin has {size} bytes; expected are {2 * RECORD}"
    ):
        read_cifar(path)


def test_a_label_that_is_no_class_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "CIFAR_RECORDS", 2)
    path = write(tmp_path, "test_batch.bin", cifar_bytes([3, 10]))
    with pytest.raises(DataError, match=r"test_batch\.bin has the label 10; allowed are 0 to 9"):
        read_cifar(path)


def test_a_giant_sparse_cifar_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "test_batch.bin"
    with path.open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(DataError, match=f"has {2**40} bytes"):
        read_cifar(path)


# ---- load


def test_unknown_names_and_places_are_refused_with_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SUBPRUNE_DATA", raising=False)
    with pytest.raises(OptionError, match=r"'cifar'; did you mean 'cifar10'\? allowed are"):
        load("cifar", "test")
    with pytest.raises(OptionError, match='split is \'valid\'; allowed are "train" and "test"'):
        load("mnist", "valid")
    with pytest.raises(DataError, match=r"no folder was given.*SUBPRUNE_DATA"):
        load("mnist", "test")
    with pytest.raises(DataError, match=r"nowhere does not exist"):
        load("mnist", "test", tmp_path / "nowhere")
    with pytest.raises(
        DataError, match=r"t10k-images-idx3-ubyte.gz or t10k-images-idx3-ubyte was not found in"
    ):
        load("mnist", "test", tmp_path)
    with pytest.raises(DataError, match=r"test_batch\.bin was not found"):
        load("cifar10", "test", tmp_path)


def test_the_sample_ships() -> None:
    train, test = load("mnist-sample", "train"), load("mnist-sample", "test")
    assert train.images.shape == (4096, 1, 28, 28)
    assert test.images.shape == (10_000, 1, 28, 28)
    assert train.labels.dtype == torch.int64
    assert len(train.labels.unique()) == 10
    everything = train.inputs()
    assert everything.dtype == torch.float32
    assert abs(float(everything.mean())) < 0.02
    assert abs(float(everything.std()) - 1) < 0.02


@needs_shared
def test_official_files_are_read_where_they_are_and_above(monkeypatch: pytest.MonkeyPatch) -> None:
    direct = load("cifar10", "test", SHARED / "data" / "cifar-10-batches-bin")
    monkeypatch.setenv("SUBPRUNE_DATA", str(SHARED / "data"))
    above = load("cifar10", "test")
    assert torch.equal(direct.images, above.images)
    assert torch.bincount(above.labels).tolist() == [1000] * 10
    assert len(load("mnist", "train")) == 60_000


@pytest.mark.parametrize("name", dataset_names())
def test_normalisation_is_pixel_over_255_minus_mean_over_std(name: str) -> None:
    mean, std = (
        ((0.491, 0.482, 0.447), (0.247, 0.243, 0.262))
        if name == "cifar10"
        else ((0.1307,), (0.3081,))
    )
    data = Images(pixels((4, len(mean), 2, 2)), torch.zeros(4, dtype=torch.int64), name, "test")
    shape = (1, -1, 1, 1)
    expected = (data.images.double() / 255 - torch.tensor(mean).view(shape)) / torch.tensor(
        std
    ).view(shape)
    torch.testing.assert_close(data.inputs(), expected.float())
    torch.testing.assert_close(data.inputs(torch.tensor([2, 0])), expected[[2, 0]].float())
    assert data.images.dtype == torch.uint8


@pytest.mark.parametrize(
    "bad", [pixels((4, 1, 2, 2)), pixels((3, 3, 2, 2)), pixels((4, 3, 4)), torch.ones(4, 3, 2, 2)]
)
def test_images_that_are_not_pixels_of_the_data_set_are_refused(bad: torch.Tensor) -> None:
    with pytest.raises(
        DataError, match=r"cifar10 needs torch.uint8 of shape \(4, 3, height, width\)"
    ):
        Images(bad, torch.zeros(4, dtype=torch.int64), "cifar10", "test")
    with pytest.raises(DataError, match="allowed are cifar10, mnist, mnist-sample"):
        Images(bad, torch.zeros(4, dtype=torch.int64), "svhn", "test")


# ---- draws


def test_calibration_is_a_reproducible_draw_without_repeats(images: Images) -> None:
    marked = Images(images.images, torch.arange(50), images.name, images.split)
    first, again = (calibration_batches(marked, 20, seed=3, batch_size=8) for _ in range(2))
    assert [len(labels) for _, labels in first] == [8, 8, 4]
    drawn = torch.cat([labels for _, labels in first])
    assert len(drawn.unique()) == 20
    assert all(torch.equal(x, y) for (x, _), (y, _) in zip(first, again, strict=True))
    assert torch.equal(torch.cat([inputs for inputs, _ in first]), marked.inputs(drawn))
    other = torch.cat([labels for _, labels in calibration_batches(marked, 20, seed=4)])
    assert other.tolist() != drawn.tolist()


@pytest.mark.parametrize("seed", [0, 42])
def test_verification_is_disjoint_from_the_rest_and_from_calibration(
    images: Images, seed: int
) -> None:
    marked = Images(images.images, torch.arange(50), images.name, images.split)
    split = split_verification(marked, 10, seed)
    assert sorted(torch.cat(split).tolist()) == list(range(50))
    assert len(split.verification) == 10
    drawn = torch.cat([labels for _, labels in calibration_batches(marked, 40, seed)])
    assert not set(drawn.tolist()) & set(split.verification.tolist())
    assert torch.equal(split.verification, split_verification(marked, 10, seed).verification)


@pytest.mark.parametrize("n", [0, -1, 51])
def test_draws_larger_than_the_data_are_refused(images: Images, n: int) -> None:
    with pytest.raises(OptionError, match=rf"n is {n}; allowed is 1 to 50"):
        calibration_batches(images, n, seed=0)
    if n:
        with pytest.raises(OptionError, match=rf"size is {n}; allowed is 0 to 50"):
            split_verification(images, n, seed=0)
    with pytest.raises(OptionError, match="batch_size is 0"):
        calibration_batches(images, 1, seed=0, batch_size=0)


def test_random_draws_leave_the_global_generator_alone(images: Images) -> None:
    before = torch.get_rng_state()
    calibration_batches(images, 20, seed=3)
    split_verification(images, 10, seed=3)
    assert torch.equal(before, torch.get_rng_state())
