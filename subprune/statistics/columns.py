"""Which columns of a consumer's input belong to which unit: the paper's map M."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from subprune.errors import OptionError
from subprune.program.onednn import convolution, linear, usable
from subprune.program.ops import window
from subprune.statistics.patches import Convolution

if TYPE_CHECKING:
    from subprune.program.program import Program
    from subprune.structure.groups import Consumer

__all__ = ["ColumnMap", "column_map"]


@dataclass(frozen=True)
class ColumnMap:
    """Which columns of B each unit owns: the paper's map M, for one layer that reads the units.

    units: [inputs] int64, unit of each input feature or channel, or -1. conv is None for a linear
    layer (any leading dimensions, features last); a convolution has a column for every channel and
    kernel position.
    """

    units: Tensor
    outputs: int
    conv: Convolution | None = None
    where: str = "consumer"

    @property
    def kind(self) -> str:
        """'linear' or 'conv'."""
        return "linear" if self.conv is None else "conv"

    @property
    def groups(self) -> int:
        """Number of independent column blocks: 1, or the groups of a grouped convolution."""
        return 1 if self.conv is None else self.conv.groups

    def column_units(self) -> list[Tensor]:
        """For each block, the unit of each of its columns: [inputs / groups · kernel positions]."""
        if self.units.numel() % self.groups or self.outputs % self.groups:
            raise OptionError(
                f"{self.where}: {self.units.numel()} inputs and {self.outputs} outputs cannot be split "
                f"into {self.groups} groups"
            )
        taps = 1 if self.conv is None else self.conv.taps
        return (
            list(self.units.repeat_interleave(taps).chunk(self.groups))
            if self.units.numel()
            else []
        )

    def part(self, inputs: Tensor) -> ColumnMap:
        """The same of some input features or channels [q] only."""
        return self if len(inputs) == len(self.units) else replace(self, units=self.units[inputs])

    def flat(self) -> ColumnMap:
        """The same of rows of patches, as of a linear layer; of a layer with one block."""
        taps = 1 if self.conv is None else self.conv.taps
        return replace(self, units=self.units.repeat_interleave(taps), conv=None)

    def output(self, a: Tensor, weight: Tensor) -> Tensor:
        """The layer's output without bias for an input a and its weight, both as the layer has
        them.
        """
        if self.conv is None:
            return linear(a, weight) if usable(a, weight) else F.linear(a, weight)
        padded = self.conv.pad(self.conv.lay_out(a))
        if len(self.conv.kernel_size) == 2 and usable(padded, weight):
            rest = ((0, 0), self.conv.stride, self.conv.dilation, self.conv.groups)
            last = weight.contiguous(memory_format=torch.channels_last)
            return convolution(padded, last, None, rest)
        run = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[len(self.conv.kernel_size)]
        return run(
            padded,
            weight,
            stride=self.conv.stride,
            dilation=self.conv.dilation,
            groups=self.conv.groups,
        )

    def weight_blocks(self, weight: Tensor) -> list[Tensor]:
        """A layer's weight [outputs, inputs / groups, *kernel] as one matrix [d, m] for each block."""
        return [block.flatten(1).T for block in weight.chunk(self.groups)]


def column_map(consumer: Consumer, program: Program, where: str) -> ColumnMap:
    """Which columns of the consumer's input belong to which unit."""
    use = consumer.use
    shape = program.values[use.weight_value].shape
    units = torch.as_tensor(consumer.units_of(consumer.columns.size * consumer.groups))
    geometry = window(program.ops[use.op])
    if geometry is None:
        return ColumnMap(units, shape[use.product.made], None, where)
    kernel, groups = shape[2:], geometry.groups
    if use.product.transposed:
        assert not isinstance(geometry.padding, str)
        conv = Convolution.transposed(
            kernel,
            geometry.stride,
            geometry.padding,
            geometry.output_padding,
            geometry.dilation,
            groups,
        )
        return ColumnMap(units, shape[1] * groups, conv, where)
    conv = Convolution.make(
        kernel, geometry.stride, geometry.padding, geometry.dilation, "zeros", groups
    )
    return ColumnMap(units, shape[0], conv, where)
