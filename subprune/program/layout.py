"""Where the tokens of a batch lie in a recorded value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from subprune.program.program import Program

__all__ = ["Layout", "counted", "over_rows"]


@dataclass(frozen=True)
class Layout:
    """The dimensions of a value that samples and their positions lie in.

    ``[N, L, …]`` has samples=0 and positions=1, ``[N, heads, L, …]`` positions=2. Where both lie in
    one dimension, ``[N·L, …]``, sample after sample, the two numbers are the same.
    """

    mask: str  # name of the input [N, L] that says which tokens count
    samples: int
    positions: int

    def spread(self, mask: Tensor, shape: Sequence[int]) -> Tensor | None:
        """mask [N, L] for a value of this shape: all its other dimensions have length 1.

        None if the value has other lengths than the mask.
        """
        count, length = mask.shape
        sizes = [1] * len(shape)
        if self.samples == self.positions:
            sizes[self.samples] = count * length
        else:
            sizes[self.samples], sizes[self.positions] = count, length
        if any(shape[d] != sizes[d] for d in (self.samples, self.positions)):
            return None
        ordered = mask if self.samples <= self.positions else mask.T
        return ordered.reshape(sizes)


def counted(
    program: Program, known: Mapping[str, Tensor], value: int, shape: Sequence[int] | None = None
) -> Tensor | None:
    """Which positions of a value count, its other dimensions of length 1; None: all do.

    known: by name, the batch's masks [N, L]; shape: of the value, where the program was recorded for another
    batch.
    """
    layout = program.layouts.get(value)
    if layout is None or layout.mask not in known:
        return None
    return layout.spread(known[layout.mask], shape or program.values[value].shape)


def over_rows(counted: Tensor, shape: Sequence[int], channels: int) -> Tensor:
    """Which rows of a value count, a row for every position, across its channels.

    counted: as `Layout.spread` gives it; channels: the dimension of the channels, which alone has
    length 1 in what comes out.
    """
    sizes = list(shape)
    sizes[channels] = 1
    return counted.expand(sizes)
