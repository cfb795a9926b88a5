"""New weights of a consumer once the kept units are known: least squares on the kept columns."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from subprune.errors import OptionError, closest
from subprune.objective import whitening
from subprune.statistics import Statistics

__all__ = ["METHODS", "Reweighting", "solve"]

METHODS = ("least-squares", "none")


@dataclass(frozen=True)
class Reweighting:
    """New weights and how they were found."""

    weight: Tensor  # [d, m] float64, zero rows for dropped columns
    shift: Tensor | None  # [m] float64, to be added to the consumer's bias; None without intercept
    error: float  # ‖Y − B·weight − 1·shiftᵀ‖² / ‖Y‖², 0 if Y is 0
    columns: int  # kept columns (and the constant one with an intercept)
    rank: int  # numerically independent ones among them
    condition: float  # condition estimate of their Gram matrix at unit diagonal
    solver: str  # "cholesky", "eigh" (rank-deficient: minimum norm) or "none"


def solve(
    stats: Statistics,
    kept: Iterable[int],
    *,
    method: str = "least-squares",
    intercept: bool = False,
    weight: Tensor | None = None,
    tolerance: float | None = None,
) -> Reweighting:
    """Weights [d, m] for the columns of the units ``kept`` and the columns without a unit.

    "least-squares" minimises ``‖Y − B_S X‖²``; with ``intercept`` a constant column joins in, whose
    weights are the shift of the bias. "none" keeps the given ``weight`` [d, m] on the kept columns.
    """
    if method not in METHODS:
        raise OptionError(f"reweighting {method!r}: {closest(method, METHODS)}allowed are {METHODS}")
    columns = stats.columns(kept)
    if method == "none":
        if weight is None or weight.shape != stats.cross.shape or intercept:
            raise OptionError(
                f"reweighting 'none' needs the present weight {tuple(stats.cross.shape)} and no intercept"
            )
        new = torch.zeros_like(stats.cross)
        new[columns] = weight.detach().to(new)[columns]
        return Reweighting(new, None, _error(stats, new, None), len(columns), 0, float("nan"), "none")
    gram, cross = stats.gram[columns][:, columns], stats.cross[columns]
    if intercept:
        sums = stats.sums[columns]
        count = torch.full((1,), float(stats.rows), dtype=gram.dtype, device=gram.device)
        gram = torch.cat([torch.cat([gram, sums[:, None]], 1), torch.cat([sums, count])[None]])
        cross = torch.cat([cross, stats.target_sums[None]])
    factor = whitening(gram, stats.tolerance if tolerance is None else tolerance)
    solution = factor.matrix @ (factor.matrix.T @ cross)  # [q (+1), m]
    solution += factor.matrix @ (factor.matrix.T @ (cross - gram @ solution))  # one step of refinement
    new = torch.zeros_like(stats.cross)
    new[columns] = solution[: len(columns)]
    shift = solution[-1] if intercept else None
    error = _error(stats, new, shift)
    return Reweighting(new, shift, error, len(gram), factor.rank, factor.condition, factor.solver)


def _error(stats: Statistics, weight: Tensor, shift: Tensor | None) -> float:
    """‖Y − B·weight − 1·shiftᵀ‖² / ‖Y‖² from the statistics, in [0, ∞)."""
    if stats.energy == 0:
        return 0.0
    total = stats.energy + float((weight * (stats.gram @ weight - 2 * stats.cross)).sum())
    if shift is not None:
        total += float(shift @ (stats.rows * shift + 2 * (weight.T @ stats.sums - stats.target_sums)))
    return max(0.0, total) / stats.energy
