"""One-shot structured pruning by submodular optimisation."""

from subprune.api import prune
from subprune.export import export
from subprune.forecast import Forecast
from subprune.masking import mask
from subprune.methods import METHODS, Ranker, Ranking, method
from subprune.report import Report
from subprune.result import Result
from subprune.storage import load, save
from subprune.structure import find_groups
from subprune.structure.inspect import Inspection, inspect
from subprune.surgery import cut

__version__ = "0.1.0"

__all__ = [
    "METHODS",
    "Forecast",
    "Inspection",
    "Ranker",
    "Ranking",
    "Report",
    "Result",
    "cut",
    "export",
    "find_groups",
    "inspect",
    "load",
    "mask",
    "method",
    "prune",
    "save",
]
