"""More inputs from few: random crops, mirror images, mixtures of two images, and images with a
square of another one pasted in.

The dense model says what should come out for each of them, so nothing needs a label, and a mixture
is as good an input as an image. Inputs that are not images are left as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from subprune.data.views import is_image, mirrored, moved

__all__ = ["Sampler"]

_MIXED, _PASTED = 0.3, 0.3
"""Shares of the batches whose images are mixed with others, and that have squares of others."""


class Sampler:
    """Draws batches from inputs [count, …], the leaves of one tree of arguments."""

    def __init__(
        self, leaves: Sequence[Any], spec: Any, count: int, augment: bool, seed: int
    ) -> None:
        self.leaves, self.spec, self.count = leaves, spec, count
        self.augment = augment and any(is_image(x) for x in leaves)
        self.random = torch.Generator().manual_seed(seed)

    @classmethod
    def of(cls, arguments: Sequence[Any], augment: bool, seed: int) -> Sampler:
        """From the arguments of several batches, joined along their first dimension."""
        flat = [tree_flatten(a) for a in arguments]
        spec, leaves = flat[0][1], []
        for column in zip(*(leaves for leaves, _ in flat), strict=True):
            joined = isinstance(column[0], Tensor) and column[0].ndim > 0
            leaves.append(torch.cat(list(column)) if joined else column[0])
        return cls(leaves, spec, len(_rows(leaves)), augment, seed)

    def batches(self, size: int) -> list[Tensor]:
        """The numbers of all inputs in a new random order, in batches; a short rest is left out."""
        order = torch.randperm(self.count, generator=self.random)
        most = min(size, self.count)
        return [part for part in order.split(most) if len(part) == most]

    def draw(self, numbers: Tensor) -> Any:
        """The arguments of a call on these inputs, changed at random where they are images."""
        chosen = [x[numbers] if _counted(x, self.count) else x for x in self.leaves]
        if self.augment:
            chosen = [self._changed(x) if is_image(x) else x for x in chosen]
        return tree_unflatten(chosen, self.spec)

    def _changed(self, x: Tensor) -> Tensor:
        """Mirrored, moved, and for some of the batches mixed with, or pasted into, one another."""
        n = len(x)
        chosen = torch.rand(n, generator=self.random) < 0.5
        x = moved(torch.where(chosen[:, None, None, None], mirrored(x), x), self.random)
        kind = float(torch.rand((), generator=self.random))
        if kind >= _MIXED + _PASTED:
            return x
        other = x[torch.randperm(n, generator=self.random)]
        if kind < _MIXED:
            share = torch.rand(n, 1, 1, 1, generator=self.random).to(x)
            return share * x + (1 - share) * other
        return torch.where(self._rectangles(x), other, x)

    def _rectangles(self, x: Tensor) -> Tensor:
        """A random rectangle of every image, of the image's proportions: [N, 1, height, width]."""
        n = len(x)
        # The root of a uniform number as side: every share of the area is as likely.
        side = torch.rand(n, generator=self.random).sqrt()
        inside = []
        for length in x.shape[2:]:
            extent = side * length
            start = torch.rand(n, generator=self.random) * (length - extent)
            at = torch.arange(length) + 0.5
            inside.append((at >= start[:, None]) & (at < (start + extent)[:, None]))
        rows, columns = inside
        return (rows[:, None, :, None] & columns[:, None, None, :]).to(x.device)


def _rows(leaves: Sequence[Any]) -> Tensor:
    """The first tensor of the arguments, whose length is the number of inputs."""
    return next(x for x in leaves if isinstance(x, Tensor) and x.ndim > 0)


def _counted(x: Any, count: int) -> bool:
    return isinstance(x, Tensor) and x.ndim > 0 and len(x) == count
