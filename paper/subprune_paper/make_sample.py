"""Make the MNIST sample that ships: `python -m subprune_paper.make_sample --data-dir …`.

All 10,000 test images, and 4,096 of the 60,000 training images drawn uniformly without replacement,
kept in the order of the official file. The same input always gives the same files, byte for byte.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from subprune.errors import SubpruneError
from subprune.files import write_atomic
from subprune.zoo import assets_dir
from subprune.zoo.datasets import Images, load
from subprune.zoo.readers import idx_bytes

__all__ = ["SEED", "TRAIN_IMAGES", "draw", "main"]

SEED = 42
TRAIN_IMAGES = 4_096


def draw(count: int) -> torch.Tensor:
    """Sorted indices of the training images in the sample, out of `count`."""
    generator = torch.Generator().manual_seed(SEED)
    return torch.randperm(count, generator=generator)[:TRAIN_IMAGES].sort().values


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the official files, write the sample, print what was written; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m subprune_paper.make_sample", description=__doc__
    )
    parser.add_argument(
        "--data-dir", type=Path, help="folder of the official files (default: $SUBPRUNE_DATA)"
    )
    parser.add_argument(
        "--output", type=Path, default=assets_dir() / "mnist-sample", help="folder to write to"
    )
    options = parser.parse_args(arguments)
    try:
        train, test = (load("mnist", split, options.data_dir) for split in ("train", "test"))
    except SubpruneError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    options.output.mkdir(parents=True, exist_ok=True)
    _write(options.output, "train", train.subset(draw(len(train))))
    _write(options.output, "t10k", test)
    return 0


def _write(folder: Path, prefix: str, images: Images) -> None:
    """One pair of idx.gz files, named as the official ones."""
    parts = {"images-idx3": images.images.squeeze(1), "labels-idx1": images.labels}
    for name, tensor in parts.items():
        path = folder / f"{prefix}-{name}-ubyte.gz"
        content = idx_bytes(tensor)
        write_atomic(path, content)
        print(f"{path}: {len(tensor)} items, {len(content)} bytes")


if __name__ == "__main__":
    sys.exit(main())
