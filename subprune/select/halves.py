"""Symmetric matrices of which the upper half is up to date, and small ones of any rank."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = [
    "Moves",
    "Whitening",
    "add_upper",
    "closing_moves",
    "deficient_gains",
    "diagonal_blocks",
    "full_rows",
    "whitener",
    "whitening",
]

_STRIP = 512  # rows updated at a time, from the diagonal on


@dataclass(frozen=True)
class Moves:
    """Units at the end take the places of those that go; n units remain."""

    n: int
    holes: Tensor  # [q], ascending, below n
    sources: Tensor  # [q], n or more

    def _spread(self, units: Tensor, r: int, like: Tensor) -> Tensor:
        """The columns of units, r each: [q·r]."""
        return (units[:, None] * r + torch.arange(r)).flatten().to(like.device)

    def rows(self, matrix: Tensor, r: int) -> Tensor:
        """Of a matrix with r rows for each unit, those that remain; in place."""
        if len(self.holes):
            holes, sources = (self._spread(u, r, matrix) for u in (self.holes, self.sources))
            matrix[holes] = matrix[sources]
        return matrix[: self.n * r]

    def columns(self, matrix: Tensor, r: int) -> Tensor:
        """The same for columns, as a copy if any is moved."""
        if not len(self.holes):
            return matrix[:, : self.n * r]
        index = torch.arange(self.n)
        index[self.holes] = self.sources
        return matrix.index_select(1, self._spread(index, r, matrix))

    def upper(self, matrix: Tensor, r: int) -> Tensor:
        """The same for the rows and columns of a symmetric matrix [n·r, n·r] of which the upper
        half is up to date; in place.
        """
        size = self.n * r
        if len(self.holes):
            holes = self._spread(self.holes, r, matrix)
            sources = self._spread(self.sources, r, matrix) - size
            # The units that move: how they meet each other is in the corner past the rest, how they
            # meet those that stay is above it.
            corner = matrix[size:, size:].triu()
            corner = corner + corner.triu(1).T
            rows = matrix[:size, size:].index_select(1, sources).T.contiguous()  # [q·r, n·r]
            rows[:, holes] = corner[sources][:, sources]
            matrix[:size, :size].index_copy_(0, holes, rows)
            matrix[:size, :size].index_copy_(1, holes, rows.T)
        return matrix[:size, :size]


def closing_moves(n: int, gone: list[int]) -> Moves:
    """How to close the gaps that units leave; gone: their places among n."""
    there = torch.ones(n, dtype=torch.bool)
    there[gone] = False
    remaining = int(there.sum())
    holes = (~there[:remaining]).nonzero().flatten()
    return Moves(remaining, holes, there[remaining:].nonzero().flatten() + remaining)


def diagonal_blocks(matrix: Tensor, r: int) -> Tensor:
    """Copy of the r × r blocks on the diagonal of a matrix [n·r, n·r]: [n, r, r]."""
    n = len(matrix) // r
    # dimensions 0 and 2 are the unit, 1 and 3 its columns
    return matrix.view(n, r, n, r).diagonal(dim1=0, dim2=2).permute(2, 0, 1).clone()


def full_rows(upper: Tensor, span: slice) -> Tensor:
    """Copy of rows [q, d] of a symmetric matrix of which only the upper half is up to date."""
    return torch.cat([upper[: span.start, span].T, upper[span, span.start :]], 1)


def add_upper(matrix: Tensor, a: Tensor, b: Tensor, factor: float, align: int = 1) -> None:
    """matrix [d, d] += factor · aᵀb for a, b [p, d], on and above the diagonal (whole blocks of
    `align`).
    """
    step = max(1, _STRIP // align) * align
    for i in range(0, len(matrix), step):
        matrix[i : i + step, i:].addmm_(a[:, i : i + step].T, b[:, i:], alpha=factor)


def whitener(block: Tensor, tolerance: float) -> Tensor:
    """T [r, rank] with TᵀGT = 1 on the numerically independent columns of G [r, r], scaled to unit
    original diagonal. Dependent columns, found by pivoting, have zero rows in T."""
    if len(block) == 1:
        return block.rsqrt() if float(block) > tolerance else block[:, :0]
    lower, info = torch.linalg.cholesky_ex(block)
    chosen = torch.arange(len(block), device=block.device)
    if int(info) or not float(lower.diagonal().square().min()) > tolerance:
        chosen = _pivots(block, tolerance)
        lower, info = torch.linalg.cholesky_ex(block[chosen][:, chosen])
        # only with a tolerance near the machine's own: keep the pivots before the failure
        if int(info):
            chosen, lower = chosen[: int(info) - 1], lower[: int(info) - 1, : int(info) - 1]
    root = block.new_zeros(len(block), len(chosen))
    eye = torch.eye(len(chosen), dtype=block.dtype, device=block.device)
    root[chosen] = torch.linalg.solve_triangular(lower, eye, upper=False).T
    return root


def _pivots(block: Tensor, tolerance: float) -> Tensor:
    """Columns [rank] of G [r, r] in the order of pivoted Cholesky, while a pivot exceeds the
    tolerance.
    """
    work, chosen = block.clone(), []
    for _ in range(len(block)):
        pivot = int(work.diagonal().argmax())
        if not float(work[pivot, pivot]) > tolerance:
            break
        chosen.append(pivot)
        work -= work[:, pivot, None] * (work[pivot] / work[pivot, pivot])
        work[pivot], work[:, pivot] = 0.0, 0.0  # exactly, so that it is not picked again
    return torch.tensor(chosen, dtype=torch.int64, device=block.device)


def deficient_gains(g: Tensor, h: Tensor, tolerance: float) -> Tensor:
    """tr(G_i⁺ H_i) for G, H [n, r, r] of any rank: pivoted elimination of all n at once → [n]."""
    g, h = g.clone(), h.clone()
    each = torch.arange(len(g), device=g.device)
    total = g.new_zeros(len(g))
    for _ in range(g.shape[1]):
        energy, pivot = g.diagonal(dim1=1, dim2=2).max(1)  # [n], [n]
        live = energy > tolerance
        if not bool(live.any()):
            break
        safe = torch.where(live, energy, 1.0)
        column = g[each, :, pivot] * live[:, None]  # [n, r]; zero where nothing remains
        share = column / safe[:, None]  # [n, r], coefficients of the pivot in the other columns
        products = h[each, :, pivot]  # [n, r]
        peak = products[each, pivot]  # [n]
        total += torch.where(live, peak / safe, 0.0).clamp_min(0)
        # With s the shares: G ← G − s·columnᵀ, and C ← C − s·c_pivotᵀ in H = C·Cᵀ.
        g -= share[:, :, None] * column[:, None, :]
        mixed = share[:, :, None] * (products - share * peak[:, None] / 2)[:, None, :]
        h -= mixed + mixed.mT
        g[each, :, pivot] = torch.where(live[:, None], 0.0, g[each, :, pivot])
        g[each, pivot, :] = torch.where(live[:, None], 0.0, g[each, pivot, :])
    return total


@dataclass(frozen=True)
class Whitening:
    """T [q, rank] with ``TᵀGT = 1``: ``T·Tᵀ`` is an inverse of G on the space its columns span."""

    matrix: Tensor  # [q, rank] float64
    rank: int
    # of G with unit diagonal; estimated from the factor, exact if solver is "eigh"
    condition: float
    solver: str  # "cholesky", or "eigh" where columns depend on each other


def whitening(gram: Tensor, tolerance: float) -> Whitening:
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
    good = values > tolerance * values[-1]  # directions that hold more than rounding
    matrix[live] = scale[live, None] * vectors
    condition = float(values[-1] / values[good][0])
    return Whitening(matrix[:, good] * values[good].rsqrt(), int(good.sum()), condition, "eigh")
