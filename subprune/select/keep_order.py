"""The keep order with its error curve: what greedy gives, and what budgets are shared out by."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from subprune.errors import BudgetError

__all__ = ["KeepOrder"]


@dataclass(frozen=True)
class KeepOrder:
    """Units in the order they were picked; every prefix is the solution for that budget."""

    order: tuple[int, ...]
    gains: Tensor  # [k] float64, F(S_j) − F(S_{j−1}); they sum to at most ‖Y‖²
    errors: Tensor  # [k + 1] float64, 1 − F(S_j)/‖Y‖² for j = 0..k: ≥ 0, never rising
    ranks: tuple[int, ...]  # numerically independent columns each pick added, over all consumers
    energy: float  # ‖Y‖²
    dependent: tuple[int, ...]  # picks that added nothing: dead, or explained by those before

    def __len__(self) -> int:
        return len(self.order)

    def kept(self, k: int) -> tuple[int, ...]:
        """The units to keep for a budget of k, in ascending order."""
        if not 0 <= k <= len(self.order):
            raise BudgetError(f"k = {k} is outside the keep order's 0..{len(self.order)}")
        return tuple(sorted(self.order[:k]))
