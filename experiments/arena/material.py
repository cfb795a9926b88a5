"""Images of the arena: read once, cropped, kept as bytes in a folder of the caller's."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from subprune.zoo.datasets import load as load_dataset

__all__ = ["Images", "Material", "cifar10", "image_folders"]

SIDE, SHORT = 224, 256
SUFFIXES = (".jpeg", ".jpg", ".png")


@dataclass(frozen=True)
class Images:
    """Bytes [N, 3, H, W], what makes numbers of them, and classes [N]."""

    pixels: np.ndarray
    labels: Tensor
    mean: tuple[float, ...]
    scale: tuple[float, ...]

    def __len__(self) -> int:
        return len(self.labels)

    def inputs(self, rows: slice | Sequence[int] = slice(None)) -> Tensor:
        """[n, 3, H, W] float32, as the network takes them."""
        x = torch.from_numpy(np.array(self.pixels[rows])).float()
        mean, scale = (torch.tensor(v)[:, None, None] for v in (self.mean, self.scale))
        return (x - mean) / scale

    def batches(self, size: int = 50) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs and classes, in order."""
        for start in range(0, len(self), size):
            rows = slice(start, start + size)
            yield self.inputs(rows), self.labels[rows]

    def part(self, rows: Sequence[int]) -> Images:
        chosen = list(rows)
        return Images(self.pixels[chosen], self.labels[chosen], self.mean, self.scale)


@dataclass(frozen=True)
class Material:
    """What calibrates, what settings of rivals are chosen on, and what judges; none in common."""

    calibration: Images
    tuning: Images
    test: Images
    words: str  # the protocol


def cifar10(folder: Path, counts: dict[str, int], seed: int) -> Material:
    """Training images calibrate and tune, test images judge."""
    train, test = (load_dataset("cifar10", part, folder) for part in ("train", "test"))
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed)).tolist()
    factor, shift = train.scale_and_shift()
    mean, scale = (tuple(v.tolist()) for v in (shift / factor, 1 / factor))

    def images(source: Any, rows: Sequence[int]) -> Images:
        chosen = torch.tensor(list(rows))
        return Images(source.images[chosen].numpy(), source.labels[chosen].long(), mean, scale)

    n, m = counts["calibration"], counts["tuning"]
    return Material(
        images(train, order[:n]),
        images(train, order[n : n + m]),
        images(test, range(min(counts["test"], len(test)))),
        f"{n} training images drawn by seed calibrate, the test images judge",
    )


def image_folders(
    sample: Path, validation: Path, cache: Path, how: dict[str, Any], seed: int
) -> Material:
    """ImageNet: one image per class to calibrate and tune, a validation set in class folders.

    `sample` holds files named after their synset, whose order is that of the classes; the folders
    of `validation` are named by the number of their class.
    """
    files = _images(sample)
    synsets = {name: i for i, name in enumerate(sorted({f.name.split("_")[0] for f in files}))}
    labels = [synsets[f.name.split("_")[0]] for f in files]
    judged = sorted(_images(validation), key=lambda f: (int(f.parent.name), f.name))
    every = _prepared(files, labels, cache, how)
    test = _prepared(judged, [int(f.parent.name) for f in judged], cache, how)
    order = torch.randperm(len(every), generator=torch.Generator().manual_seed(seed)).tolist()
    n, m = how["calibration"], how["tuning"]
    # Of fewer test images, as many of every class as of the others.
    spread = torch.linspace(0, len(test) - 1, min(how["test"], len(test))).long().tolist()
    return Material(
        every.part(order[:n]),
        every.part(order[n : n + m]),
        test if len(spread) == len(test) else test.part(spread),
        f"{n} of {len(every)} sample images drawn by seed calibrate, {len(spread)} validation "
        f"images judge; short side {SHORT}, centre {SIDE} × {SIDE}, {how['resample']}",
    )


def _images(folder: Path) -> list[Path]:
    found = sorted(f for f in folder.rglob("*") if f.suffix.lower() in SUFFIXES)
    if not found:
        raise SystemExit(f"{folder} holds no images ({', '.join(SUFFIXES)})")
    return found


def _prepared(files: list[Path], labels: list[int], cache: Path, how: dict[str, Any]) -> Images:
    """The images' bytes, from the cache if they were read before."""
    key = repr((how["resample"], SHORT, SIDE, [(f.parent.name, f.name) for f in files]))
    path = cache / f"images-{hashlib.sha256(key.encode()).hexdigest()[:16]}.npy"
    if not path.is_file():
        cache.mkdir(parents=True, exist_ok=True)
        pixels = np.stack([_read(file, how["resample"]) for file in files])
        unfinished = path.with_suffix(".part.npy")
        np.save(unfinished, pixels)
        unfinished.rename(path)
    return Images(
        np.load(path, mmap_mode="r"),
        torch.tensor(labels),
        tuple(how["mean"]),
        tuple(how["scale"]),
    )


def _read(file: Path, resample: str) -> np.ndarray:
    """[3, 224, 224] bytes: short side 256, centre."""
    from PIL import Image

    with Image.open(file) as image:
        rgb = image.convert("RGB")
    factor = SHORT / min(rgb.size)
    width, height = (max(SHORT, round(factor * side)) for side in rgb.size)
    rgb = rgb.resize((width, height), getattr(Image.Resampling, resample.upper()))
    left, top = (width - SIDE) // 2, (height - SIDE) // 2
    rgb = rgb.crop((left, top, left + SIDE, top + SIDE))
    return np.asarray(rgb).transpose(2, 0, 1)
