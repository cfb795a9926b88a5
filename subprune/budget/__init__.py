"""How many units each group keeps."""

from subprune.budget.accuracy import FRACTIONS, AccuracyCurve, accuracy_curves, equal_accuracy
from subprune.budget.allocate import RULES, Demand, allocate
from subprune.budget.latency import by_latency
from subprune.budget.rules import by_error, equal_fractions, explicit, fraction
from subprune.budget.sampling import by_sampling
from subprune.budget.scores import by_score, top_fraction
from subprune.budget.target import Rounding, Target, amount, fill, largest

__all__ = [
    "FRACTIONS",
    "RULES",
    "AccuracyCurve",
    "Demand",
    "Rounding",
    "Target",
    "accuracy_curves",
    "allocate",
    "amount",
    "by_error",
    "by_latency",
    "by_sampling",
    "by_score",
    "equal_accuracy",
    "equal_fractions",
    "explicit",
    "fill",
    "fraction",
    "largest",
    "top_fraction",
]
