"""For the API page: functions that get their keywords from the table of options, as callers see them."""

from __future__ import annotations

import inspect
from typing import Any

import griffe

import subprune

__all__ = ["Keywords"]

FUNCTIONS = {
    "subprune.api.prune": subprune.prune,
    "subprune.api.forecast": subprune.forecast,
    "subprune.guarantees.certificates.guarantees": subprune.guarantees.guarantees,
}


class Keywords(griffe.Extension):
    """Signature and docstring of such functions as they are when the package runs."""

    def on_function(self, *, func: griffe.Function, **kwargs: Any) -> None:
        function = FUNCTIONS.get(func.path)
        if function is None:
            return
        known = {p.name: p.annotation for p in func.parameters}
        func.parameters = griffe.Parameters(
            *(
                griffe.Parameter(
                    p.name,
                    annotation=known.get(p.name, inspect.formatannotation(p.annotation)),
                    kind=griffe.ParameterKind(p.kind.description),
                    default=None if p.default is p.empty else repr(p.default),
                )
                for p in inspect.signature(function).parameters.values()
            )
        )
        func.docstring = griffe.Docstring(
            inspect.getdoc(function) or "", parent=func, parser="google"
        )
