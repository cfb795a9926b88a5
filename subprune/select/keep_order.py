"""The keep order with its error curve: what greedy gives, and what budgets are shared out by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from subprune.errors import BudgetError

__all__ = ["KeepOrder"]


@dataclass(frozen=True, kw_only=True)
class KeepOrder:
    """Units in the order they were picked; every prefix is the solution for that budget."""

    order: tuple[int, ...]
    gains: Tensor  # [k] float64, F(S_j) − F(S_{j−1}); they sum to at most ‖Y‖²
    errors: Tensor  # [k + 1] float64, 1 − F(S_j)/‖Y‖² for j = 0..k: ≥ 0, never rising
    ranks: tuple[int, ...]  # numerically independent columns each pick added, over all consumers
    energy: float  # ‖Y‖²
    dependent: tuple[int, ...]  # picks that added nothing: dead, or explained by those before
    groups: int = 1  # that the curve speaks for
    absolute: Tensor | None = None  # errors · energy, where it speaks for several

    def __len__(self) -> int:
        return len(self.order)

    def kept(self, k: int) -> tuple[int, ...]:
        """The units to keep for a budget of k, in ascending order."""
        if not 0 <= k <= len(self.order):
            raise BudgetError(f"k = {k} is outside the keep order's 0..{len(self.order)}")
        return tuple(sorted(self.order[:k]))

    @staticmethod
    def together(orders: Sequence[KeepOrder]) -> KeepOrder:
        """What several groups of as many units have in common, each cut to the same number.

        Errors are the mean of theirs, `absolute` is the sum of their squared errors.
        """
        first = orders[0]
        return KeepOrder(
            order=first.order,
            gains=torch.stack([x.gains for x in orders]).sum(dim=0),
            errors=torch.stack([x.errors for x in orders]).mean(dim=0),
            ranks=first.ranks,
            energy=sum(x.energy for x in orders),
            dependent=(),
            groups=len(orders),
            absolute=torch.stack([x.errors * x.energy for x in orders]).sum(dim=0),
        )
