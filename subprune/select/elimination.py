"""Residual statistics while units are added one by one: the numerical heart of greedy selection.

Adding a unit is one block step of Cholesky on ``G`` and the same elimination on ``C``. Memory
traffic is what costs, so no large matrix is touched in a step. A panel collects factors ``L`` and
``Z`` of the picks since the last flush: the residual is ``G − LᵀL`` and ``C − LᵀZ``. A step
computes only the pivot's own rows of it and updates every unit's r × r diagonal blocks of ``G`` and
of ``H = C·Cᵀ``, which is all that gains need: ``tr(C_iᵀ G_ii⁻¹ C_i) = tr(G_ii⁻¹ H_ii)``. When the
panel is full, one matrix product updates what is left of ``G`` and ``C``, and the diagonal blocks
are read from them afresh, so that the rounding of ``H``, which squares ``C``, cannot build up.

The blocks of ``H`` change by products of all rows of ``C`` with the new rows of ``Z``. Where ``C``
is small that is one product; where reading all of ``C`` at every step would dominate (single
columns, many outputs), ``H`` is kept whole like ``G``, so that a step reads one row of it and the
panel. ``G`` and ``H`` are symmetric: only their upper halves are kept up to date.

All columns are scaled to unit energy first, which makes every tolerance relative to a column's own
original diagonal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from subprune.select.objective import whitening

if TYPE_CHECKING:
    from subprune.statistics.statistics import Statistics

__all__ = ["Elimination", "without_fixed"]

_PANEL = 128  # columns collected before G and C are updated
_STRIP = 1024  # rows of G updated at a time, from the diagonal on
_LARGE = 4 * 2**20  # bytes of C that are not read again at every step if H can be kept instead
_FADED = 1e-4  # share of its first trace at which H is recomputed from C, before rounding shows


class Elimination:
    """The statistics of several consumers, given the units added so far."""

    def __init__(self, stats: Sequence[Statistics], n_units: int, tolerance: float | None) -> None:
        self.n_units = n_units
        self.energy = float(sum(s.energy for s in stats))
        self.blocks: list[_Block] = []
        self.fixed_gain = 0.0  # what the columns without a unit, always kept, explain
        for s in stats:
            threshold = s.tolerance if tolerance is None else tolerance
            gram, cross, units, gain = without_fixed(s, threshold)
            self.fixed_gain += gain
            if len(units):
                self.blocks.append(_Block(gram, cross, units, n_units, threshold))

    def gains(self) -> Tensor:
        """F(i | S) for every unit i: [n_units] float64 on the CPU; about 0 for the units in S."""
        total = torch.zeros(self.n_units, dtype=torch.float64)
        for block in self.blocks:
            total[block.ids] += block.gains().cpu()
        return total

    def exact_gain(self, unit: int) -> float:
        """F(unit | S) from the unit's own rows of C, free of the rounding in H."""
        return float(sum(float(block.factor(unit)[1].square().sum()) for block in self.blocks))

    def add(self, unit: int) -> tuple[float, int]:
        """Add a unit to S; returns its gain and how many independent columns it brought."""
        results = [block.add(unit) for block in self.blocks]
        return sum(gain for gain, _ in results), sum(rank for _, rank in results)


def without_fixed(s: Statistics, tolerance: float) -> tuple[Tensor, Tensor, Tensor, float]:
    """Scale all columns to unit energy and eliminate those without a unit.

    Returns G [d', d'], C [d', m'] and units [d'] of the remaining columns, and the energy that the
    eliminated ones explain. m' is at most d'.
    """
    diagonal = s.gram.diagonal()
    # Columns that are zero keep the scale 0: they stay zero and never gain anything.
    scale = torch.where(diagonal > 0, diagonal.clamp_min(0).rsqrt(), 0.0)
    free = (s.units >= 0).nonzero().flatten()
    fixed = (s.units < 0).nonzero().flatten()
    free_gram = (
        s.gram if len(free) == s.width else s.gram.index_select(0, free).index_select(1, free)
    )
    gram = (free_gram * scale[free]).mul_(scale[free, None])
    cross = s.cross[free] * scale[free, None]
    gain = 0.0
    if len(fixed):
        # One block step: with T whitening the fixed columns, L = TᵀG_fixed,free and Z = TᵀC_fixed,
        # and what remains is G − LᵀL and C − LᵀZ.
        root = whitening(s.gram[fixed][:, fixed], tolerance).matrix  # [f, rank]
        left = root.T @ (s.gram[fixed][:, free] * scale[free])  # [rank, d']
        right = root.T @ s.cross[fixed]  # [rank, m]
        gram.addmm_(left.T, left, alpha=-1)
        cross.addmm_(left.T, right, alpha=-1)
        gain = float(right.square().sum())
    if cross.shape[1] > cross.shape[0]:  # gains only see C·Cᵀ: turn C into a square matrix
        cross = torch.linalg.qr(cross.T, mode="r").R.T.contiguous()
    return gram, cross, s.units[free], gain


class _Block:
    """One consumer. Every unit present owns r rows, zero-padded where it has fewer columns.

    gram [n·r, n·r], cross [n·r, m]: residuals at the last flush, for the n units not picked by
    then; left [panel, n·r], right [panel, m]: factors L, Z since; diag_g, diag_h [n, r, r]: current
    blocks.
    """

    def __init__(
        self, gram: Tensor, cross: Tensor, units: Tensor, n_units: int, tolerance: float
    ) -> None:
        self.ids, counts = units.unique(return_counts=True)  # [n], ascending
        self.r, self.tolerance = int(counts.max()), tolerance
        n, r = len(self.ids), self.r
        order = units.argsort(stable=True)  # columns unit by unit
        if bool((counts == r).all()):
            ordered = torch.equal(order, torch.arange(len(order), device=order.device))
            self.gram = gram if ordered else gram[order][:, order]
            self.cross = cross if ordered else cross[order]
        else:
            owner = torch.repeat_interleave(counts)  # [d], number of each column's unit
            first = counts.cumsum(0) - counts  # [n], first column of each unit
            within = torch.arange(len(order), device=order.device) - first[owner]
            slots = owner * r + within  # [d], where each column goes among the padded ones
            self.gram = gram.new_zeros(n * r, n * r)
            self.gram[slots[:, None], slots] = gram[order][:, order]
            self.cross = cross.new_zeros(n * r, cross.shape[1])
            self.cross[slots] = cross[order]
        self.alive = torch.ones(n, dtype=torch.bool)
        self.ids = self.ids.cpu()
        self.place = torch.full((n_units,), -1, dtype=torch.int64)
        # C has n·r·m numbers and H (n·r)²: it is kept whole only where it is not much larger.
        keep_whole = self.cross.nbytes > _LARGE and 8 * self.cross.shape[1] >= r * len(self.cross)
        # [n·r, n·r], H at the last flush
        self.whole: Tensor | None = torch.empty_like(self.gram) if keep_whole else None
        self.first_trace = 0.0
        self._new_panel()

    def _new_panel(self) -> None:
        """Start an empty panel on the present gram and cross."""
        n, r = len(self.ids), self.r
        self.place.fill_(-1)
        self.place[self.ids] = torch.arange(n)
        self.left = self.gram.new_empty(max(_PANEL, 2 * r), n * r)
        self.right = self.gram.new_empty(max(_PANEL, 2 * r), self.cross.shape[1])
        self.used = 0
        # The last unit factored: (unit, T, rows of L, rows of Z). A unit is often asked for its
        # exact gain just before it is added.
        self.factored: tuple[int, Tensor, Tensor, Tensor] | None = None
        # The r × r blocks on the diagonal: dimensions 0 and 2 are the unit, 1 and 3 its columns.
        self.diag_g = self.gram.view(n, r, n, r).diagonal(dim1=0, dim2=2).permute(2, 0, 1).clone()
        rows = self.cross.view(n, r, self.cross.shape[1])
        self.diag_h = rows.square().sum(2, keepdim=True) if r == 1 else rows @ rows.mT
        if self.whole is not None:
            # [panel, n·r], products of Z with the rows of C
            self.dots = torch.empty_like(self.left)
            # H loses its trace as picks explain Y; once little of it is left, the rounding of the
            # first, large H would show.
            trace = float(self.diag_h.diagonal(dim1=1, dim2=2).sum())
            if trace < _FADED * self.first_trace or self.first_trace == 0:
                self.first_trace = trace
                _add_upper(self.whole.zero_(), self.cross.T, self.cross.T, 1.0)

    def gains(self) -> Tensor:
        """tr(G_ii⁺ H_ii) of every unit present: [n]."""
        g, h, tolerance = self.diag_g, self.diag_h, self.tolerance
        if self.r == 1:
            return torch.where(g > tolerance, h / g, 0.0).flatten().clamp_min(0)
        gains = g.new_zeros(len(g))
        # Three kinds of unit: nothing of it remains; all its columns are independent (Cholesky);
        # some depend on each other (pivoting).
        some = (g.diagonal(dim1=1, dim2=2) > tolerance).any(1).nonzero().flatten()
        lower, info = torch.linalg.cholesky_ex(g[some])
        good = (info == 0) & (lower.diagonal(dim1=1, dim2=2).square().amin(1) > tolerance)
        inverse = torch.cholesky_inverse(lower[good])
        gains[some[good]] = (inverse * h[some[good]]).sum((1, 2))
        bad = some[~good]
        if len(bad):
            gains[bad] = _deficient_gains(g[bad], h[bad], tolerance)
        return gains.clamp_min(0)

    def factor(self, unit: int) -> tuple[Tensor, Tensor]:
        """Factors of a unit given the picks: rows of L [rank, n·r] and of Z [rank, m]."""
        place = int(self.place[unit]) if unit < len(self.place) else -1
        if place < 0:
            return self.left[:0], self.right[:0]
        if self.factored is None or self.factored[0] != unit:
            rows_of_unit = slice(place * self.r, (place + 1) * self.r)
            left, right = self.left[: self.used], self.right[: self.used]
            # The unit's rows of the residual G − LᵀL and C − LᵀZ, then whitened by T.
            rows = _rows(self.gram, rows_of_unit).addmm_(
                left[:, rows_of_unit].T, left, alpha=-1
            )  # [r, n·r]
            targets = torch.addmm(
                self.cross[rows_of_unit], left[:, rows_of_unit].T, right, alpha=-1
            )  # [r, m]
            root = _root(rows[:, rows_of_unit], self.tolerance)  # [r, rank]
            self.factored = unit, root, root.T @ rows, root.T @ targets
        return self.factored[2], self.factored[3]

    def add(self, unit: int) -> tuple[float, int]:
        """Eliminate a unit's columns; returns (gain, rank)."""
        left, right = self.factor(unit)
        place, rank = int(self.place[unit]), len(left)
        if place >= 0:
            self.alive[place] = False
        if rank:
            self._update_diagonals(left, right, self._dots(place, right))
            self.left[self.used : self.used + rank] = left
            self.right[self.used : self.used + rank] = right
            self.used += rank
            self.factored = None
            if self.used + self.r > len(self.left):
                self._flush()
        return float(right.square().sum()), rank

    def _dots(self, place: int, right: Tensor) -> Tensor:
        """Products [rank, n·r] of new rows of Z with every row of C as it was at the last flush."""
        if self.whole is None or self.factored is None:
            return (self.cross @ right.T).T
        rows_of_unit = slice(place * self.r, (place + 1) * self.r)
        rows = _rows(self.whole, rows_of_unit).addmm_(
            self.left[: self.used, rows_of_unit].T, self.dots[: self.used], alpha=-1
        )
        new = self.factored[1].T @ rows
        self.dots[self.used : self.used + len(new)] = new
        return new

    def _update_diagonals(self, left: Tensor, right: Tensor, dots: Tensor) -> None:
        """C_i ← C_i − L_iᵀZ in H_ii = C_i·C_iᵀ, and G_ii ← G_ii − L_iᵀL_i."""
        old, n, r = slice(0, self.used), len(self.ids), self.r
        # Products with the current C, not with that of the last flush: D ← D − (ZZ_oldᵀ)L_old.
        dots = dots - (right @ self.right[old].T) @ self.left[old]
        # (C − LᵀZ)(C − LᵀZ)ᵀ = CCᵀ − LᵀD − DᵀL + Lᵀ(ZZᵀ)L; half of the last term goes into each D.
        dots = dots - (right @ right.T) @ left / 2
        if r == 1:
            self.diag_g -= left.square().view(n, 1, 1)
            self.diag_h -= 2 * (left * dots).view(n, 1, 1)
            return
        lt = left.view(-1, n, r).permute(1, 2, 0)  # [n, r, rank]
        dt = dots.reshape(-1, n, r).permute(1, 2, 0)  # [n, r, rank]
        self.diag_g -= lt @ lt.mT
        cross = lt @ dt.mT
        self.diag_h -= cross + cross.mT

    def _flush(self) -> None:
        """Bring gram and cross up to date; drop the rows of picked units once they are a quarter.

        Gathering costs as much as the product itself, so it is not done at every flush. Rows of
        picked units that are still there have no residual and hence no gain.
        """
        left, right = self.left[: self.used], self.right[: self.used]
        dots = None if self.whole is None else self.dots[: self.used]
        if int(self.alive.sum()) <= 0.75 * len(self.alive):
            keep = self.alive.nonzero().flatten()
            index = (keep[:, None] * self.r + torch.arange(self.r)).flatten().to(self.gram.device)
            left = left.index_select(1, index)
            self.gram = self.gram.index_select(0, index).index_select(1, index)
            self.cross = self.cross.index_select(0, index)
            self.ids, self.alive = self.ids[keep], self.alive[keep]
            if self.whole is not None and dots is not None:
                dots = dots.index_select(1, index)
                self.whole = self.whole.index_select(0, index).index_select(1, index)
        _add_upper(self.gram, left, left, -1.0, self.r)
        if self.whole is not None and dots is not None:
            # H − LᵀD − DᵀL + Lᵀ(ZZᵀ)L, as one product: half of the last term goes into each D.
            half = torch.addmm(dots, right @ right.T, left, alpha=-0.5)
            _add_upper(self.whole, torch.cat([left, half]), torch.cat([half, left]), -1.0, self.r)
        self.cross.addmm_(left.T, right, alpha=-1)
        self._new_panel()


def _rows(upper: Tensor, span: slice) -> Tensor:
    """Copy of rows [q, d] of a symmetric matrix of which only the upper half is up to date."""
    return torch.cat([upper[: span.start, span].T, upper[span, span.start :]], 1)


def _add_upper(matrix: Tensor, a: Tensor, b: Tensor, factor: float, align: int = 1) -> None:
    """matrix [d, d] += factor · aᵀb for a, b [p, d], on and above the diagonal (whole blocks of
    `align`).
    """
    step = max(1, _STRIP // align) * align
    for i in range(0, len(matrix), step):
        matrix[i : i + step, i:].addmm_(a[:, i : i + step].T, b[:, i:], alpha=factor)


def _root(block: Tensor, tolerance: float) -> Tensor:
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


def _deficient_gains(g: Tensor, h: Tensor, tolerance: float) -> Tensor:
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
