"""The statistics ``G = BᵀB``, ``C = BᵀY``, ``t = ‖Y‖²`` of a layer that reads the units."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from subprune.errors import DataError

__all__ = ["RANK_TOLERANCE", "Statistics", "unit_count"]

RANK_TOLERANCE = 1e-10
"""The least relative rank tolerance, reached with float64 products; see
:attr:`Statistics.tolerance`.
"""


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """What one consumer says about its input columns; d columns, m outputs.

    Selection, reweighting, error curves and bounds need nothing else.
    """

    gram: Tensor  # [d, d] float64, BᵀB
    cross: Tensor  # [d, m] float64, BᵀY
    energy: float  # t = ‖Y‖²
    rows: int  # rows of B seen
    sums: Tensor  # [d] float64, column sums of B
    target_sums: Tensor  # [m] float64, column sums of Y
    units: Tensor  # [d] int64, unit of each column; -1: belongs to no unit, always kept
    precision: float = torch.finfo(torch.float64).eps  # machine epsilon the products were made with

    def __post_init__(self) -> None:
        d, m = self.cross.shape
        shapes = {"gram": (d, d), "sums": (d,), "target_sums": (m,), "units": (d,)}
        for name, shape in shapes.items():
            if tuple(getattr(self, name).shape) != shape:
                got = tuple(getattr(self, name).shape)
                raise DataError(
                    f"statistics: {name} has shape {got}, but cross [{d}, {m}] needs {shape}"
                )
        for name in ("gram", "cross", "sums", "target_sums"):
            if getattr(self, name).dtype != torch.float64:
                raise DataError(
                    f"statistics: {name} is {getattr(self, name).dtype}, must be float64"
                )
        if self.units.dtype != torch.int64 or (d and int(self.units.min()) < -1):
            raise DataError(
                "statistics: units must be int64 with values ≥ -1 (-1: belongs to no unit)"
            )

    @property
    def width(self) -> int:
        """Number of input columns, d."""
        return self.gram.shape[0]

    @property
    def outputs(self) -> int:
        """Number of outputs, m."""
        return self.cross.shape[1]

    @property
    def tolerance(self) -> float:
        """Share of its energy a column must add to others to count as independent of them.

        Products made in float32 leave noise of that size in ``gram``; a direction below it is
        noise, and weights fitted to it are large and wrong on new data.
        """
        return max(RANK_TOLERANCE, 4 * self.precision)

    def columns(self, kept: Iterable[int]) -> Tensor:
        """Indices [q] of the columns that stay when the units ``kept`` stay: theirs and the
        unit-less.
        """
        wanted = torch.tensor([-1, *(int(unit) for unit in kept)], device=self.units.device)
        return torch.isin(self.units, wanted).nonzero().flatten()

    def part(self, columns: Tensor) -> Statistics:
        """The same of some columns [q] only; the target stays."""
        if len(columns) == self.width:
            return self
        gram = self.gram.index_select(0, columns).index_select(1, columns)
        return replace(
            self,
            gram=gram,
            cross=self.cross[columns],
            sums=self.sums[columns],
            units=self.units[columns],
        )

    def without(self, gone: Tensor) -> Statistics:
        """The same with some columns (gone: [d] bool) all zero; the target stays."""
        on = (~gone).to(self.gram)
        gram, cross = self.gram * on * on[:, None], self.cross * on[:, None]
        return replace(self, gram=gram, cross=cross, sums=self.sums * on)

    def centred(self) -> Statistics:
        """The same of columns and targets less their means: with a constant column always kept.

        A column that is constant but for rounding becomes zero.
        """
        mean = self.sums / self.rows
        gram = torch.addr(self.gram, self.sums, mean, alpha=-1)
        noise = self.tolerance * self.gram.diagonal()
        flat = gram.diagonal() <= noise
        cross = torch.addr(self.cross, mean, self.target_sums, alpha=-1)
        energy = max(0.0, self.energy - float(self.target_sums.square().sum()) / self.rows)
        zero = torch.zeros_like
        centred = replace(
            self,
            gram=gram,
            cross=cross,
            energy=energy,
            sums=zero(self.sums),
            target_sums=zero(self.target_sums),
        )
        return centred.without(flat) if bool(flat.any()) else centred

    def check_finite(self, where: str) -> None:
        """Raise a DataError naming ``where`` if a statistic is not finite."""
        # |G_ij|² ≤ G_ii·G_jj
        parts = (self.gram.diagonal(), self.cross, self.sums, self.target_sums)
        if not all(bool(torch.isfinite(part).all()) for part in parts) or not abs(
            self.energy
        ) < float("inf"):
            raise DataError(
                f"{where}: the statistics overflowed: activations are too large to be multiplied "
                "in their own precision; run the calibration in float64, or check the model"
            )


def unit_count(stats: Sequence[Statistics]) -> int:
    """One more than the largest unit number in any of the statistics."""
    return max((int(s.units.max()) + 1 for s in stats if s.width), default=0)
