"""Exchanges of units on the reweighted input change: one goes, one comes, while the error falls.

Greedy never takes back a pick, backward elimination never takes back a removal. Here the better of
the two starts; then the units that are missed least are tried as the one that goes, and of those
outside, refitted together with the rest, the one that gains most comes in its place. With ``P = G_SS⁻¹``
and ``X = P·C_S`` for the columns S of the kept units, removing the columns J of a unit costs
``tr(X_Jᵀ P_JJ⁻¹ X_J)``, and adding those of another gains ``tr(R_Jᵀ H_JJ⁻¹ R_J)``, with
``R = C − G_:S·X`` and ``H = G − G_:S·P·G_S:`` what the others leave of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from subprune.errors import OptionError
from subprune.keywords import must_be
from subprune.select.backward import backward_order, damped_inverse
from subprune.select.greedy import TIE, follow, greedy
from subprune.select.input_change import Greedy
from subprune.select.objective import value
from subprune.select.selector import Ranking, Selector, View

if TYPE_CHECKING:
    from subprune.statistics.statistics import Statistics

__all__ = ["Swap", "exchanged"]

_TRIES = 4  # units that are tried as the one that goes, before the search ends


@dataclass(frozen=True)
class Swap(Selector):
    """Greedy or backward elimination, whichever is better, and exchanges while they help."""

    name: ClassVar[str] = "swap"
    exchanges: int = 32  # at most

    def __post_init__(self) -> None:
        count = self.exchanges
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise OptionError(must_be("exchanges", "a whole number of at least 0", count))

    @property
    def nested(self) -> bool:
        """Exchanges are for one budget."""
        return False

    def whole(self) -> Selector:
        """Greedy, whose order serves every budget."""
        return Greedy()

    def rank(self, view: View) -> Ranking:
        """The units chosen for view.k, then the others; in both, greedy's order."""
        stats, n = view.statistics, view.n_units
        first = greedy(stats, n)
        if view.k is None or view.k >= n:
            return Ranking(first.order, curve=first)
        starts = [first.order[: view.k], backward_order(stats, n)[: view.k]]
        start = max(starts, key=lambda units: value(stats, units))
        moved = exchanged(stats, n, start, self.exchanges)
        best = max([start, moved], key=lambda units: value(stats, units))
        order = sorted(first.order, key=lambda unit: unit not in best)  # stable: as greedy has them
        return Ranking(tuple(order), curve=follow(stats, n, tuple(order)))


def exchanged(
    stats: Sequence[Statistics], n_units: int, start: Iterable[int], most: int
) -> tuple[int, ...]:
    """As many units as `start` has, after exchanges that each lessen the error."""
    kept = sorted(start)
    readers = [_Reader(s, n_units) for s in stats]
    for _ in range(most):
        better = _exchange(readers, kept)
        if better is None:
            break
        kept = better
    return tuple(kept)


def _exchange(readers: Sequence[_Reader], kept: Sequence[int]) -> list[int] | None:
    """The set after the first exchange that lowers the error; None if no exchange does."""
    costs = _total([reader.costs(kept) for reader in readers])
    order = sorted(kept, key=lambda unit: float(costs[unit]))
    for going in order[:_TRIES]:
        rest = [unit for unit in kept if unit != going]
        gains = _total([reader.gains(rest) for reader in readers])
        coming = int(gains.argmax())
        if float(gains[coming]) > float(gains[going]) * (1 + TIE) and coming != going:
            return sorted([*rest, coming])
    return None


def _total(parts: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(parts)).sum(0)


class _Reader:
    """The statistics of one consumer, unit by unit."""

    def __init__(self, stats: Statistics, n_units: int) -> None:
        self.stats, self.n_units = stats, n_units
        self.columns = [(stats.units == u).nonzero().flatten() for u in range(n_units)]

    def costs(self, kept: Sequence[int]) -> Tensor:
        """What removing each of the kept units adds to the error; of others 0: [n_units]."""
        columns = self.stats.columns(kept)
        inverse = damped_inverse(self.stats.part(columns))
        weight = inverse @ self.stats.cross[columns]  # [q, m]
        place = torch.full((len(self.stats.units),), -1)
        place[columns] = torch.arange(len(columns))
        costs = torch.zeros(self.n_units, dtype=torch.float64)
        for unit in kept:
            mine = place[self.columns[unit]]
            costs[unit] = _explained(inverse[mine][:, mine], weight[mine])
        return costs

    def gains(self, kept: Sequence[int]) -> Tensor:
        """What adding each of the other units takes from the error; of kept ones 0: [n_units]."""
        gram, cross, columns = self.stats.gram, self.stats.cross, self.stats.columns(kept)
        inverse = damped_inverse(self.stats.part(columns))
        tall = gram[:, columns]  # [d, q]
        carried = tall @ inverse
        unexplained = cross - carried @ cross[columns]  # [d, m]
        gains, inside = torch.zeros(self.n_units, dtype=torch.float64), set(kept)
        for unit in range(self.n_units):
            mine = self.columns[unit]
            if unit in inside or not len(mine):
                continue
            residual = gram[mine][:, mine] - carried[mine] @ tall[mine].T
            residual.diagonal().add_(self.stats.tolerance * gram.diagonal()[mine])
            gains[unit] = _explained(residual, unexplained[mine])
        return gains


def _explained(gram: Tensor, cross: Tensor) -> float:
    """tr(Cᵀ G⁻¹ C) of one unit's columns; 0 where others explain them up to rounding."""
    if not len(gram):
        return 0.0
    lower, info = torch.linalg.cholesky_ex(gram)
    if int(info):
        return 0.0
    return float(torch.linalg.solve_triangular(lower, cross, upper=False).square().sum())
