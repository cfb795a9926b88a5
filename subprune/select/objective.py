"""The set functions of the paper on statistics, evaluated from scratch.

``F(S) = ‖Y‖² − min_X ‖Y − B_S X‖²`` for the columns of the units S, summed over the consumers. With
``Y = B·W`` this is the symmetric form, with ``Y = A·W`` the asymmetric one; statistics do not tell
them apart. This is the slow, clear version for checks and reports; :mod:`subprune.select.greedy` is
the fast one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from subprune.select.halves import whitening

if TYPE_CHECKING:
    from subprune.statistics.statistics import Statistics

__all__ = ["gain", "residual", "value"]


def value(
    stats: Sequence[Statistics], kept: Iterable[int], tolerance: float | None = None
) -> float:
    """F(S) for the units ``kept``, summed over the consumers; unit-less columns always take part.

    Of no consumer it is more than ‖Y‖², which rounding can exceed where products were made in
    float32. The tolerance is that of the statistics unless given.
    """
    kept, total = list(kept), 0.0
    for s in stats:
        columns = s.columns(kept)
        factor = whitening(
            s.gram[columns][:, columns], s.tolerance if tolerance is None else tolerance
        )
        explained = float((factor.matrix.T @ s.cross[columns]).square().sum())
        total += min(explained, s.energy)
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
