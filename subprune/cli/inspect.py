"""``subprune inspect``"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import typer

from subprune.cli import arguments as a
from subprune.cli.console import line_width, print_json, print_text
from subprune.messages import FLAGS, spelled

if TYPE_CHECKING:
    from subprune.report.inspection import Inspection

__all__ = ["register"]

EXAMPLES = """Examples:

  subprune inspect --model lenet-mnist --data mnist-sample
  subprune inspect --model my.nets:resnet18 --data inputs.npy --json
"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog=EXAMPLES)(inspect)


@a.with_reading()
def inspect(
    model: a.Model,
    data: a.Data,
    weights: a.Weights = None,
    json: a.Json = False,
    *,
    preparation: a.Preparation,
) -> None:
    """Show what can be pruned in a model, what each unit costs, and why the rest cannot go."""
    from subprune.cli.data import DataChoice, load_data
    from subprune.cli.loading import load
    from subprune.data.batches import batches
    from subprune.report.inspection import inspect as look

    loaded = load(model, weights, trained=False)
    net = loaded.model
    choice = DataChoice(data, 2, 0, preparation, loaded=loaded)
    args, kwargs = batches(load_data(choice), net, 2)[0].inputs
    inspection = _in_flags(look(net, kwargs if kwargs and not args else args))
    if json:
        print_json(
            {
                "params": inspection.params,
                "flops": inspection.flops,
                "groups": [asdict(row) for row in inspection],
                "refused": inspection.refused,
                "unused": inspection.unused,
            }
        )
        return
    print_text(inspection.text(line_width()))


def _in_flags(inspection: Inspection) -> Inspection:
    """Remarks name options as the command line does."""
    rows = tuple(
        replace(row, obstacles=tuple(spelled(text, FLAGS) for text in row.obstacles))
        for row in inspection.rows
    )
    return replace(inspection, rows=rows)
