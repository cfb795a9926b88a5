"""Places at which a convolution of large maps is looked at, where all of them would be far more
rows than its fit needs.

The first stages of a network for large images have thousands of output positions per image and few
hundred columns: a million rows say next to nothing that some ten thousand, spread over all images,
do not say.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from subprune.statistics.place import generator

if TYPE_CHECKING:
    from subprune.statistics.columns import ColumnMap
    from subprune.statistics.patches import Convolution
    from subprune.statistics.runs import Run
    from subprune.structure.groups import Consumer

__all__ = ["NUMBERS", "Spots", "per_image"]

NUMBERS = 10**8
"""Rows × (columns + outputs) of a layer above which some of the rows are enough."""


@dataclass(frozen=True)
class Spots:
    """Some output positions of a batch: n in all, the same number in every image."""

    conv: Convolution
    index: tuple[Tensor, ...]  # [n] each: the image, then the position in every spatial dimension

    @classmethod
    def drawn(
        cls, conv: Convolution, shape: Sequence[int], count: int, seed: int, *of: str
    ) -> Spots:
        """This many positions of each image, of outputs of shape [N, O, *out]; the same for the
        same seed and purpose.
        """
        n, _, *out = shape
        keys = torch.rand(n, math.prod(out), generator=generator(seed, *of, "spots"))
        chosen = keys.topk(count, dim=1).indices.sort(1).values  # [N, count]
        images = torch.arange(n)[:, None].expand_as(chosen)
        places = torch.unravel_index(chosen, out)
        return cls(conv, tuple(i.reshape(-1) for i in (images, *places)))

    def rows(self, x: Tensor) -> Tensor:
        """The patches of x [N, C, *spatial] that they are computed from: [n, C, *kernel]."""
        return self.conv.windows(x)[tuple(i.to(x.device) for i in self.index)]

    def at(self, y: Tensor) -> Tensor:
        """Their values in a map [N, O, *out], each as an image of one position: [n, O, 1, …]."""
        values = y.movedim(1, -1)[tuple(i.to(y.device) for i in self.index)]
        return values.reshape(*values.shape, *[1] * (len(self.index) - 1))


def per_image(run: Run, consumer: Consumer, mapping: ColumnMap, rows: int | None) -> int | None:
    """At how many places of each image a layer is looked at; None: at all of them.

    rows: for each column, at least, and over all images.
    """
    if rows is None or mapping.conv is None or mapping.groups > 1:
        return None
    shapes = [program.values[consumer.use.output].shape for program in run.share.every]
    if any(len(shape) != 2 + len(mapping.conv.kernel_size) for shape in shapes):
        return None
    padded = any(run.counted_rows(consumer, i) is not None for i in range(len(run.envs)))
    if any(run.ranks.share(padded)):
        return None
    columns = len(mapping.units) * mapping.conv.taps
    images = sum(shape[0] for shape in shapes)
    there = sum(math.prod(shape) // shape[1] for shape in shapes)
    outputs = shapes[0][1]
    if there * (columns + outputs) <= NUMBERS or 2 * rows * columns >= there:
        return None
    fewest = min(math.prod(shape[2:]) for shape in shapes)
    return min(fewest, math.ceil(rows * columns / images))
