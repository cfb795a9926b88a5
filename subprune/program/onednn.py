"""Products and convolutions that oneDNN makes, in float32 on the CPU.

PyTorch leaves most products of matrices, and convolutions of kernel 1 in small batches, to another
library, whose kernels for some processors use half the width of their registers. oneDNN's are made
for the instructions that are there. Results agree to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["convolution", "crossed", "crossed_each", "linear", "usable"]

_SIDE = 128  # numbers in a product's shorter side from which on its call is worth it


def usable(*tensors: Tensor) -> bool:
    """Whether oneDNN can work on these tensors."""
    own = all(x.device.type == "cpu" and x.dtype == torch.float32 and x.numel() for x in tensors)
    return own and torch.backends.mkldnn.is_available()


def crossed(a: Tensor, b: Tensor) -> Tensor:
    """aᵀb [p, q] of a [n, p] and b [n, q]."""
    if not _worth(a, b):
        return a.T @ b
    # Of a part of a matrix, products are made a hundred times as slowly: it is copied.
    return _linear(a.contiguous().T, b.contiguous().T, None)


def crossed_each(a: Tensor, b: Tensor) -> Tensor:
    """aᵀb [k, p, q] of every a [k, n, p] and b [k, n, q]."""
    if not len(a) or not _worth(a[0], b[0]):
        return torch.bmm(a.mT, b)
    if len(a) == 1:
        return crossed(a[0], b[0])[None]
    return torch.stack([crossed(x, y) for x, y in zip(a, b, strict=True)])


def _worth(a: Tensor, b: Tensor) -> bool:
    return min(a.shape[1], b.shape[1]) >= _SIDE and usable(a, b)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x·weightᵀ + bias [..., outputs] of x [..., inputs], weight [outputs, inputs]."""
    return _linear(x.contiguous(), weight.contiguous(), bias)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    made: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, weight, bias, "none", [], "")
    return made


def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    shape: tuple[Sequence[int] | str, Sequence[int], Sequence[int], int],
    *,
    other: Tensor | None = None,
    relu: bool = False,
) -> Tensor:
    """A convolution of images, plus another value, and a ReLU of it all.

    shape: padding, stride, dilation, groups; weight: channels last in memory.
    """
    made: Tensor
    if other is None:
        kind = "relu" if relu else "none"
        call = torch.ops.mkldnn._convolution_pointwise.default
        made = call(x, weight, bias, *shape, kind, [], "")
        return made
    other = other.contiguous(memory_format=torch.channels_last)
    last = "relu" if relu else None
    call = torch.ops.mkldnn._convolution_pointwise.binary
    made = call(x, other, weight, bias, *shape, "add", 1.0, last, [], "")
    return made
