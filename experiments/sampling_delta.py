"""What the paper's delta of layer-sampling, 1e-16 on CIFAR-10, changes in committed rows' budgets.

    python experiments/sampling_delta.py --data-dir DATA --models-dir MODELS [--only EXPERIMENT]

The rows of layer-sampling in `experiments/results/*-label-free` were made with 1e-12, the paper's
on MNIST. Of every one of their budgets, this computes the one with 1e-16 from the same
sensitivities, and writes experiments/results/sampling-delta.csv: in how many groups they differ,
and by how many units at most. Rows of experiments that are not asked for stay.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from csv_rows import read_rows, write_rows

from subprune.budget.sampling import SampleSize
from subprune_paper.cells import Context, _common, _goal
from subprune_paper.config import read_config
from subprune_paper.grid import Cell, cells_of

HERE = Path(__file__).parent
ROWS = HERE / "results" / "sampling-delta.csv"
EXPERIMENTS = ("resnet56-label-free", "vgg11-label-free")
METHOD, PAPER = "layer-sampling", 1e-16


def committed(experiment: str) -> list[Cell]:
    """The cells with committed rows, one for each budget."""
    cells = read_rows(HERE / "results" / experiment / "cells.csv")
    rows = [row for row in cells if row["method"] == METHOD]
    there = {(row["seed"], row["value"]) for row in rows}
    return [
        cell
        for cell in cells_of(read_config(HERE / f"{experiment}.toml"))
        if cell.method == METHOD
        and (str(cell.seed), str(cell.value)) in there
        and (cell.reweight, cell.batchnorm, cell.finetune) == (True, "keep", "none")
    ]


def compared(experiment: str, context: Context) -> Iterator[dict[str, Any]]:
    """Both budgets of every cell, seed by seed."""
    for cell in sorted(committed(experiment), key=lambda c: (c.seed, c.value)):
        demand = _common(cell, context, str)
        demand = dataclasses.replace(demand, goal=_goal(cell, demand))
        plain = demand.shared_out()
        other = dataclasses.replace(demand, allocator=SampleSize(PAPER)).shared_out()
        apart = [abs(k - other[name]) for name, k in plain.items()]
        yield {
            "experiment": experiment,
            "seed": cell.seed,
            "compression": f"{cell.value:g}",
            "groups": len(apart),
            "units kept": sum(plain.values()),
            "units kept with the paper's": sum(other.values()),
            "groups that differ": sum(d > 0 for d in apart),
            "units apart at most": max(apart),
        }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--models-dir", required=True)
    parser.add_argument("--only", nargs="+", choices=EXPERIMENTS, default=EXPERIMENTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    context = Context(options.data_dir, options.models_dir)
    known = [row for row in read_rows(ROWS) if row["experiment"] not in options.only]
    for experiment in options.only:
        for row in compared(experiment, context):
            known.append(row)
            print(row, flush=True)
        write_rows(ROWS, known)


if __name__ == "__main__":
    main()
