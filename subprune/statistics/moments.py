"""Mean and variance of every channel, pooled over batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from subprune.errors import DataError
from subprune.messages import Message

if TYPE_CHECKING:
    from subprune.program.ranks import Ranks

__all__ = ["pooled"]


def pooled(batches: Sequence[Tensor], ranks: Ranks) -> tuple[Tensor, Tensor]:
    """Mean and unbiased variance of every channel, over all places of all batches of all ranks
    together: float64.
    """
    count = torch.tensor([sum(x.numel() // x.shape[1] for x in batches)], dtype=torch.float64)
    ranks.sum([count])
    n = int(count)
    if n < 2:
        raise DataError(
            Message(
                "BatchNorm statistics cannot be taken on one value per channel; give more data, or "
                "leave {batchnorm=}",
                batchnorm="keep",
            )
        )
    sums = _channel_sums(batches)
    ranks.sum([sums])
    mean = sums / n
    squares = _channel_sums(batches, mean)
    ranks.sum([squares])
    return mean, squares / (n - 1)


def _channel_sums(batches: Sequence[Tensor], mean: Tensor | None = None) -> Tensor:
    """Sums of every channel or, given the means, of its squared distances; one batch at a time is
    made float64.
    """
    total = torch.zeros(batches[0].shape[1], dtype=torch.float64, device=batches[0].device)
    for batch in batches:
        x = batch.transpose(0, 1).flatten(1).double()
        total += x.sum(1) if mean is None else (x - mean[:, None]).square().sum(1)
    return total
