"""``subprune methods``"""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from subprune.budget.allocators import ALLOCATORS
from subprune.cli.console import out, print_json
from subprune.methods import METHODS

__all__ = ["register"]

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
    """List the pruning methods and the budget rules."""
    if json:
        listed = [
            {
                "name": name,
                "target": m.target.name,
                "needs_labels": m.selector.needs_labels,
                "needs_train_data": m.selector.needs_pool,
                "allocate": m.allocate,
                "what": m.summary,
            }
            for name, m in METHODS.items()
        ]
        print_json({"methods": listed, "allocate": list(ALLOCATORS)})
        return
    table = Table("method", "target", "also needs", "what it does")
    for name, m in METHODS.items():
        selector = m.selector
        needs = "labels" if selector.needs_labels else "–"
        needs = "--train-data" if selector.needs_pool else needs
        table.add_row(name, m.target.name, needs, m.summary)
    out.print(table)
    rules = Table("allocate", "how the goal is divided among the layers")
    for name, rule in ALLOCATORS.items():
        rules.add_row(name, " ".join((rule.__doc__ or "").split()))
    out.print(rules)
