"""``subprune demo``: the shipped LeNet, pruned at several ratios."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from subprune.cli.console import line_width, print_json, print_text
from subprune.files import check_folder
from subprune.progress import progress_bar

__all__ = ["register"]

RATIOS = (2.0, 4.0, 8.0, 16.0, 32.0)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog="Example: subprune demo --output demo-output")(demo)


def demo(
    output: Annotated[
        Path, typer.Option(help="Folder for the pruned models and the reports.")
    ] = Path("demo-output"),
    seed: Annotated[int, typer.Option(help="Which 512 images are drawn.")] = 42,
    json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Prune the shipped LeNet at c = 2, 4, 8, 16, 32 and show what is left."""
    from subprune.cli.demonstration import run_demo, table

    check_folder(output, "--output")
    with progress_bar({"": len(RATIOS)}, None) as note:
        rows = run_demo(output, RATIOS, seed, note)
    if json:
        print_json([vars(r) for r in rows])
        return
    print_text(table(rows, max(line_width(), 100)))
    print_text(f"\nModels and reports are in {output}; open {output / 'lenet-4x.html'}.")
