"""Least squares on the kept columns, from statistics alone. Knows nothing of networks."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from subprune.statistics.statistics import Statistics

__all__ = ["Factors", "Solution", "energy_change", "relative_error", "solve", "unfitted"]


@dataclass(frozen=True, kw_only=True)
class Solution:
    """New weights and how they were found."""

    weight: Tensor  # [d, m] float64, zero rows for dropped columns
    shift: Tensor | None  # [m] float64, to be added to the consumer's bias; None without intercept
    error: float  # ‖Y − B·weight − 1·shiftᵀ‖² / ‖Y‖², 0 if Y is 0
    columns: int  # kept columns (and the constant one with an intercept)
    rank: int  # numerically independent ones among them
    condition: float  # condition estimate of what was factored, at unit diagonal
    # "cholesky"; "shifted" or, with a ridge, "damped" where columns depend on each other; "none"
    # where the weights stayed
    solver: str


def solve(
    stats: Statistics,
    kept: Iterable[int],
    *,
    intercept: bool = False,
    tolerance: float | None = None,
    ridge: float = 0.0,
    toward: Tensor | None = None,
    ranked: bool = True,
    measured: bool = True,
    factors: Factors | None = None,
) -> Solution:
    """Weights [d, m] for the columns of the units ``kept`` and the columns without a unit.

    They minimise ``‖Y − B_S X‖²``; with ``intercept`` a constant column joins in, whose weights are
    the shift of the bias. A `ridge` adds ``ridge · ḡ · ‖X − toward‖²``, with ḡ the mean of the kept
    columns' G_jj: it draws the weights of the columns, not of the constant, to `toward` [d, m], and
    those of columns about which the data says little most of all; the error is reported without it.
    An infinite one leaves them at `toward`, and fits the constant alone.
    ranked: whether the rank is wanted, which takes time; else it is that of independent columns.
    measured: whether the error is; else it is nan, and independent columns are solved for without a
    step of refinement, which changes their weights by rounding alone. factors: of the same columns,
    by ridge, where they are solved for other targets too; what is missing is added.
    """
    columns = stats.columns(kept)  # [q]
    if math.isinf(ridge):
        return _constant_alone(stats, columns, toward, intercept, measured)
    gram, cross = _part(stats.gram, columns), stats.cross[columns]
    pull = ridge * gram.diagonal().clamp_min(0).mean().expand(len(gram))  # [q], on each column
    if intercept:
        # A constant column of ones: its products with the others are their sums, with itself the
        # number of rows, and with Y the sums of Y.
        sums = stats.sums[columns]
        count = torch.full((1,), float(stats.rows), dtype=gram.dtype, device=gram.device)
        gram = torch.cat([torch.cat([gram, sums[:, None]], 1), torch.cat([sums, count])[None]])
        cross = torch.cat([cross, stats.target_sums[None]])
    system, wanted = _with_ridge(gram, cross, pull, None if toward is None else toward[columns])
    known = {} if factors is None else factors
    key = (ridge, intercept)
    if key not in known:
        noise = stats.tolerance if tolerance is None else tolerance
        known[key] = _Factor(system, noise, damped=ridge > 0, ranked=ranked)
    factor = known[key]
    solution = factor.solve(wanted)  # [q (+1), m]
    if measured or factor.solver != "cholesky":  # one step of refinement
        solution += factor.solve(wanted - system @ solution)
    # ‖Y − BX‖² = t + tr Xᵀ(GX − 2C), without the ridge
    error = float("nan")
    if measured:
        residual_energy = stats.energy + float((solution * (gram @ solution - 2 * cross)).sum())
        error = max(0.0, residual_energy) / stats.energy if stats.energy else 0.0
    new = torch.zeros_like(stats.cross)
    new[columns] = solution[: len(columns)]
    shift = solution[-1] if intercept else None
    return Solution(
        weight=new,
        shift=shift,
        error=error,
        columns=len(gram),
        rank=factor.rank,
        condition=factor.condition,
        solver=factor.solver,
    )


Factors = dict[tuple[float, bool], "_Factor"]
"""What solves for some columns, by the strength of the ridge, and whether a constant joins in."""


def _constant_alone(
    stats: Statistics, columns: Tensor, toward: Tensor | None, intercept: bool, measured: bool
) -> Solution:
    """The weights `toward` [d, m] on the columns [q]; the constant makes up for the means."""
    weight = torch.zeros_like(stats.cross)
    if toward is not None:
        weight[columns] = toward.detach().to(weight)[columns]
    missing = stats.target_sums - weight.T @ stats.sums  # [m]
    shift = missing / max(1, stats.rows) if intercept else None
    error = relative_error(stats, weight, shift) if measured else float("nan")
    fitted = int(intercept)  # columns that something was fitted to: the constant one
    return Solution(
        weight=weight,
        shift=shift,
        error=error,
        columns=fitted,
        rank=fitted,
        condition=1.0,
        solver="none",
    )


def unfitted(stats: Statistics, kept: Iterable[int], weight: Tensor) -> Tensor:
    """Given weights [d, m] on the kept columns, and zero elsewhere: [d, m] float64."""
    columns = stats.columns(kept)
    new = torch.zeros_like(stats.cross)
    new[columns] = weight.detach().to(new)[columns]
    return new


def _with_ridge(
    gram: Tensor, cross: Tensor, pull: Tensor, toward: Tensor | None
) -> tuple[Tensor, Tensor]:
    """G + diag(pull) and C + diag(pull)·toward; a constant column, the last,
    is not drawn anywhere.
    """
    if not bool(pull.any()):
        return gram, cross
    system, wanted, q = gram.clone(), cross.clone(), len(pull)
    system.diagonal()[:q] += pull
    if toward is not None:
        wanted[:q] += pull[:, None] * toward.detach().to(wanted)
    return system, wanted


def _part(gram: Tensor, columns: Tensor) -> Tensor:
    """Rows and columns of a matrix; itself, not a copy, if that is all of it."""
    return (
        gram
        if len(columns) == len(gram)
        else gram.index_select(0, columns).index_select(1, columns)
    )


class _Factor:
    """What solves G·X = C, for G [q, q] at unit diagonal.

    Cholesky's factor if all columns are independent. Otherwise ``Re (G + iμ)⁻¹ = G·(G² + μ²)⁻¹``
    with μ, the tolerance times the largest eigenvalue: directions well above μ are solved for,
    those below are noise and get next to no weight. That is close to the minimum-norm solution,
    without the cost of eigenvectors. Where a ridge draws the solution somewhere anyway (`damped`),
    Cholesky's factor of G + μ is enough, at a tenth of the cost: with the step of refinement that
    follows, what it leaves of a direction above μ is again of second order.
    """

    def __init__(self, gram: Tensor, tolerance: float, damped: bool, ranked: bool) -> None:
        diagonal = gram.diagonal()
        # [q, 1], to unit diagonal
        self.scale = torch.where(diagonal > 0, diagonal.clamp_min(0).rsqrt(), 0.0)[:, None]
        dead = diagonal <= 0  # all-zero columns: they get zero
        scaled = gram * self.scale * self.scale.T
        scaled.diagonal()[dead] = 1.0
        self.lower, info = torch.linalg.cholesky_ex(scaled)
        self.shifted: tuple[Tensor, Tensor] | None = None
        pivots = self.lower.diagonal()
        if not len(gram) or (int(info) == 0 and float(pivots.min()) ** 2 > tolerance):
            self.rank, self.solver = len(gram) - int(dead.sum()), "cholesky"
            self.condition = float((pivots.max() / pivots.min()) ** 2) if len(gram) else 1.0
            return
        del self.lower, pivots  # these matrices are large: no more of them at once than needed
        shift = tolerance * _largest(scaled)  # μ
        self.rank, self.condition = len(gram) - int(dead.sum()), 1 / tolerance
        if ranked:
            # Eigenvalues above μ are those of G − μ above 0. In place, and back again.
            scaled.diagonal().sub_(shift)
            self.rank = _positive(scaled) - int(dead.sum())
            scaled.diagonal().add_(shift)
        if damped:
            self.solver = "damped"
            scaled.diagonal().add_(shift)
            self.lower, info = torch.linalg.cholesky_ex(scaled)
            if int(info) == 0:
                return
            scaled.diagonal().sub_(shift)
            del self.lower
        self.solver = "shifted"
        moved = scaled.to(torch.complex128)
        del scaled
        moved.diagonal().add_(1j * shift)
        self.shifted = torch.linalg.lu_factor(moved)

    @property
    def bytes(self) -> int:
        """Memory that it holds."""
        return self.lower.nbytes if self.shifted is None else self.shifted[0].nbytes

    def solve(self, cross: Tensor) -> Tensor:
        """X [q, m] for C [q, m]."""
        scaled = cross * self.scale
        if self.shifted is None:
            return torch.cholesky_solve(scaled, self.lower) * self.scale
        right_side = torch.complex(scaled, torch.zeros_like(scaled))
        return torch.linalg.lu_solve(*self.shifted, right_side).real * self.scale


def _positive(matrix: Tensor) -> int:
    """How many eigenvalues of a symmetric matrix are positive, by the signs in its LDLᵀ factors
    (Sylvester).
    """
    factors, pivots = torch.linalg.ldl_factor(matrix)
    single = pivots > 0  # the others come in pairs: blocks with one eigenvalue of each sign
    return int((factors.diagonal()[single] > 0).sum()) + int((~single).sum()) // 2


def _largest(matrix: Tensor) -> float:
    """The largest eigenvalue of a positive semidefinite matrix, to a few per cent."""
    lengths = matrix.norm(dim=0)  # [q], none of which is larger than that eigenvalue
    value = _iterated(matrix, matrix.new_ones(len(matrix), 1))
    if value >= float(lengths.max()):
        return value
    # Ones are orthogonal to what is sought, as with two columns that are each other's negatives
    # (then this is nan). From a column of the matrix, the iteration never falls.
    return _iterated(matrix, matrix[:, [int(lengths.argmax())]])


def _iterated(matrix: Tensor, x: Tensor) -> float:
    """What power iteration from x [q, 1] finds."""
    for _ in range(12):
        x = matrix @ (x / x.norm())
    return float(x.norm())


def relative_error(stats: Statistics, weight: Tensor, shift: Tensor | None = None) -> float:
    """‖Y − B·weight − 1·shiftᵀ‖² / ‖Y‖² from the statistics, in [0, ∞).

    weight: [d, m]; shift: [m], None for none.
    """
    if stats.energy == 0:
        return 0.0
    return max(0.0, stats.energy + energy_change(stats, weight, shift)) / stats.energy


def energy_change(stats: Statistics, weight: Tensor, shift: Tensor | None = None) -> float:
    """‖Y − B·weight − 1·shiftᵀ‖² − ‖Y‖²: below zero, if the fit is better than none."""
    change = float((weight * (stats.gram @ weight - 2 * stats.cross)).sum())
    if shift is not None:
        # The constant column's own part: 2·sᵀ(Wᵀ·Bᵀ1 − Yᵀ1) + n·‖s‖².
        sums = weight.T @ stats.sums - stats.target_sums  # [m]
        change += float(shift @ (2 * sums + stats.rows * shift))
    return change
