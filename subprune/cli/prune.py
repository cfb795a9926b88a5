"""``subprune prune``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from subprune.cli import arguments as a

__all__ = ["register"]

EXAMPLES = """Examples:

  subprune prune --model lenet-mnist --data mnist-sample --compression 4 --output small
  subprune prune --model my.nets:resnet18 --weights resnet18.pt --data images/ --resize 224 --speedup 2 --output small
  subprune prune --model net.py:build --data inputs.npz --params 50% --dry-run
"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog=EXAMPLES)(prune)


@a.with_options
@a.with_reading()
def prune(
    model: a.Model,
    data: a.Data,
    weights: a.Weights = None,
    output: Annotated[Path, typer.Option(help="Folder for the model and the reports.")] = Path(
        "pruned"
    ),
    guarantees: Annotated[
        bool | None,
        typer.Option(
            "--guarantees/--no-guarantees",
            help="Proven bounds in the report (default: where pruning was quick).",
        ),
    ] = None,
    download: a.Download = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would go, and what it costs.")
    ] = False,
    json: a.Json = False,
    *,
    preparation: a.Preparation,
    **words: Any,
) -> None:
    """Prune a model: OUTPUT gets model.safetensors, report.html and report.json."""
    from subprune.cli.pruning import Job, run_job

    job = Job(
        model=model,
        weights=weights,
        download=download,
        data=data,
        preparation=preparation,
        output=output,
        guarantees=guarantees,
        dry_run=dry_run,
        json=json,
    )
    run_job(job, words)
