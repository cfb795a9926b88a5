"""One-shot structured pruning by submodular optimisation."""

from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from subprune import guarantees as guarantees
else:

    def __getattr__(name: str) -> object:
        """`subprune.guarantees`, a module that few need, is imported when it is first named."""
        if name != "guarantees":
            raise AttributeError(f"module 'subprune' has no attribute {name!r}")
        from importlib import import_module

        return import_module("subprune.guarantees")
