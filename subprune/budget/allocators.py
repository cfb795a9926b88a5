"""The allocators there are, by the name that stands for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from subprune.budget.accuracy import EqualAccuracy, EqualAgreement
from subprune.budget.balanced import Balanced
from subprune.budget.error import Error
from subprune.budget.felt import Felt
from subprune.budget.knapsack import Knapsack
from subprune.budget.sampling import SampleSize
from subprune.budget.score import Score
from subprune.budget.search import Search
from subprune.budget.uniform import Uniform

if TYPE_CHECKING:
    from subprune.budget.demand import Allocator

__all__ = ["ALLOCATORS", "DEFAULT_ALLOCATOR"]

ALLOCATORS: dict[str, Allocator] = {
    allocator.name: allocator
    for allocator in (
        Uniform(),
        Error(),
        Knapsack(),
        Balanced(),
        Felt(),
        Search(),
        Score(),
        SampleSize(),
        EqualAccuracy(),
        EqualAgreement(),
    )
}

DEFAULT_ALLOCATOR = "balanced"
"""The allocator of methods that have none of their own."""
