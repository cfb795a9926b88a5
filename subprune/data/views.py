"""Other views of images: their mirror images, and images moved by a few pixels.

What holds for an image of most things holds for these too, so they are more inputs for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

from subprune.data.batch import Batch
from subprune.errors import OptionError
from subprune.messages import Message

__all__ = ["VIEWS", "View", "is_image", "mirrored", "moved", "with_views"]

View = Callable[[Tensor, torch.Generator], Tensor]
"""From images [N, channels, height, width] to as many others."""

_MARGIN = 8
"""An image is moved by at most this part of its size."""


def is_image(x: Any) -> bool:
    """Whether an argument is a batch of images: [N, channels, height, width], floating."""
    return isinstance(x, Tensor) and x.ndim == 4 and x.is_floating_point() and min(x.shape[2:]) >= 8


def mirrored(x: Tensor) -> Tensor:
    """Left and right exchanged."""
    return x.flip(3)


def moved(x: Tensor, random: torch.Generator) -> Tensor:
    """Every image moved by a few pixels of its own, with zeros behind it."""
    n, _, height, width = x.shape
    down, right = height // _MARGIN, width // _MARGIN
    padded = F.pad(x, (right, right, down, down))
    rows = torch.randint(0, 2 * down + 1, (n,), generator=random)
    columns = torch.randint(0, 2 * right + 1, (n,), generator=random)
    shifts = zip(rows.tolist(), columns.tolist(), strict=True)
    return torch.stack(
        [padded[i, :, r : r + height, c : c + width] for i, (r, c) in enumerate(shifts)]
    )


VIEWS: Mapping[str, View] = {"mirror": lambda x, random: mirrored(x), "crop": moved}


def with_views(
    batches: Sequence[Batch], folds: Sequence[int], names: Sequence[str], seed: int
) -> tuple[list[Batch], list[int]]:
    """The batches and the named views of them, each in the fold of the batch it is a view of.

    A view is too like its image to be held out from it.
    """
    if names and not any(is_image(x) for b in batches for x in tree_flatten(b.inputs)[0]):
        raise OptionError(
            Message(
                "{augment=} is for images, [N, channels, height, width] of 8 × 8 pixels or more, "
                "and no input is one",
                augment=list(names),
            )
        )
    random = torch.Generator().manual_seed(seed)
    every, numbers = list(batches), list(folds)
    for name in names:
        view = VIEWS[name]
        for batch, fold in zip(batches, folds, strict=True):
            inputs = tree_map(lambda x, v=view: v(x, random) if is_image(x) else x, batch.inputs)
            every.append(Batch(inputs, batch.labels, batch.size))
            numbers.append(fold)
    return every, numbers
