"""One consumer's residual statistics while units are added: panels of factors, and where they go.

Memory traffic is what costs, so no large matrix is touched when a unit is added. A panel collects
factors ``L`` and ``Z`` of the units added since the last flush: the residual is ``G − LᵀL`` and
``C − LᵀZ``. A step computes only the unit's own rows of it and updates every unit's r × r diagonal
blocks of ``G`` and of ``H = C·Cᵀ``, which is all that gains need:
``tr(C_iᵀ G_ii⁻¹ C_i) = tr(G_ii⁻¹ H_ii)``. When the panel is full, one matrix product updates what
is left of ``G`` and ``C``, and the diagonal blocks are read from them again, so that the rounding
of ``H``, which squares ``C``, cannot build up.

The blocks of ``H`` change by ``D = Z·(C − LᵀZ)ᵀ``, the products of the new rows of ``Z`` with all
rows of what is left of ``C``. Three ways to them, one class each:

* :class:`Block`: multiply. Where ``C`` is small there is nothing better.
* :class:`Ahead`: reading a large ``C`` for one unit takes as long as for several. Rows of ``H`` are
  made for the units that gain most, and brought up to date from the panel when one is added.
* :class:`Whole`: of single columns with many outputs, ``H`` is kept whole like ``G``. Then ``C`` is
  not needed at all, as long as rounding leaves no doubt; what ``C`` misses is kept, and made up for
  when somebody asks.

``G`` and ``H`` are symmetric: only their upper halves are kept up to date. Units that were added
make room at a flush: those at the end take their places.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from subprune.select.halves import (
    Moves,
    add_upper,
    closing_moves,
    deficient_gains,
    diagonal_blocks,
    full_rows,
    whitener,
)

__all__ = ["Block", "make_block"]

_PANEL = 128  # columns collected before G and C are updated
_LARGE = 4 * 2**20  # bytes of C that are not read again at every step
_AHEAD = 72  # rows of H made at a time
_FADED = 1e-4  # share of H at which it is recomputed from C, before rounding shows
_NOISE = 64 * torch.finfo(torch.float64).eps  # rounding of H, relative to what it was at first
_CERTAIN = 1e-10  # relative noise of a gain with which it is taken from H
_ASKED = 16  # columns whose H is recomputed rather than C asked once more


@dataclass(kw_only=True)
class _Panel:
    """Factors of the units added since the last flush."""

    left: Tensor  # [panel, n·r], rows of L
    right: Tensor  # [panel, m], rows of Z
    half: Tensor  # [panel, n·r], rows of D − (ZZᵀ)L/2; only where H is looked at
    used: int = 0  # rows of left and half that are filled
    known: int = 0  # rows of right that are filled
    # the units added: place, first row and T, which whitens its columns
    picks: list[tuple[int, int, Tensor]] = field(default_factory=list)


@dataclass(kw_only=True)
class _Step:
    """What adding a unit would do."""

    unit: int
    root: Tensor  # T [r, rank]
    left: Tensor  # [rank, n·r], rows of L
    square: Tensor  # [rank, rank], ZZᵀ
    right: Tensor | None = None  # [rank, m], rows of Z, where they are known
    dots: Tensor | None = None  # [rank, n·r], D, where it is known

    @property
    def gain(self) -> float:
        return float(self.square.trace())


def make_block(gram: Tensor, cross: Tensor, units: Tensor, n_units: int, tolerance: float) -> Block:
    """The block for G [d, d], C [d, m] of columns of unit energy; units: [d], all ≥ 0."""
    r = int(units.unique(return_counts=True)[1].max())
    # C has d·m numbers and H d²: it is kept whole only where it is not much larger. Of single
    # columns, rows of it made ahead are the cheaper way up to about d/3 outputs.
    most = 3 if r == 1 else 8
    whole = cross.nbytes > _LARGE and most * cross.shape[1] >= r * len(cross)
    if not whole and cross.shape[1] > cross.shape[0]:
        # gains only see C·Cᵀ: turn C into a square matrix
        cross = torch.linalg.qr(cross.T, mode="r").R.T.contiguous()
    kind = Whole if whole else Ahead if cross.nbytes > _LARGE else Block
    return kind(gram, cross, units, n_units, tolerance)


class Block:
    """Every unit present owns r rows, zero-padded where it has fewer columns.

    gram [n·r, n·r], cross [n·r, m]: residuals at the last flush, for the n units not added by then;
    diag_g, diag_h [n, r, r]: current blocks.
    """

    def __init__(
        self, gram: Tensor, cross: Tensor, units: Tensor, n_units: int, tolerance: float
    ) -> None:
        self.ids, counts = units.unique(return_counts=True)  # [n], at first ascending
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
        self.ids = self.ids.cpu()
        self.place = torch.full((n_units,), -1, dtype=torch.int64)
        self._prepare()
        self._new_panel()

    def _prepare(self) -> None:
        """Before the first panel; for subclasses."""

    def _new_panel(self) -> None:
        """Start an empty panel on the present gram and cross."""
        n, r = len(self.ids), self.r
        self.place.fill_(-1)
        self.place[self.ids] = torch.arange(n)
        rows = max(_PANEL, 2 * r)
        left, right = self.gram.new_empty(rows, n * r), self.cross.new_empty(rows, self._outputs)
        self.panel = _Panel(left=left, right=right, half=self._empty_half(left))
        # The last unit factored: one is often asked for its exact gain just before it is added.
        self.factored: _Step | None = None
        self.diag_g = diagonal_blocks(self.gram, r)
        self.diag_h = self._squares()

    @property
    def _outputs(self) -> int:
        return self.cross.shape[1]

    def _empty_half(self, left: Tensor) -> Tensor:
        return left[:0]

    def _squares(self) -> Tensor:
        """Diagonal blocks of H [n, r, r] at the start of a panel."""
        rows = self.cross.view(len(self.ids), self.r, self.cross.shape[1])
        return rows.square().sum(2, keepdim=True) if self.r == 1 else rows @ rows.mT

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
            gains[bad] = deficient_gains(g[bad], h[bad], tolerance)
        return gains.clamp_min(0)

    def noise(self) -> Tensor | None:
        """By how much gains may be wrong, beyond the rounding of one panel: [n]."""
        return None

    def exact_gain(self, unit: int) -> float:
        """F(unit | S), free of the rounding in H."""
        step = self._step(unit)
        return 0.0 if step is None else step.gain

    def add(self, unit: int) -> tuple[float, int]:
        """Eliminate a unit's columns; returns (gain, rank)."""
        step = self._step(unit)
        if step is None:
            return 0.0, 0
        place, rank, panel = int(self.place[unit]), len(step.left), self.panel
        panel.picks.append((place, panel.used, step.root))
        if rank:
            new = slice(panel.used, panel.used + rank)
            # (C − LᵀZ)(C − LᵀZ)ᵀ = CCᵀ − LᵀD − DᵀL + Lᵀ(ZZᵀ)L: half of the last goes into each D.
            half = torch.addmm(self._dots(step), step.square, step.left, alpha=-0.5)
            self._update_diagonals(step.left, half)
            panel.left[new] = step.left
            if len(panel.half):
                panel.half[new] = half
            if step.right is not None and panel.known == panel.used:
                panel.right[new], panel.known = step.right, panel.used + rank
            panel.used += rank
            self.factored = None
            if panel.used + self.r > len(panel.left):
                self._flush()
        return step.gain, rank

    def _span(self, place: int) -> slice:
        return slice(place * self.r, (place + 1) * self.r)

    def _step(self, unit: int) -> _Step | None:
        """What adding a unit would do; None if it is not here, or not any more."""
        place = int(self.place[unit]) if unit < len(self.place) else -1
        if place < 0:
            return None
        if self.factored is None or self.factored.unit != unit:
            span, left = self._span(place), self.panel.left[: self.panel.used]
            # The unit's rows of the residual G − LᵀL, whitened by T.
            rows = full_rows(self.gram, span).addmm_(left[:, span].T, left, alpha=-1)  # [r, n·r]
            root = whitener(rows[:, span], self.tolerance)  # [r, rank]
            self.factored = self._completed(unit, place, root, root.T @ rows)
        return self.factored

    def _completed(self, unit: int, place: int, root: Tensor, left: Tensor) -> _Step:
        """The step of a unit whose rows of L are known."""
        right = root.T @ self._residual_targets(place)
        return _Step(unit=unit, root=root, left=left, square=right @ right.T, right=right)

    def _residual_targets(self, place: int) -> Tensor:
        """A unit's rows [r, m] of C − LᵀZ."""
        span, used = self._span(place), self.panel.used
        left, right = self.panel.left[:used, span], self.panel.right[:used]
        return torch.addmm(self.cross[span], left.T, right, alpha=-1)

    def _dots(self, step: _Step) -> Tensor:
        """D [rank, n·r]: products of Z with all rows of the residual of C."""
        assert step.right is not None
        return self._multiplied(step.right)

    def _multiplied(self, right: Tensor) -> Tensor:
        """Products [rank, n·r] of rows of Z with those of C − LᵀZ, from C itself."""
        used = self.panel.used
        old = right @ self.panel.right[:used].T
        return (self.cross @ right.T).T - old @ self.panel.left[:used]

    def _update_diagonals(self, left: Tensor, half: Tensor) -> None:
        """G_ii ← G_ii − L_iᵀL_i, and H_ii ← H_ii − L_iᵀD_i − D_iᵀL_i with half of ZZᵀ in each D."""
        n, r = len(self.ids), self.r
        if r == 1:
            self.diag_g -= left.square().view(n, 1, 1)
            self.diag_h -= 2 * (left * half).view(n, 1, 1)
            return
        lt = left.view(-1, n, r).permute(1, 2, 0)  # [n, r, rank]
        dt = half.view(-1, n, r).permute(1, 2, 0)  # [n, r, rank]
        self.diag_g -= lt @ lt.mT
        cross = lt @ dt.mT
        self.diag_h -= cross + cross.mT

    def _flush(self) -> None:
        """Bring gram and cross up to date without the units added, and start a new panel."""
        moves = closing_moves(len(self.ids), [place for place, *_ in self.panel.picks])
        left = moves.columns(self.panel.left[: self.panel.used], self.r)
        self.gram = moves.upper(self.gram, self.r)
        add_upper(self.gram, left, left, -1.0, self.r)
        self._flush_cross(moves, left)
        self.ids = moves.rows(self.ids, 1)
        self._new_panel()

    def _flush_cross(self, moves: Moves, left: Tensor) -> None:
        """The same for C; left: rows of L after the moves."""
        self.cross = moves.rows(self.cross, self.r)
        self.cross.addmm_(left.T, self.panel.right[: self.panel.used], alpha=-1)


class Ahead(Block):
    """A large C: rows of H are made for several units at once."""

    def _new_panel(self) -> None:
        # by place: a unit's rows [r, n·r] of H at the last flush
        self.ahead: dict[int, Tensor] = {}
        self.estimates: Tensor | None = None  # the latest gains
        super()._new_panel()
        self.first_h = self.diag_h.diagonal(dim1=1, dim2=2).sum(1)  # [n]

    def _empty_half(self, left: Tensor) -> Tensor:
        return torch.empty_like(left)

    def gains(self) -> Tensor:
        self.estimates = super().gains()
        return self.estimates

    def _dots(self, step: _Step) -> Tensor:
        """From rows of H, unless little of the unit's own is left."""
        place = int(self.place[step.unit])
        assert step.right is not None
        if float(self.diag_h[place].trace()) < _FADED * float(self.first_h[place]):
            return self._multiplied(step.right)
        if place not in self.ahead:
            self._look_ahead(place)
        return step.root.T @ _residual_products(self.ahead[place], self.panel, self._span(place))

    def _look_ahead(self, place: int) -> None:
        """Make the rows of H of a unit, and of those that gain most."""
        count = min(max(1, _AHEAD // self.r), len(self.ids))
        best = [] if self.estimates is None else self.estimates.topk(count).indices.tolist()
        places = [place, *(p for p in best if p != place and p not in self.ahead)]
        rows = torch.cat([self.cross[self._span(p)] for p in places]) @ self.cross.T
        self.ahead.update(zip(places, rows.split(self.r), strict=True))


class Whole(Block):
    """H is kept like G, and C only where rounding makes it necessary."""

    def _prepare(self) -> None:
        self.whole = torch.empty_like(self.gram)  # [n·r, n·r], H at the last flush
        self.late: list[tuple[_Panel, Moves]] = []  # panels that C does not know of
        self.asked = 0  # units looked at in C since H was last recomputed
        self.recent = False  # and whether one was since the last flush
        self._recompute()

    def _recompute(self) -> None:
        """H from C, which must be up to date."""
        add_upper(self.whole.zero_(), self.cross.T, self.cross.T, 1.0, self.r)
        self.first_h = diagonal_blocks(self.whole, self.r).diagonal(dim1=1, dim2=2).sum(1)  # [n]
        self.asked = 0

    @property
    def _outputs(self) -> int:
        return 0

    def _empty_half(self, left: Tensor) -> Tensor:
        return torch.empty_like(left)

    def _squares(self) -> Tensor:
        """From C, if it is up to date."""
        return diagonal_blocks(self.whole, self.r) if self.late else super()._squares()

    def noise(self) -> Tensor | None:
        """Rounding of H carried over to the gains of single columns."""
        if self.r > 1:
            return None
        inverse = torch.where(self.diag_g > self.tolerance, 1 / self.diag_g, 0.0).flatten()
        return inverse.mul_(self.first_h).mul_(_NOISE)

    def _completed(self, unit: int, place: int, root: Tensor, left: Tensor) -> _Step:
        span = self._span(place)
        dots = root.T @ _residual_products(full_rows(self.whole, span), self.panel, span)
        step = _Step(unit=unit, root=root, left=left, square=dots[:, span] @ root, dots=dots)
        noise = _NOISE * float(self.first_h[place]) * float(root.square().sum())
        if noise <= _CERTAIN * step.gain:
            return step
        self._catch_up()
        right = root.T @ self._residual_targets(place)
        return _Step(unit=unit, root=root, left=left, square=right @ right.T, right=right)

    def _dots(self, step: _Step) -> Tensor:
        if step.dots is not None:
            return step.dots
        assert step.right is not None
        return self._multiplied(step.right)

    def _catch_up(self) -> None:
        """Bring C up to the last flush, and Z of the panel up to date."""
        for panel, moves in self.late:
            _fill_targets(panel, self.cross, self.r)
            left = moves.columns(panel.left[: panel.used], self.r)
            self.cross = moves.rows(self.cross, self.r)
            self.cross.addmm_(left.T, panel.right[: panel.used], alpha=-1)
        self.late = []
        _fill_targets(self.panel, self.cross, self.r)
        self.asked, self.recent = self.asked + 1, True

    def _flush_cross(self, moves: Moves, left: Tensor) -> None:
        """The same for H; C follows later, unless somebody asks for it."""
        half = moves.columns(self.panel.half[: self.panel.used], self.r)
        self.whole, self.first_h = moves.upper(self.whole, self.r), moves.rows(self.first_h, 1)
        # H − LᵀD − DᵀL, as one product
        add_upper(self.whole, torch.cat([left, half]), torch.cat([half, left]), -1.0, self.r)
        self.panel.half = half[:0]  # not needed any more
        self.late.append((self.panel, moves))
        trace = float(self.whole.diagonal().sum())
        faded = trace < _FADED * float(self.first_h.sum()) or self.asked * _ASKED > len(self.whole)
        kept = sum(panel.left.nbytes for panel, _ in self.late)
        if faded or self.recent or 4 * kept > self.gram.nbytes:
            self._catch_up()
            self.asked -= 1
        self.recent = False
        if faded:
            self._recompute()


def _fill_targets(panel: _Panel, cross: Tensor, r: int) -> None:
    """Rows of Z that a panel does not have yet, from C as it was when the panel was empty."""
    if not panel.right.shape[1]:  # of an empty panel, too: what is left of C is read with it
        panel.right = cross.new_empty(len(panel.left), cross.shape[1])
    if panel.known == panel.used:
        return
    for place, first, root in panel.picks:
        if panel.known <= first < panel.used:
            span, rows = slice(place * r, (place + 1) * r), slice(first, first + root.shape[1])
            targets = torch.addmm(
                cross[span], panel.left[:first, span].T, panel.right[:first], alpha=-1
            )
            panel.right[rows] = root.T @ targets
    panel.known = panel.used


def _residual_products(rows: Tensor, panel: _Panel, span: slice) -> Tensor:
    """A unit's rows [r, n·r] of H − LᵀD − DᵀL, from those of H at the last flush."""
    left, half = panel.left[: panel.used], panel.half[: panel.used]
    rows = torch.addmm(rows, left[:, span].T, half, alpha=-1)
    return rows.addmm_(half[:, span].T, left, alpha=-1)
