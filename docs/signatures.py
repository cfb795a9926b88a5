"""For the API page: functions that get their keywords from the table of options, as callers see them."""

from __future__ import annotations

import inspect
from typing import Any

import griffe

import subprune

__all__ = ["Keywords"]


class Keywords(griffe.Extension):
    """Signature and docstring of `prune` and `forecast` as they are when the package runs."""

    def on_function(self, *, func: griffe.Function, **kwargs: Any) -> None:
        if func.path not in ("subprune.api.prune", "subprune.api.forecast"):
            return
        function = getattr(subprune, func.name)
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
