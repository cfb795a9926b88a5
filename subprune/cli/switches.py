"""Help in which a flag without a value shows none: ``--json``, not ``--json <bool>``."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

__all__ = ["App"]


def _bare(params: list[Any]) -> list[Any]:
    """The same parameters; newer versions of typer show a type even after switches."""
    for param in params:
        if getattr(param, "is_bool_flag", False) and param.metavar is None:
            param.metavar = ""
    return params


class _Command(TyperCommand):
    def get_params(self, ctx: Any) -> list[Any]:
        return _bare(super().get_params(ctx))


class _Group(TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        return _bare(super().get_params(ctx))


class App(typer.Typer):
    """Commands, and what they have in common."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(cls=_Group, **settings)

    def command(self, name: str | None = None, **settings: Any) -> Any:
        """As that of `typer.Typer`."""
        return super().command(name, **{"cls": _Command, **settings})
