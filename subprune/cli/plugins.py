"""Commands that other distributions add to ``subprune``.

A distribution names them as entry points of the group ``subprune.commands``: the name is the
command's, the object a `typer.Typer`. It is loaded when it is called, not before: what the others
need is not in the way of ``subprune --help``. A command that cannot be loaded says so then.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any

import typer
from typer.core import TyperCommand

from subprune.errors import OptionError

__all__ = ["GROUP", "KNOWN", "add_commands", "own_packages"]

GROUP = "subprune.commands"
KNOWN = {"experiment": "subprune-paper"}
"""Commands of this project that are distributed on their own: command → distribution."""

_SHORT = {"experiment": "Grids of pruning runs: start, stop, resume, report."}


def add_commands(app: typer.Typer) -> set[str]:
    """Add every command that is installed, and a placeholder for each known one that is not.

    Returns:
        The names of all of them.
    """
    installed = {entry.name: entry for entry in entry_points(group=GROUP)}
    for entry in installed.values():
        _add(app, entry)
    missing = KNOWN.keys() - installed.keys()
    for name in sorted(missing):
        _add_placeholder(app, name, _not_installed(name))
    return installed.keys() | missing


def own_packages() -> list[str]:
    """Import packages of this project: the library, and those of the known commands installed."""
    known = (entry for entry in entry_points(group=GROUP) if entry.name in KNOWN)
    return ["subprune", *(entry.module.partition(".")[0] for entry in known)]


def _owner(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist else entry.value


def _add(app: typer.Typer, entry: EntryPoint) -> None:
    """A command that becomes the one of the entry point as soon as words follow it."""

    class Later(TyperCommand):
        def make_context(self, info_name: Any, args: Any, parent: Any = None, **extra: Any) -> Any:
            command = typer.main.get_command(_loaded(entry))
            return command.make_context(info_name, args, parent=parent, **extra)

    short = _SHORT.get(entry.name, f"Part of {_owner(entry)}.")

    @app.command(entry.name, cls=Later, help=short)
    def later() -> None: ...


def _loaded(entry: EntryPoint) -> typer.Typer:
    try:
        command = entry.load()
        if not isinstance(command, typer.Typer):
            raise TypeError(f"{entry.value} is a {type(command).__name__}, not a typer.Typer")
    except Exception as error:
        cause = f"{type(error).__name__}: {error}"
        raise OptionError(
            f"subprune {entry.name} is part of {_owner(entry)}, which cannot be loaded ({cause}); "
            "install it again"
        ) from error
    return command


def _not_installed(name: str) -> str:
    return (
        f"subprune {name} is part of {KNOWN[name]}, which is not installed; "
        "run pip install ./paper in a clone of the project"
    )


def _add_placeholder(app: typer.Typer, name: str, message: str) -> None:
    """A command that takes any words and answers with this message."""
    settings = {"ignore_unknown_options": True, "allow_extra_args": True}

    @app.command(
        name,
        help=f"Not available: {message}.",
        short_help="Not available; its --help says why.",
        epilog=f"Example, once it is available: subprune {name} --help",
        context_settings=settings,
    )
    def unavailable(context: typer.Context) -> None:
        raise OptionError(message)
