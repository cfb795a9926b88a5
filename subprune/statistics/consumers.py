"""A consumer's weight and input as statistics see them:
outputs first, one row per output position.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from subprune.program.ops import window
from subprune.program.program import Program
from subprune.statistics.patches import Convolution
from subprune.statistics.statistics import ColumnMap
from subprune.structure import Consumer

__all__ = ["column_map", "consumer_weight", "scale_units", "stored_weight"]


def consumer_weight(consumer: Consumer, tensors: Mapping[str, Tensor]) -> Tensor:
    """The consumer's weight with outputs first: [outputs, inputs / groups, *kernel]."""
    use, weight = consumer.use, tensors[consumer.use.weight]
    if len(use.order) < weight.ndim:  # a part of a parameter that holds several weights
        return weight.movedim((use.out_dim, use.in_dim), (0, 1))
    return use.product.outputs_first(weight.permute(use.order), consumer.groups)


def stored_weight(consumer: Consumer, weight: Tensor) -> Tensor:
    """The way back: a weight [outputs, inputs / groups, *kernel] as the consumer holds it."""
    use = consumer.use
    return use.product.outputs_first(weight, consumer.groups).permute(
        [use.order.index(d) for d in range(weight.ndim)]
    )


def scale_units(consumer: Consumer, tensors: dict[str, Tensor], scale: Tensor) -> None:
    """Multiply the weights that read unit i by scale[i]; the tensor is replaced, never written
    into.
    """
    old, dim = tensors[consumer.use.weight], consumer.use.in_dim
    units = torch.as_tensor(consumer.units_of(old.shape[dim]))
    factor = torch.where(units >= 0, scale.cpu()[units.clamp(min=0)], 1.0).to(old)
    shape = [1] * old.ndim
    shape[dim] = -1
    tensors[consumer.use.weight] = old * factor.reshape(shape)


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
