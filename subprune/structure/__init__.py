"""Finding what can be pruned: see `labels` for the idea, `analysis` for the result."""

from subprune.structure.analysis import analyse, find_groups
from subprune.structure.cost import CostModel, predict
from subprune.structure.groups import Consumer, Group, Narrowing, Slot, Structure

__all__ = [
    "Consumer",
    "CostModel",
    "Group",
    "Narrowing",
    "Slot",
    "Structure",
    "analyse",
    "find_groups",
    "predict",
]
