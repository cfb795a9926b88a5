"""``subprune methods``"""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from subprune.budget import RULES
from subprune.cli.console import out, print_json
from subprune.select.presets import METHODS

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
                "form": m.form,
                "needs_labels": m.needs_labels,
                "needs_train_data": m.needs_train_data,
                "allocate": m.allocate,
                "what": m.summary,
            }
            for name, m in METHODS.items()
        ]
        print_json({"methods": listed, "allocate": list(RULES)})
        return
    table = Table("method", "statistics", "also needs", "what it does")
    for name, m in METHODS.items():
        needs = "--train-data" if m.needs_train_data else "labels" if m.needs_labels else "–"
        table.add_row(name, m.form, needs, m.summary)
    out.print(table)
    rules = Table("allocate", "how the target is shared out over the layers")
    for name, rule in RULES.items():
        rules.add_row(name, (rule.__doc__ or "").strip().split("\n")[0])
    out.print(rules)
