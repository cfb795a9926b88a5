"""``subprune methods``"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer

from subprune.cli.console import line_width, print_json, print_text

__all__ = ["register"]

EXAMPLES = """Examples:

  subprune methods
  subprune methods --json
"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog=EXAMPLES)(methods)


def methods(
    json: Annotated[bool, typer.Option("--json", help="Print the list as JSON.")] = False,
) -> None:
    """List the pruning methods, and the parts that they are made of."""
    from subprune.measure.tables import text_table
    from subprune.methods import METHODS

    choices = _parts()
    if json:
        listed = [
            {
                "name": name,
                "target": m.target.name,
                "selector": m.selector.name,
                "fit": m.fit.name,
                "nested": m.selector.nested,
                "bounds_apply": m.selector.bounded and m.fit.bounded,
                "needs_labels": m.selector.needs_labels,
                "needs_train_data": m.selector.needs_pool,
                "allocate": m.allocate,
                "what": m.summary,
            }
            for name, m in METHODS.items()
        ]
        parts = {option: list(table) for option, (_, table) in choices.items()}
        print_json({"methods": listed, **parts})
        return
    rows = []
    for name, m in METHODS.items():
        needs = "labels" if m.selector.needs_labels else "–"
        needs = "--train-data" if m.selector.needs_pool else needs
        rows.append((name, m.target.name, needs, m.summary))
    header, width = ("method", "target", "also needs", "what it does"), line_width()
    print_text(text_table(header, rows, width=width))
    for option, (question, members) in choices.items():
        listing = [(name, " ".join((p.__doc__ or "").split())) for name, p in members.items()]
        print_text("\n" + text_table((f"--{option}", question), listing, width=width))


def _parts() -> dict[str, tuple[str, Mapping[str, object]]]:
    """The four choices: a method is a preset of them, and each can be given in its place."""
    from subprune.budget.allocators import ALLOCATORS
    from subprune.fit.fits import FITS
    from subprune.select.selectors import SELECTORS
    from subprune.statistics.targets import TARGETS

    return {
        "target": ("what a layer should reproduce", TARGETS),
        "selector": ("which units stay", SELECTORS),
        "fit": ("what the remaining weights become", FITS),
        "allocate": ("how the goal is divided among the layers", ALLOCATORS),
    }
