"""``subprune methods``"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer
from rich.table import Table

from subprune.budget.allocators import ALLOCATORS
from subprune.cli.console import out, print_json
from subprune.fit.fits import FITS
from subprune.methods import METHODS
from subprune.select.selectors import SELECTORS
from subprune.statistics.targets import TARGETS

__all__ = ["register"]

PARTS: dict[str, tuple[str, Mapping[str, object]]] = {
    "target": ("what a layer should give", TARGETS),
    "selector": ("which units stay", SELECTORS),
    "fit": ("what the remaining weights become", FITS),
    "allocate": ("how the goal is divided among the layers", ALLOCATORS),
}
"""The four choices: a method is a preset of them, and each can be given in its place."""

EXAMPLES = """Examples:

* `subprune methods`
* `subprune methods --json`
"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog=EXAMPLES)(methods)


def methods(
    json: Annotated[bool, typer.Option("--json", help="Print the list as JSON.")] = False,
) -> None:
    """List the pruning methods, and the parts that they are made of."""
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
        parts = {option: list(table) for option, (_, table) in PARTS.items()}
        print_json({"methods": listed, **parts})
        return
    table = Table("method", "target", "also needs", "what it does")
    for name, m in METHODS.items():
        selector = m.selector
        needs = "labels" if selector.needs_labels else "–"
        needs = "--train-data" if selector.needs_pool else needs
        table.add_row(name, m.target.name, needs, m.summary)
    out.print(table)
    for option, (question, members) in PARTS.items():
        listing = Table(f"--{option}", question)
        for name, part in members.items():
            listing.add_row(name, " ".join((part.__doc__ or "").split()))
        out.print(listing)
