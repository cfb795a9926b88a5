"""One-shot structured pruning by submodular optimisation.

Public names are imported from where they live when they are first used, so that
``import subprune``, and the command line's help, do not wait for PyTorch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from subprune.report.versions import VERSION

if TYPE_CHECKING:
    from subprune import guarantees as guarantees
    from subprune.api import calibrate, forecast, prune
    from subprune.cutting.masking import mask
    from subprune.cutting.surgery import cut
    from subprune.distil.recover import recover
    from subprune.io.export import export
    from subprune.io.storage import load, save
    from subprune.measure.quality import Evaluation, evaluate
    from subprune.methods import METHODS, Method
    from subprune.options.registration import method
    from subprune.program.ops import Norm, Product
    from subprune.reading.reader import read_data
    from subprune.ready import Calibrated
    from subprune.report.figures import Report
    from subprune.report.forecast import Forecast
    from subprune.report.inspection import Inspection, inspect
    from subprune.result import Result
    from subprune.schedule.rounds import Round, Rounds, prune_in_rounds
    from subprune.select.selector import Ranking, View
    from subprune.structure.analysis import find_groups
    from subprune.structure.registry import register_rule, unregister_rule

__version__ = VERSION

__all__ = [
    "METHODS",
    "Calibrated",
    "Evaluation",
    "Forecast",
    "Inspection",
    "Method",
    "Norm",
    "Product",
    "Ranking",
    "Report",
    "Result",
    "Round",
    "Rounds",
    "View",
    "calibrate",
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
    "prune_in_rounds",
    "read_data",
    "recover",
    "register_rule",
    "save",
    "unregister_rule",
]

if not TYPE_CHECKING:
    # Where each public name lives; a test compares this with the imports above.
    _HOMES = {
        "subprune.api": ("calibrate", "forecast", "prune"),
        "subprune.cutting.masking": ("mask",),
        "subprune.cutting.surgery": ("cut",),
        "subprune.distil.recover": ("recover",),
        "subprune.io.export": ("export",),
        "subprune.io.storage": ("load", "save"),
        "subprune.measure.quality": ("Evaluation", "evaluate"),
        "subprune.methods": ("METHODS", "Method"),
        "subprune.options.registration": ("method",),
        "subprune.program.ops": ("Norm", "Product"),
        "subprune.reading.reader": ("read_data",),
        "subprune.ready": ("Calibrated",),
        "subprune.report.figures": ("Report",),
        "subprune.report.forecast": ("Forecast",),
        "subprune.report.inspection": ("Inspection", "inspect"),
        "subprune.result": ("Result",),
        "subprune.schedule.rounds": ("Round", "Rounds", "prune_in_rounds"),
        "subprune.select.selector": ("Ranking", "View"),
        "subprune.structure.analysis": ("find_groups",),
        "subprune.structure.registry": ("register_rule", "unregister_rule"),
    }
    _HOME = {name: home for home, names in _HOMES.items() for name in names}

    def __getattr__(name: str) -> object:
        """A public name when it is first asked for; `guarantees` is a module itself."""
        if name == "guarantees":
            return import_module("subprune.guarantees")
        if name not in _HOME:
            raise AttributeError(f"module 'subprune' has no attribute {name!r}")
        value = getattr(import_module(_HOME[name]), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__, "guarantees"})
