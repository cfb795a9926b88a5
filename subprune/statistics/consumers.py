"""A consumer's weight as statistics see it: outputs first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from subprune.structure.groups import Consumer

__all__ = ["consumer_weight", "scale_units", "stored_weight"]


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
