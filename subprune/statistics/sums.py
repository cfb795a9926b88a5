"""Sums over rows: what adds up, and how one chunk of rows is multiplied.

Products are made in the precision of the rows (float32, or float64 if they are float64) and summed
in float64. Everything here is a function of the rows it is given.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from subprune.program.onednn import crossed

__all__ = [
    "MAX_BYTES",
    "STRIP",
    "Products",
    "Totals",
    "as_double",
    "clipped",
    "column_sums",
    "energy_of",
    "gram_of",
    "in_range",
    "in_strips",
    "sum_device",
    "symmetrise",
    "wide_sum",
    "working",
]

MAX_BYTES = 128 * 2**20  # of rows that are worked on at once
STRIP = 512  # columns of BᵀB that are multiplied at once, from the diagonal on
# Products of float32 numbers beyond these are lost, or their last digits are; then they are made
# again in float64.
_LEAST, _MOST = 1e-25, 1e36
_CACHED = 2**19  # bytes of float64 copies that stay in the cache


@dataclass(frozen=True, kw_only=True)
class Products:
    """Products of some rows of B, columns channel by channel, with targets."""

    gram: Tensor  # [d, d], BᵀB
    cross: Tensor  # [d, m], BᵀY
    sums: Tensor  # [d] float64, column sums of B
    rows: int
    made_in: torch.dtype  # type of the numbers that were multiplied
    # Size of the blocks on gram's diagonal whose two halves may differ by rounding; 0 if none do,
    # None where all of gram may.
    uneven: int | None = None

    @classmethod
    def totals(cls, gram: Tensor, cross: Tensor, sums: Tensor) -> Products:
        """What others are added to, in float64; their rows are counted apart."""
        return cls(gram=gram, cross=cross, sums=sums, rows=0, made_in=torch.float64)

    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """What adds up."""
        return self.gram, self.cross, self.sums


@dataclass(frozen=True)
class Totals:
    """Sums over some rows of B and their targets."""

    sums: Tensor  # [d] float64, column sums of B
    targets: Tensor  # [m] float64, column sums of Y
    energy: float  # ‖Y‖²


def sum_device(device: torch.device) -> torch.device:
    """Where float64 sums can be kept: the device itself, or the CPU if it has no float64."""
    return torch.device("cpu") if device.type == "mps" else device


def wide_sum(x: Tensor, dim: int | tuple[int, ...]) -> Tensor:
    """Sums in float64, on the CPU if the device has no float64."""
    if x.device.type == "mps":
        return x.sum(dim).cpu().double()
    return x.sum(dim, dtype=torch.float64)


def working(*tensors: Tensor) -> list[Tensor]:
    """The tensors in the precision to multiply them in: float64 if one of them is, else float32."""
    exact = any(tensor.dtype == torch.float64 for tensor in tensors)
    return [tensor.detach().to(torch.float64 if exact else torch.float32) for tensor in tensors]


def in_strips(rows: Tensor) -> bool:
    """Whether half of BᵀB is multiplied, strip by strip."""
    return rows.shape[1] > STRIP and rows.device.type == "cpu"


def column_sums(rows: Tensor) -> Tensor:
    """Sums of the columns of rows [n, d] in float64: [d]."""
    if rows.device.type != "cpu" or not len(rows):
        return wide_sum(rows, 0)
    # Sums across rows that convert on the way take several times as long as converting first.
    step = max(1, _CACHED // (8 * max(1, rows.shape[1])))
    return torch.stack([part.double().sum(0) for part in rows.split(step)]).sum(0)


def gram_of(rows: Tensor) -> Tensor:
    """BᵀB [d, d] of rows [n, d]; of a wide one, what lies below the diagonal is copied."""
    d = rows.shape[1]
    if not in_strips(rows):
        return crossed(rows, rows)
    gram = rows.new_empty(d, d)
    for i in range(0, d, STRIP):
        end = i + STRIP
        gram[i:end, i:] = crossed(rows[:, i:end], rows[:, i:])
        gram[end:, i:end] = gram[i:end, end:].T
    return gram


def in_range(products: Tensor) -> bool:
    """Whether sums of products in float32 are what they should be."""
    if not products.numel():
        return True
    return _LEAST < float(torch.linalg.vector_norm(products, math.inf)) < _MOST


def as_double(x: Tensor) -> Tensor:
    """The tensor in float64, where sums of its device are kept."""
    return x.to(sum_device(x.device), torch.float64)


def energy_of(targets: Tensor) -> float:
    """‖Y‖² of targets [n, m]."""
    # Of one row in the targets' own precision, of all rows in float64.
    energy = as_double(torch.linalg.vector_norm(targets, dim=1)).square().sum()
    if targets.dtype == torch.float64 or in_range(energy):
        return float(energy)
    return float(wide_sum(as_double(targets).square(), (0, 1)))


def symmetrise(gram: Tensor) -> None:
    """gram [d, d] ← (gram + gramᵀ) / 2, in place and in little memory."""
    step = max(1, MAX_BYTES // (8 * max(1, len(gram))))
    for i in range(0, len(gram), step):
        rows = gram[i : i + step, i:]
        mean = rows.add(gram[i:, i : i + step].T).div_(2)
        gram[i : i + step, i:] = mean
        gram[i:, i : i + step] = mean.T


def clipped(rows: Tensor, most: float | None) -> Tensor:
    """Rows [n, d] of which none has more than `most` times the median energy: longer ones are
    shortened.

    A few tokens of a language model can carry more energy than all others together.
    """
    if most is None or len(rows) < 2:
        return rows
    energies = rows.square().sum(1)  # [n]
    limit = most * energies.median()
    if float(limit) <= 0 or not bool((energies > limit).any()):
        return rows
    return rows * (limit / energies.clamp_min(limit)).sqrt()[:, None]
