"""The set functions of the paper on statistics, evaluated from scratch.

``F(S) = ‖Y‖² − min_X ‖Y − B_S X‖²`` for the columns of the units S, summed over the consumers. With
``Y = B·W`` this is the symmetric form, with ``Y = A·W`` the asymmetric one; statistics do not tell
them apart. This is the slow, clear version for checks and reports; :mod:`subprune.select.greedy` is
the fast one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from subprune.statistics.statistics import RANK_TOLERANCE, Statistics

__all__ = ["Whitening", "gain", "residual", "value", "whitening"]


@dataclass(frozen=True)
class Whitening:
    """T [q, rank] with ``TᵀGT = 1``: ``T·Tᵀ`` is an inverse of G on the space its columns span."""

    matrix: Tensor  # [q, rank] float64
    rank: int
    # of G with unit diagonal; estimated from the factor, exact if solver is "eigh"
    condition: float
    solver: str  # "cholesky", or "eigh" where columns depend on each other


def whitening(gram: Tensor, tolerance: float = RANK_TOLERANCE) -> Whitening:
    """Factor a positive semidefinite G [q, q], columns of any scale, any rank.

    G is first scaled to a unit diagonal, so that the tolerance is relative to every column's own
    energy. If Cholesky finds every column independent its factor is used; otherwise eigenvectors
    with eigenvalue above ``tolerance`` times the largest one, which gives minimum-norm solutions in
    the scaled columns. All-zero columns get zero.
    """
    diagonal = gram.diagonal()
    scale = torch.where(diagonal > 0, diagonal.clamp_min(0).rsqrt(), 0.0)  # [q]
    live = (scale > 0).nonzero().flatten()
    scaled = scale[live, None] * gram[live][:, live] * scale[live]
    matrix = gram.new_zeros(gram.shape[0], len(live))
    lower, info = torch.linalg.cholesky_ex(scaled)
    pivots = lower.diagonal()
    if len(live) == 0 or (int(info) == 0 and float(pivots.min()) ** 2 > tolerance):
        eye = torch.eye(len(live), dtype=gram.dtype, device=gram.device)
        inverse = torch.linalg.solve_triangular(lower, eye, upper=False).T
        matrix[live] = scale[live, None] * inverse
        condition = float((pivots.max() / pivots.min()) ** 2) if len(live) else 1.0
        return Whitening(matrix, len(live), condition, "cholesky")
    values, vectors = torch.linalg.eigh(scaled)  # ascending
    good = values > tolerance * values[-1]
    matrix[live] = scale[live, None] * vectors
    condition = float(values[-1] / values[good][0])
    return Whitening(matrix[:, good] * values[good].rsqrt(), int(good.sum()), condition, "eigh")


def value(
    stats: Sequence[Statistics], kept: Iterable[int], tolerance: float | None = None
) -> float:
    """F(S) for the units ``kept``, summed over the consumers; unit-less columns always take part.

    The tolerance is that of the statistics unless given.
    """
    kept, total = list(kept), 0.0
    for s in stats:
        columns = s.columns(kept)
        factor = whitening(
            s.gram[columns][:, columns], s.tolerance if tolerance is None else tolerance
        )
        total += float((factor.matrix.T @ s.cross[columns]).square().sum())
    return total


def gain(
    stats: Sequence[Statistics], unit: int, given: Iterable[int], tolerance: float | None = None
) -> float:
    """F(unit | given) = F(given ∪ {unit}) − F(given)."""
    given = list(given)
    return value(stats, [*given, unit], tolerance) - value(stats, given, tolerance)


def residual(
    stats: Sequence[Statistics], kept: Iterable[int], tolerance: float | None = None
) -> float:
    """min_X ‖Y − B_S X‖² = t − F(S), not below zero, summed over the consumers."""
    return max(0.0, sum(s.energy for s in stats) - value(stats, kept, tolerance))
