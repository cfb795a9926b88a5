"""The names of parts and modes, for editors, type checkers and flags; nothing is imported for them.

The tables of the parts themselves lie in their rooms; a test compares both.
"""

from __future__ import annotations

from typing import Literal

__all__ = [
    "AllocatorName",
    "BatchNorm",
    "FitName",
    "Patches",
    "SelectorName",
    "TargetName",
    "ViewName",
]

TargetName = Literal[
    "layer",
    "sequential",
    "asymmetric",
    "residual",
]
SelectorName = Literal[
    "greedy",
    "backward",
    "swap",
    "greedy-loss",
    "greedy-pool-loss",
    "sampling",
    "act-grad",
    "weight-norm",
    "wanda",
    "fluctuation",
    "contribution",
    "independence",
    "random",
]
FitName = Literal[
    "ridge",
    "affine",
    "least-squares",
    "constant",
    "keep",
]
AllocatorName = Literal[
    "uniform",
    "error",
    "knapsack",
    "balanced",
    "output",
    "search",
    "score",
    "sampling",
    "equal-accuracy",
    "equal-agreement",
]
Patches = Literal["all", "random"]
BatchNorm = Literal["keep", "recalibrate", "sequential"]
ViewName = Literal["mirror", "crop"]
