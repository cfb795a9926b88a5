"""``subprune demo``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from subprune.cli.console import out, print_json
from subprune.cli.demonstration import RATIOS, run_demo, table
from subprune.progress import progress_bar

__all__ = ["register"]


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
    with progress_bar({"": len(RATIOS)}, None) as note:
        rows = run_demo(output, RATIOS, seed, note)
    if json:
        print_json([vars(r) for r in rows])
        return
    Console(width=max(out.width, 100)).print(table(rows))
    out.print(
        f"Models and reports are in [bold]{output}[/bold]; open "
        f"[bold]{output / 'lenet-4x.html'}[/bold]."
    )
