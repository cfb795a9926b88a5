"""The command line: ``subprune demo``, ``subprune methods``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from subprune import __version__
from subprune.demo import RATIOS, run_demo, table
from subprune.errors import SubpruneError
from subprune.experiments.cli import app as experiment
from subprune.methods import METHODS
from subprune.progress import progress_bar

__all__ = ["app", "main"]

app = typer.Typer(
    help="One-shot structured pruning: a smaller dense network in seconds, without labels or fine-tuning.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(experiment, name="experiment")
out = Console()


def _version(value: bool) -> None:
    if value:
        out.print(f"subprune {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None: ...


@app.command(epilog="Example: subprune demo --output demo-output")
def demo(
    output: Annotated[Path, typer.Option(help="Folder for the pruned models and the report.")] = Path("demo-output"),
    seed: Annotated[int, typer.Option(help="Which 512 images are drawn.")] = 42,
) -> None:
    """Prune the shipped LeNet at c = 2, 4, 8, 16, 32 and show what is left."""
    with progress_bar(len(RATIOS), None) as note:
        rows = run_demo(output, RATIOS, seed, note)
    Console(width=max(out.width, 100)).print(table(rows))
    out.print(f"Models and report are in [bold]{output}[/bold].")


@app.command()
def methods() -> None:
    """List the pruning methods."""
    listing = Table("method", "statistics", "needs labels", "what it does")
    for name, method in sorted(METHODS.items()):
        listing.add_row(name, method.form, "yes" if method.needs_labels else "no", method.summary)
    out.print(listing)


def main() -> None:
    """Entry point: errors of ours are one line, not a traceback."""
    try:
        app()
    except SubpruneError as error:
        Console(stderr=True).print(f"[red]error:[/red] {error}", highlight=False, markup=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
