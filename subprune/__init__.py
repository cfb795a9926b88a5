"""One-shot structured pruning by submodular optimisation."""

from typing import TYPE_CHECKING

from subprune.api import forecast, method, prune
from subprune.cutting.masking import mask
from subprune.cutting.surgery import cut
from subprune.distil.recover import recover
from subprune.io.export import export
from subprune.io.storage import load, save
from subprune.measure.quality import Evaluation, evaluate
from subprune.methods import METHODS, Method
from subprune.report.figures import Report
from subprune.report.forecast import Forecast
from subprune.report.inspection import Inspection, inspect
from subprune.report.versions import VERSION
from subprune.result import Result
from subprune.select.selector import Ranking, View
from subprune.structure.analysis import find_groups

__version__ = VERSION

__all__ = [
    "METHODS",
    "Evaluation",
    "Forecast",
    "Inspection",
    "Method",
    "Ranking",
    "Report",
    "Result",
    "View",
    "cut",
    "evaluate",
    "export",
    "find_groups",
    "forecast",
    "inspect",
    "load",
    "mask",
    "method",
    "prune",
    "recover",
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
