"""Statistics of stride-1 convolutions without patches.

Two columns (channel c, tap u) and (c', tap v) meet at ``Σ_q x[c, q]·x[c', q + v − u]``, where q runs over
``u + output positions`` of the padded input. Away from the border the sum depends on the shift v − u
only: a 3×3 kernel has 13 shifts up to sign instead of 81 products. So the products over the core, the
positions that all taps share, are made once for each shift, and every tap adds its own border. With
channels last, a shift is an offset in one list of pixels, hence the core products copy nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from subprune.patches import Convolution

__all__ = ["Products", "can_shift", "shifted_products"]


@dataclass(frozen=True)
class Products:
    """Products of some rows of B, columns channel by channel, with targets."""

    gram: Tensor  # [d, d], BᵀB
    cross: Tensor  # [d, m], BᵀY
    sums: Tensor  # [d] float64, column sums of B
    rows: int


def _ranges(conv: Convolution, spatial: tuple[int, ...]) -> list[list[tuple[int, int]]]:
    """For each dimension and tap, the padded positions [from, to) where it meets anything but zeros."""
    found = []
    for d, size in enumerate(spatial):
        before, after = conv.padding[d]
        out = size + before + after - conv.dilation[d] * (conv.kernel_size[d] - 1)
        own = [(u * conv.dilation[d], u * conv.dilation[d] + out) for u in range(conv.kernel_size[d])]
        if conv.padding_mode == "zeros":
            own = [(max(a, before), min(b, before + size)) for a, b in own]
        found.append(own)
    return found


def can_shift(conv: Convolution, spatial: tuple[int, ...]) -> bool:
    """Whether shifts pay: stride 1, several taps, and a core of at least half the positions."""
    if conv.taps == 1 or len(spatial) != len(conv.kernel_size) or any(s != 1 for s in conv.stride):
        return False
    share = 1.0
    for size, own in zip(spatial, _ranges(conv, spatial), strict=True):
        share *= max(0, min(b for _, b in own) - max(a for a, _ in own)) / size
    return share >= 0.5


def shifted_products(x: Tensor, y: Tensor | None, conv: Convolution) -> Products:
    """Products of the patches of x [N, C, *spatial] (one group), and with targets y [N, O, *out]."""
    padded = conv.pad(x).movedim(1, -1).contiguous()  # [N, *padded, C]
    n, *sizes, channels = padded.shape
    pixels = padded.view(-1, channels)  # [N·area, C]
    masks, core = _masks(conv, tuple(x.shape[2:]), tuple(sizes), x.device)
    strides = [math.prod(sizes[d + 1 :]) for d in range(len(sizes))]
    taps = list(product(*(range(k) for k in conv.kernel_size)))
    offsets = [sum(u * g * s for u, g, s in zip(tap, conv.dilation, strides, strict=True)) for tap in taps]
    inner = (padded.view(n, -1, channels) * core[:, None].to(x.dtype)).view(-1, channels)
    gram = x.new_empty(len(taps), channels, len(taps), channels)
    known: dict[tuple[int, ...], Tensor] = {}
    for i, u in enumerate(taps):
        border = _border(masks[i] & ~core, n)  # pixels only some taps see
        own = pixels[border].T
        for j in range(i, len(taps)):
            shift = tuple(b - a for a, b in zip(u, taps[j], strict=True))
            offset = offsets[j] - offsets[i]
            if shift not in known:
                known[shift] = inner[: len(inner) - offset].T @ pixels[offset:]
            gram[i, :, j] = known[shift] + own @ pixels[border + offset]
            gram[j, :, i] = gram[i, :, j].T
    wide = padded.cpu() if x.device.type == "mps" else padded  # no float64 there
    totals = wide.view(n, -1, channels).sum(0, dtype=torch.float64)  # [area, C]
    sums = torch.stack([totals[mask.to(totals.device)].sum(0) for mask in masks], 1)  # [C, taps]
    rows = n * conv.windows(x[:1])[0].numel() // (channels * len(taps))
    cross = _cross(pixels, y, sizes, offsets)
    gram = gram.permute(1, 0, 3, 2).reshape(cross.shape[0], -1)
    return Products(gram, cross, sums.flatten(), rows)


def _masks(
    conv: Convolution, spatial: tuple[int, ...], sizes: tuple[int, ...], device: torch.device
) -> tuple[list[Tensor], Tensor]:
    """For each tap, which of the padded positions [area] it reads; and which all taps read."""
    ranges = _ranges(conv, spatial)

    def box(limits: list[tuple[int, int]]) -> Tensor:
        mask = torch.zeros(sizes, dtype=torch.bool, device=device)
        mask[tuple(slice(a, max(a, b)) for a, b in limits)] = True
        return mask.flatten()

    masks = [box(list(limits)) for limits in product(*ranges)]
    return masks, box([(max(a for a, _ in own), min(b for _, b in own)) for own in ranges])


def _border(mask: Tensor, n: int) -> Tensor:
    """Indices of the pixels of n images where the mask [area] holds."""
    where = mask.nonzero().flatten()
    return (torch.arange(n, device=mask.device)[:, None] * len(mask) + where).flatten()


def _cross(pixels: Tensor, y: Tensor | None, sizes: list[int], offsets: list[int]) -> Tensor:
    """Products [C·taps, O] with the targets y [N, O, *out], each put at its first tap's pixel."""
    channels = pixels.shape[1]
    if y is None:
        return pixels.new_zeros(channels * len(offsets), 0)
    placed = y.new_zeros(y.shape[0], *sizes, y.shape[1])
    corner = (slice(None), *(slice(0, size) for size in y.shape[2:]))
    placed[corner] = y.movedim(1, -1)
    targets = placed.view(-1, y.shape[1]).to(pixels.dtype)
    parts = [pixels[o:].T @ targets[: len(targets) - o] for o in offsets]
    return torch.stack(parts, 1).reshape(-1, y.shape[1])
