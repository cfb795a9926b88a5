"""How many units each group keeps."""

from subprune.budget.rules import by_error, equal_fractions, explicit, fraction
from subprune.budget.sampling import by_sampling
from subprune.budget.scores import by_score, top_fraction
from subprune.budget.target import Rounding, Target, fill, largest

__all__ = [
    "Rounding",
    "Target",
    "by_error",
    "by_sampling",
    "by_score",
    "equal_fractions",
    "explicit",
    "fill",
    "fraction",
    "largest",
    "top_fraction",
]
