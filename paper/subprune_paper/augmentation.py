"""Random flips and crops, as the authors' code makes them on CIFAR-10."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["augment"]


def augment(images: Tensor, generator: torch.Generator, padding: int = 4) -> Tensor:
    """Flip each image with probability ½ and crop it at random from a black border of `padding`
    pixels.

    Works on stored pixels, [N, C, H, W] before normalisation, so that the border is black as usual.
    """
    count, _, height, width = images.shape
    top = torch.randint(2 * padding + 1, (count, 1), generator=generator)
    left = torch.randint(2 * padding + 1, (count, 1), generator=generator)
    flip = torch.randint(2, (count, 1), generator=generator).bool()
    rows = top + torch.arange(height)
    columns = left + torch.where(flip, torch.arange(width).flip(0), torch.arange(width))
    padded = torch.nn.functional.pad(images, (padding,) * 4)
    which = torch.arange(count).view(-1, 1, 1)
    return padded[which, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()
