"""Lower bounds on the submodularity ratio, and its stronger relatives, from statistics alone.

``F(S) = ‖Y‖² − min_X ‖Y − B_S X‖²`` depends on the columns of a unit only through the space they
span. So every unit may be given an orthonormal basis of that space first: the Gram matrix G̃ of
these bases has identity blocks on its diagonal, and the bounds below hold for it just as the
paper's hold for ``G = BᵀB``, with 1 in the place of the largest eigenvalue. They are never below
the paper's, since that is the same bound for a worse choice of bases, and units that are zero or
whose own columns depend on each other no longer make them vanish.

Notation of the paper: ``γ_{U,k}`` is the largest number with ``γ·F(S | L) ≤ Σ_{i∈S} F(i | L)`` for
all disjoint ``L ⊆ U`` and ``|S| ≤ k``. Why ``γ_{U,k} ≥ λ_min(G̃_{U∪S})``: with R the residuals of
the bases given L, ``F(S | L) ≤ ‖R_SᵀY‖² / λ_min(R_SᵀR_S)``, ``F(i | L) ≥ ‖R_iᵀY‖²`` because
``R_iᵀR_i ≼ 1``, and the Schur complement ``R_SᵀR_S`` has no smaller eigenvalue than ``G̃_{L∪S}``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from subprune.select.elimination import Elimination, without_fixed
from subprune.select.objective import value

if TYPE_CHECKING:
    from subprune.statistics.statistics import Statistics

__all__ = [
    "Spans",
    "alpha_bound",
    "certified_units",
    "curvature_bound",
    "error_bound",
    "gamma_bound",
    "gamma_seen",
    "global_eigenvalue_bound",
    "rank",
    "spans",
]

_ENUMERATE = 12  # up to this many units, every subset is looked at


def rank(stats: Statistics) -> int:
    """Numerically independent columns of B among those that belong to units.

    Columns are scaled to unit energy; eigenvalues above ``stats.tolerance`` times the largest
    count. Columns without a unit, always kept, are projected out first.
    """
    gram, _, _, _ = without_fixed(stats, stats.tolerance)  # [d', d'], columns of unit energy
    live = (gram.diagonal() > stats.tolerance).nonzero().flatten()
    if not len(live):
        return 0
    scaled = gram[live][:, live]
    lower, info = torch.linalg.cholesky_ex(scaled)
    if int(info) == 0 and float(lower.diagonal().min()) ** 2 > stats.tolerance * len(live):
        return len(live)  # a shortcut for the clear case, without eigenvalues
    values = torch.linalg.eigvalsh(scaled)
    return int((values > stats.tolerance * values[-1]).sum())


def global_eigenvalue_bound(stats: Statistics) -> float:
    """``λ_min(G) / λ_max(G)``, the paper's simple bound on every ``γ_{U,k}``; 0 if it is lost in
    rounding.
    """
    if stats.width == 0:
        return 1.0
    values = torch.linalg.eigvalsh(stats.gram)
    top = float(values[-1])
    noise = 4 * stats.precision * stats.width  # relative error of an eigenvalue, generously
    return max(0.0, float(values[0]) / top - noise) if top > 0 else 0.0


@dataclass(frozen=True)
class Spans:
    """Orthonormal bases of the spaces that the columns of each unit span;
    q basis vectors in all.
    """

    gram: Tensor  # [q, q] float64, G̃: identity blocks on the diagonal
    cross: Tensor  # [q, m] float64, products of the basis vectors with the target
    units: Tensor  # [q] int64, unit of each basis vector, ascending
    tolerance: float  # relative, of the statistics
    noise: float  # eigenvalues of G̃ are known up to this much

    @cached_property
    def live(self) -> tuple[int, ...]:
        """Units that span anything at all."""
        return tuple(self.units.unique().tolist())

    @cached_property
    def eigen(self) -> tuple[Tensor, Tensor]:
        """Eigenvalues of G̃, ascending, and eigenvectors in columns."""
        values, vectors = torch.linalg.eigh(self.gram)
        return values, vectors

    @cached_property
    def nullity(self) -> int:
        """Directions in which the bases depend on each other."""
        values, _ = self.eigen
        return int((values <= self.tolerance * values[-1]).sum()) if len(values) else 0

    @cached_property
    def leverage(self) -> Tensor:
        """[live, q]: share of each unit in the span of the j lowest eigenvectors, j = 0 … q − 1."""
        _, vectors = self.eigen
        place = torch.searchsorted(torch.tensor(self.live), self.units)  # [q], row of each vector
        # [live, q]: weight of each unit in eigenvector j; summed over the eigenvectors before j
        shares = torch.zeros(len(self.live), len(self.units), dtype=torch.float64)
        shares.index_add_(0, place, vectors.square())
        return shares.cumsum(1) - shares

    @cached_property
    def overlaps(self) -> Tensor:
        """[live, live]: spectral norms of the blocks of G̃ (cosines of the least angles), zero on
        the diagonal.
        """
        sizes = self.units.unique(return_counts=True)[1].tolist()
        widest, n = max(sizes), len(sizes)
        # All blocks padded to the widest unit, so that one call serves a whole row of blocks.
        within = torch.cat([torch.arange(size) for size in sizes])
        slots = torch.repeat_interleave(torch.arange(n), torch.tensor(sizes)) * widest + within
        norms = torch.zeros(n, n, dtype=torch.float64)
        for i, rows in enumerate(self.gram.split(sizes)):
            blocks = rows.new_zeros(n * widest, len(rows))
            blocks[slots] = rows.T
            blocks = blocks.view(n, widest, len(rows))  # G̃_ij transposed, for all j
            # the norm of a block is the root of the largest eigenvalue of its small Gram matrix
            norms[i] = torch.linalg.eigvalsh(blocks.mT @ blocks)[:, -1].clamp_min(0).sqrt()
        return torch.maximum(norms, norms.T).fill_diagonal_(0.0)


def spans(stats: Statistics) -> Spans:
    """Orthonormal bases of all units, after the columns without a unit are projected out."""
    gram, cross, units, _ = without_fixed(stats, stats.tolerance)
    gram, cross, units = gram.cpu(), cross.cpu(), units.cpu()
    order = units.argsort(stable=True)
    sizes = units.unique(return_counts=True)[1].tolist()
    bases: list[tuple[Tensor, Tensor]] = []  # of each unit: its columns [c], a basis [c, rank]
    weakest = 1.0  # least eigenvalue that a basis was scaled by, which magnifies rounding
    for columns in order.split(sizes) if len(order) else ():
        values, vectors = torch.linalg.eigh(gram[columns][:, columns])
        good = values > stats.tolerance * max(1.0, float(values[-1]))
        if bool(good.any()):
            weakest = min(weakest, float(values[good][0]))
            bases.append((columns, vectors[:, good] * values[good].rsqrt()))
    names = (
        torch.cat([units[columns[:1]].expand(b.shape[1]) for columns, b in bases])
        if bases
        else units[:0]
    )
    # With W [d, q] the block-diagonal matrix of all bases: WᵀG, then WᵀGW.
    half = _stack(bases, gram)  # [q, d]
    full = _stack(bases, half.T)  # [q, q]
    noise = 4 * stats.precision * max(1, len(full)) / weakest
    return Spans((full + full.T) / 2, _stack(bases, cross), names, stats.tolerance, noise)


def _stack(bases: Sequence[tuple[Tensor, Tensor]], matrix: Tensor) -> Tensor:
    """Rows of a matrix [d, p] combined unit by unit: [q, p]."""
    return torch.cat([b.T @ matrix[columns] for columns, b in bases]) if bases else matrix[:0]


def gamma_bound(bases: Sequence[Spans], kept: Iterable[int], k: int) -> float:
    """A number in [0, 1] that ``γ_{U,k}`` is not below, for U the units ``kept``; several consumers
    add up.

    Up to twelve units it is the smallest ``λ_min(G̃_{U∪S})`` over all S of k more units, as such
    exact; beyond, the best of two bounds on that, which need no enumeration: see
    :func:`_by_leverage`, :func:`_by_overlap`. A sum of functions has at least the least ratio of
    its parts.
    """
    kept = set(kept)
    return min((_sparse_eigenvalue(s, kept, k) for s in bases if s.live), default=1.0)


def _sparse_eigenvalue(s: Spans, kept: set[int], k: int) -> float:
    """Lower bound on the least eigenvalue of G̃ on the units ``kept`` and any k others."""
    fixed = [unit in kept for unit in s.live]  # [live]
    extra = min(k, len(fixed) - sum(fixed))
    if sum(fixed) + extra == len(fixed):
        least = float(s.eigen[0][0])
    elif len(fixed) <= _ENUMERATE:
        least = _by_enumeration(s, fixed, extra)
    else:
        mask = torch.tensor(fixed)
        least = max(_by_leverage(s, mask, extra), _by_overlap(s, mask, extra))
    least -= s.noise
    return min(1.0, least) if least > s.tolerance else 0.0


def _by_enumeration(s: Spans, fixed: Sequence[bool], extra: int) -> float:
    always = [u for u, f in zip(s.live, fixed, strict=True) if f]
    others = [u for u, f in zip(s.live, fixed, strict=True) if not f]
    least = 1.0
    for more in combinations(others, extra):
        members = (
            torch.isin(s.units, torch.tensor([*always, *more], dtype=torch.int64))
            .nonzero()
            .flatten()
        )
        if len(members):
            least = min(least, float(torch.linalg.eigvalsh(s.gram[members][:, members])[0]))
    return least


def _by_leverage(s: Spans, fixed: Tensor, extra: int) -> float:
    """``max_j λ_{j+1}·(1 − leverage of the units in the j lowest eigenvectors)``.

    A unit vector z on the units T has ``zᵀG̃z ≥ λ_{j+1}·(1 − ‖N_Tᵀz‖²)`` for N the j lowest
    eigenvectors, and ``‖N_Tᵀz‖²`` is at most the sum of the leverages of T; the largest of them are
    assumed for the units not known.
    """
    values, _ = s.eigen
    ranked = s.leverage[~fixed].sort(0, descending=True).values  # [others, q]
    worst = s.leverage[fixed].sum(0) + ranked[:extra].sum(0)  # [q], for every j
    return float((values * (1 - worst)).max())


def _by_overlap(s: Spans, fixed: Tensor, extra: int) -> float:
    """Gershgorin's circles, block by block:
    ``1 − max_i Σ_j ‖G̃_ij‖`` over units i, j in the set.
    """
    sure = s.overlaps[:, fixed].sum(1)  # [live], with the units that are in the set for certain
    ranked = s.overlaps[:, ~fixed].sort(1, descending=True).values
    # A unit outside takes up one of the extra places itself, hence extra − 1 others besides.
    inside = sure[fixed] + ranked[fixed, :extra].sum(1)
    outside = sure[~fixed] + ranked[~fixed, : max(0, extra - 1)].sum(1)
    parts = [part for part in (inside, outside if extra else outside[:0]) if len(part)]
    return 1 - max((float(part.max()) for part in parts), default=0.0)


def certified_units(bases: Sequence[Spans]) -> int:
    """The largest m for which any m units are proven independent of each other: their bases
    together have full rank in every consumer. Units that are zero do not count as dependent: they
    never gain anything.
    """
    low, high = 0, max((len(s.live) for s in bases), default=0)  # proven for low units
    if high <= _ENUMERATE:
        return max((m for m in range(1, high + 1) if gamma_bound(bases, (), m) > 0), default=0)
    if gamma_bound(bases, (), high) > 0:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if gamma_bound(bases, (), middle) > 0 else (low, middle)
    return low


def alpha_bound(bases: Sequence[Spans], k: int | None = None) -> float:
    """A number in [0, 1] that the weak DR-submodularity ``α_k`` is not below; None: for every k.

    A gain is a sum of ``‖Yᵀz‖²`` over as many orthonormal z in the range of B as the unit still
    adds dimensions, so it lies between the sums of that many smallest and largest eigenvalues of
    ``H = QᵀYYᵀQ``, Q an orthonormal basis of that range. (The paper takes z from the whole space,
    where the smallest eigenvalue is 0 as soon as there are more rows than outputs, and one column
    per unit.) With a k, the paper's second bound joins in where all units are independent: the gain
    of a unit with r basis vectors is at least ``r·λ_min(WWᵀ)`` times the least eigenvalue on k + 1
    units, for W with ``BW`` the part of Y in that range.
    """
    return min((_alpha(s, k) for s in bases if s.live), default=1.0)


def _alpha(s: Spans, k: int | None) -> float:
    values, vectors = s.eigen
    start = s.nullity  # eigenvectors before this one give no direction in the range of B
    # Dimensions that a unit may add: as many as it has if all are independent, else at least one.
    sizes = s.units.unique(return_counts=True)[1].unique().tolist() if start == 0 else [1]
    zeros = max(0, len(values) - start - s.cross.shape[1])  # eigenvalues of H that must vanish
    if zeros >= min(sizes):
        return 0.0
    root = vectors[:, start:] * values[start:].rsqrt()  # [q, p], so that Q = B̃·root
    projected = root.T @ s.cross  # [p, m], QᵀY
    spectrum = torch.linalg.svdvals(projected).square().flip(0)  # of H, ascending
    spectrum = torch.cat([spectrum.new_zeros(zeros), spectrum])
    top = float(spectrum[-1])
    if top <= 0:
        return 0.0
    noise = s.noise / float(values[start]) * top
    lowered = spectrum - noise
    certain = torch.where(lowered > s.tolerance * top, lowered, 0.0)
    lows = [float(certain[:r].sum()) for r in sizes]
    if k is not None and start == 0 and zeros == 0:
        weights = torch.linalg.svdvals(root @ projected)  # of W = G̃⁻¹C̃
        least = float(weights[-1]) ** 2 * _sparse_eigenvalue(s, set(), k + 1)
        lows = [max(low, r * least - noise) for low, r in zip(lows, sizes, strict=True)]
    highs = [float(spectrum[-r:].sum()) + r * noise for r in sizes]
    return min(1.0, *(low / high for low, high in zip(lows, highs, strict=True)))


def curvature_bound(bases: Sequence[Spans]) -> float:
    """A number in [0, 1] that the total curvature ``c_k`` is not above, for every k: ``1 − α`` if
    all units are independent of each other, else 1, which says nothing. Units in S or T themselves
    are left out of its definition, which would make it 1 always.
    """
    independent = all(float(s.eigen[0][0]) - s.noise > s.tolerance for s in bases if s.live)
    return 1 - alpha_bound(bases) if independent else 1.0


def gamma_seen(stats: Sequence[Statistics], n_units: int, order: Sequence[int]) -> float:
    """A number that ``γ_{U,n}`` is not *above*, for U the units of ``order``: the least ratio ``Σ_i
    F(i | L) / F(V | L)`` over the prefixes L of the order. Shows how much a lower bound gives
    away.
    """
    state = Elimination(stats, n_units, None)
    total = value(stats, range(n_units))
    explained, least = state.fixed_gain, 1.0
    for unit in (*order, None):  # None: after the last one there is one more prefix
        unexplained = total - explained
        if unexplained <= 1e-9 * state.energy:
            break
        least = min(least, float(state.gains().sum()) / unexplained)
        if unit is not None:
            explained += state.add(unit)[0]
    return least


def error_bound(
    start: float, floor: float, gamma: float, k: int, n_units: int, *, tight: bool = False
) -> float:
    """The most error that greedy can leave after k of n units, as a share of ``‖Y‖²``.

    start: error with no unit; floor: error with all of them, 0 in the symmetric form; gamma: a
    lower bound on ``γ_{Ŝ,n}``. The paper's ``floor + (start − floor)·e^{−γk/n}``; ``tight`` uses
    ``Π_{j<k}(1 − γ/(n − j))``, which the same proof gives when it counts only the units that remain
    at each step, and which is never larger.
    """
    if tight:
        factor = math.prod(1 - gamma / (n_units - j) for j in range(min(k, n_units)))
    else:
        factor = math.exp(-gamma * k / n_units) if n_units else 1.0
    return floor + max(0.0, start - floor) * factor
