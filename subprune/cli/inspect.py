"""``subprune inspect``"""

from __future__ import annotations

from typing import Any

import typer
from rich.markup import escape
from rich.table import Table

from subprune.cli import options as o
from subprune.cli.console import out, print_json, say
from subprune.cli.data import DataChoice, load_data
from subprune.cli.models import load_model
from subprune.data import batches
from subprune.structure import CostModel, Structure, find_groups

__all__ = ["register"]

EXAMPLES = """Examples:

* `subprune inspect --model lenet-mnist --data mnist-sample`
* `subprune inspect --model my.nets:resnet18 --data inputs.npy --json`
"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog=EXAMPLES)(inspect)


def inspect(
    model: o.Model,
    data: o.Data,
    weights: o.Weights = None,
    data_dir: o.DataDir = None,
    resize: o.Resize = None,
    json: o.Json = False,
) -> None:
    """Show what can be pruned in a model, what each group costs, and why the rest cannot go."""
    net = load_model(model, weights)
    first = batches(load_data(DataChoice(data, 2, 0, data_dir, resize)), net, 2)[0]
    args, kwargs = first.inputs
    structure = find_groups(net, kwargs if kwargs and not args else args)
    rows = _rows(structure, CostModel(net, structure))
    if json:
        print_json({"groups": rows, "refused": structure.refused})
        return
    table = Table("group", "kind", "units", "parameters a unit", "read by", "pruned by default")
    for r in rows:
        why = "yes" if r["default"] else f"no: {r['obstacle']}"
        readers = ", ".join(r["consumers"])
        table.add_row(
            escape(r["name"]), r["kind"], str(r["units"]), f"{r['parameters']:,}", escape(readers), escape(why)
        )
    out.print(table)
    for name, why in structure.refused.items():
        say(f"cannot be pruned: {name}: {why}")


def _rows(structure: Structure, cost: CostModel) -> list[dict[str, Any]]:
    return [
        {
            "name": g.name,
            "kind": g.kind,
            "units": g.n_units,
            "parameters": int(cost.per_unit(g.name)[0].max()),
            "flops": int(cost.per_unit(g.name)[1].max()),
            "consumers": [c.name for c in g.consumers],
            "default": g.inner,
            "obstacle": g.obstacle,
        }
        for g in structure.groups
    ]
