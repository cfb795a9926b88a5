"""The paper's method on ResNet56 with a quarter of the parameters: every figure that the pages give
for it, side by side, from committed rows; written into docs/alternatives.md.

    python experiments/paper_figures.py
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "alternatives.md"
BEGIN, END = "<!-- one method -->\n", "<!-- /one method -->"
BATCHNORM = {
    "keep": "as it was",
    "recalibrate": "re-estimated at the end",
    "sequential": "re-estimated on the way",
}
# The grids of which the rows are, and how they divide the goal among the layers.
GRIDS = {
    "resnet56-label-free": "knapsack on error curves, no labels",
    "resnet56-equal-accuracy": "the paper's rule, on 1,000 labelled images",
}


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def measured() -> Iterator[list[str]]:
    """top-1, whose, budgets, BatchNorm, FLOPs, seeds, source."""
    for grid, budgets in GRIDS.items():
        folder = ROOT / "experiments" / "results" / grid
        for row in rows(folder / "summary.csv"):
            asked = (row["method"], row["reweight"], row["finetune"], float(row["value"]))
            if asked != ("asym-in-change", "1", "none", 4.0):
                continue
            seeds = sorted(
                cell["seed"]
                for cell in rows(folder / "cells.csv")
                if (cell["method"], cell["reweight"], cell["finetune"], float(cell["value"]))
                == asked
                and cell["batchnorm"] == row["batchnorm"]
            )
            spread = f" ± {float(row['std']):.1f}" if len(seeds) > 1 else ""
            yield [
                f"{float(row['top1']):.1f}{spread}",
                "our code",
                budgets,
                BATCHNORM[row["batchnorm"]],
                f"{float(row['speedup']):.1f}×",
                ", ".join(seeds),
                f"`experiments/{grid}.toml`",
            ]


def published() -> list[str]:
    for row in rows(ROOT / "paper" / "subprune_paper" / "paper_tables.csv"):
        asked = (row["model"], row["method"], row["reweighted"], row["finetuned"])
        if asked == ("resnet56", "AsymInChange", "1", "0") and float(row["compression"]) == 4:
            return [
                row["top1"],
                "the paper, as published",
                "the paper's rule, on 10,000 labelled images",
                BATCHNORM["sequential"],
                f"{float(row['flops_speedup']):.1f}×",
                "42 to 46",
                "its table for ResNet56",
            ]
    raise LookupError("AsymInChange at c = 4")


def table() -> str:
    head = ("top-1", "whose", "budgets", "BatchNorm", "fewer FLOPs", "seeds", "made by")
    lines = [head, ["---"] * len(head), published(), *measured()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def main() -> None:
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    after = rest.split(END)[1]
    PAGE.write_text(before + BEGIN + table() + END + after, encoding="utf-8")


if __name__ == "__main__":
    main()
