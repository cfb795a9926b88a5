"""Half precision: where a run or a sum wants more than the model's own.

Models in bfloat16 or float16 run as they are: what their layers read and give is what they will
read and give when they are used. Sums and fits are made in float32 and float64, of values that are
converted, and no copy of the model in a wider type is ever made: where a run has to be wider, an
operation's tensors are converted when it runs, and forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

__all__ = ["HALF", "SINGLE", "least_precise", "single", "widened"]

HALF = (torch.float16, torch.bfloat16)

SINGLE: Mapping[torch.dtype, torch.dtype] = dict.fromkeys(HALF, torch.float32)
"""What each narrow type becomes."""


def single(x: Tensor) -> Tensor:
    """The tensor in float32 if it is in half precision, otherwise itself."""
    return x.float() if x.dtype in HALF else x


def widened(x: Any, table: Mapping[torch.dtype, torch.dtype]) -> Any:
    """Tensors and types as the table says; anything else as it is."""
    if isinstance(x, Tensor):
        return x.to(table[x.dtype]) if x.dtype in table else x
    return table.get(x, x) if isinstance(x, torch.dtype) else x


def least_precise(kinds: Iterable[torch.dtype]) -> float:
    """The largest machine epsilon among some types."""
    return max((torch.finfo(kind).eps for kind in kinds if kind.is_floating_point), default=0.0)
