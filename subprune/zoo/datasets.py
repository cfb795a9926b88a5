"""MNIST and CIFAR-10 from their official files, and the small MNIST sample that ships with the
package.

A file is either read whole and found to be exactly what was expected, or refused by name. Every
size is known and compared before memory is taken for it (see `readers`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from subprune.errors import DataError, OptionError, closest
from subprune.messages import Message
from subprune.zoo import assets_dir
from subprune.zoo.readers import (
    archive_bytes,
    check_labels,
    cifar_size,
    parse_cifar,
    read_cifar,
    read_idx,
)

__all__ = [
    "Images",
    "VerificationSplit",
    "calibration_batches",
    "dataset_names",
    "load",
    "split_verification",
]

Split = Literal["train", "test"]
Augment = Callable[[Tensor, torch.Generator], Tensor]
DATA_VARIABLE = "SUBPRUNE_DATA"


@dataclass(frozen=True)
class _Source:
    """Where a data set's files are looked for, how many images each split has, and its
    normalisation.
    """

    folders: tuple[str, ...]
    counts: dict[str, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]


_MNIST_NORM = ((0.1307,), (0.3081,))
_SOURCES = {
    "mnist": _Source(("mnist", ".", "MNIST/raw"), {"train": 60_000, "test": 10_000}, *_MNIST_NORM),
    "mnist-sample": _Source(("mnist-sample",), {"train": 4_096, "test": 10_000}, *_MNIST_NORM),
    "cifar10": _Source(
        ("cifar-10-batches-bin", "."),
        {"train": 50_000, "test": 10_000},
        (0.491, 0.482, 0.447),
        (0.247, 0.243, 0.262),
    ),
}
_CIFAR_ARCHIVE = "cifar-10-binary.tar.gz"
# Where the python version lies, if it is there. Its files are pickles, which can run code: they are
# recognised by name, to say what to give instead, and never opened.
_CIFAR_PICKLES = ("cifar-10-batches-py/test_batch", "test_batch", "cifar-10-python.tar.gz")


@dataclass(frozen=True, eq=False)
class Images:
    """Images as stored, with their labels.

    Attributes:
        images: [N, C, H, W] uint8.
        labels: [N] int64, 0 to 9.
        name: the data set: "mnist", "mnist-sample" or "cifar10".
        split: "train" or "test".
    """

    images: Tensor
    labels: Tensor
    name: str
    split: str

    def __post_init__(self) -> None:
        if self.name not in _SOURCES:
            raise DataError(f"name is {self.name!r}; allowed are {', '.join(dataset_names())}.")
        channels = len(_SOURCES[self.name].mean)
        shape, count = tuple(self.images.shape), len(self.labels)
        if self.images.dtype != torch.uint8 or len(shape) != 4 or shape[:2] != (count, channels):
            raise DataError(
                f"images are {self.images.dtype} of shape {shape} for {count} labels; "
                f"{self.name} needs torch.uint8 of shape ({count}, {channels}, height, width). "
                "Give pixels as stored, 0 to 255."
            )

    def __len__(self) -> int:
        return len(self.labels)

    def inputs(self, indices: Tensor | None = None) -> Tensor:
        """Normalised float32 [n, C, H, W], of all images or of those at `indices`."""
        return self.normalise(self.images if indices is None else self.images[indices])

    def normalise(self, images: Tensor) -> Tensor:
        """uint8 images of this data set → float32, (x / 255 − mean) / std per channel."""
        scale, shift = self.scale_and_shift()
        return images.float().mul_(scale.view(-1, 1, 1)).sub_(shift.view(-1, 1, 1))

    def scale_and_shift(self) -> tuple[Tensor, Tensor]:
        """Of each channel: a pixel x becomes x · scale − shift."""
        source = _SOURCES[self.name]
        scale = torch.tensor([1 / (255 * s) for s in source.std])
        return scale, torch.tensor([m / s for m, s in zip(source.mean, source.std, strict=True)])

    def subset(self, indices: Tensor) -> Images:
        """The images at `indices`, in that order, as a data set of its own."""
        return Images(self.images[indices], self.labels[indices], self.name, self.split)


def dataset_names() -> list[str]:
    """The names `load` knows."""
    return sorted(_SOURCES)


def load(name: str, split: str, data_dir: str | Path | None = None) -> Images:
    """Read one split of a data set.

    Args:
        name: "mnist" or "cifar10" (official files), or "mnist-sample" (shipped; `data_dir` is not
            used).
        split: "train" or "test".
        data_dir: the folder that holds `mnist/` or `cifar-10-batches-bin/`, or the files
            themselves, or `cifar-10-binary.tar.gz`; by default the environment variable
            SUBPRUNE_DATA.
    """
    if name not in _SOURCES:
        raise OptionError(
            f"no data set is named {name!r}; {closest(name, _SOURCES)}allowed are "
            f"{', '.join(dataset_names())}."
        )
    if split not in get_args(Split):
        raise OptionError(f'split is {split!r}; allowed are "train" and "test".')
    root = assets_dir() if name == "mnist-sample" else _data_root(name, data_dir)
    read = _load_cifar if name == "cifar10" else _load_mnist
    images, labels = read(root, _SOURCES[name], split)
    return Images(images, labels, name, split)


def _data_root(name: str, data_dir: str | Path | None) -> Path:
    """The folder to look in, from the argument or the environment."""
    folder = data_dir if data_dir is not None else os.environ.get(DATA_VARIABLE)
    if not folder:
        raise DataError(
            Message(
                "no folder was given for the data set {name!r}; pass {data_dir:name} or "
                "set {variable} to the folder that holds its official files. "
                "'mnist-sample' needs none.",
                name=name,
                variable=DATA_VARIABLE,
            )
        )
    root = Path(folder)
    if not root.is_dir():
        raise DataError(
            f"the data folder {root} does not exist or is not a folder; "
            f"give the one that holds {name!r}."
        )
    return root


def _existing(root: Path, folders: tuple[str, ...], names: tuple[str, ...]) -> Path | None:
    """The first existing file of these names in these folders below `root`."""
    paths = (root / folder / name for folder in folders for name in names)
    return next((path for path in paths if path.is_file()), None)


def _find(root: Path, folders: tuple[str, ...], names: tuple[str, ...]) -> Path:
    """The same, or an error that names what was looked for and where."""
    if path := _existing(root, folders, names):
        return path
    places = " or ".join(str(root / folder) for folder in folders)
    raise DataError(
        Message(
            "{names} was not found in {places}; put the official file there, or give another "
            "{data_dir:name}.",
            names=" or ".join(names),
            places=places,
        )
    )


def _load_mnist(root: Path, source: _Source, split: str) -> tuple[Tensor, Tensor]:
    """Images [N, 1, 28, 28] and labels [N] from a pair of idx files, plain or gzipped."""
    prefix, count = "t10k" if split == "test" else "train", source.counts[split]
    stems = (f"{prefix}-images-idx3-ubyte", f"{prefix}-labels-idx1-ubyte")
    paths = [_find(root, source.folders, (f"{stem}.gz", stem)) for stem in stems]
    images = read_idx(paths[0], (count, 28, 28)).unsqueeze(1)
    return images, check_labels(paths[1], read_idx(paths[1], (count,)))


def _load_cifar(root: Path, source: _Source, split: str) -> tuple[Tensor, Tensor]:
    """Images [N, 3, 32, 32] and labels [N] from the files of the binary version, or its archive."""
    stems = ["test_batch"] if split == "test" else [f"data_batch_{i}" for i in range(1, 6)]
    names = [f"{stem}.bin" for stem in stems]
    archive, unpacked = root / _CIFAR_ARCHIVE, _existing(root, source.folders, (names[0],))
    if archive.is_file() and not unpacked:
        parts = _cifar_from_archive(archive, names)
    else:
        if not unpacked:
            _refuse_pickles(root)
        parts = [read_cifar(_find(root, source.folders, (name,))) for name in names]
    return torch.cat([images for images, _ in parts]), torch.cat([labels for _, labels in parts])


def _refuse_pickles(root: Path) -> None:
    """Say what to give instead of CIFAR-10's python version."""
    for path in (root / name for name in _CIFAR_PICKLES):
        if path.is_file():
            raise DataError(
                f"{path} belongs to CIFAR-10's python version; its pickles are not read: "
                f"put the official {_CIFAR_ARCHIVE} there, as it is or unpacked."
            )


def _cifar_from_archive(archive: Path, names: list[str]) -> list[tuple[Tensor, Tensor]]:
    """The batches of these names, in this order, read from the archive as it is."""
    members = [f"cifar-10-batches-bin/{name}" for name in names]
    batches = {
        member: parse_cifar(f"{archive}: {member}", content)
        for member, content in archive_bytes(archive, members, cifar_size())
    }
    return [batches[member] for member in members]


class VerificationSplit(NamedTuple):
    """Indices of the verification images and of all others; the two have nothing in common."""

    verification: Tensor
    rest: Tensor


def split_verification(images: Images, size: int, seed: int) -> VerificationSplit:
    """Set `size` random images aside, to measure accuracy on while budgets are chosen.

    One permutation belongs to a seed: verification takes its end, `calibration_batches` its
    beginning, so with the same images and seed the two are disjoint unless together they need more
    images than there are.
    """
    if not 0 <= size <= len(images):
        raise OptionError(
            f"size is {size}; allowed is 0 to {len(images)}, the images of this split."
        )
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    cut = len(images) - size
    return VerificationSplit(verification=order[cut:], rest=order[:cut])


def calibration_batches(
    images: Images, n: int, seed: int, batch_size: int = 128, augment: Augment | None = None
) -> list[tuple[Tensor, Tensor]]:
    """Draw `n` different images at random and return them as batches of (normalised inputs,
    labels).

    Args:
        images: the split to draw from.
        n: how many images; the paper uses 4 batches of 128.
        seed: the same seed gives the same batches.
        batch_size: images per batch; the last batch may be smaller.
        augment: changes the pixels of a batch at random, by the generator that drew the images.
    """
    if not 1 <= n <= len(images):
        raise OptionError(f"n is {n}; allowed is 1 to {len(images)}, the images of this split.")
    if batch_size < 1:
        raise OptionError(f"batch_size is {batch_size}; it must be at least 1.")
    generator = torch.Generator().manual_seed(seed)
    batches = []
    for indices in torch.randperm(len(images), generator=generator)[:n].split(batch_size):
        pixels = images.images[indices]
        pixels = pixels if augment is None else augment(pixels, generator)
        batches.append((images.normalise(pixels), images.labels[indices]))
    return batches
