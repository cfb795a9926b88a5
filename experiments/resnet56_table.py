"""docs/results-resnet56.md from the summary of the label-free ResNet56 grid.

subprune experiment run experiments/resnet56-label-free.toml --models-dir MODELS --data-dir DATA --output OUT
subprune experiment report experiments/resnet56-label-free.toml --output OUT
python experiments/resnet56_table.py OUT
"""

from __future__ import annotations

import csv
import shutil
import sys
from collections import defaultdict
from pathlib import Path

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "resnet56-label-free"
PAGE = HERE.parent / "docs" / "results-resnet56.md"
VALUES = ("2", "4", "8", "16", "32")
PARTS = {
    ("1", "keep"): "With reweighting",
    ("1", "recalibrate"): "With reweighting, BatchNorm taken anew",
    ("0", "keep"): "Without reweighting",
    ("0", "recalibrate"): "Without reweighting, BatchNorm taken anew",
}


def cell(row: dict[str, str] | None) -> str:
    """Top-1, spread over seeds if there are several, and the paper's."""
    if row is None:
        return "–"
    text = f"{float(row['top1']):.1f}"
    if int(row["runs"]) > 1:
        text += f" ± {float(row['std']):.1f}"
    if row["paper_top1"]:
        text += f" (paper {float(row['paper_top1']):.1f}; {float(row['share_difference_points']):+.1f})"
    return text


def main() -> None:
    source = Path(sys.argv[1])
    RESULTS.mkdir(parents=True, exist_ok=True)
    for name in ("cells.csv", "summary.csv", "report.html"):
        shutil.copyfile(source / name, RESULTS / name)
    with (RESULTS / "summary.csv").open() as file:
        rows = list(csv.DictReader(file))
    with (RESULTS / "cells.csv").open() as file:
        cells = list(csv.DictReader(file))
    seeds = sorted({c["seed"] for c in cells if c["method"] != "dense"})
    dense = next(c for c in cells if c["method"] == "dense")
    found: dict[tuple[str, str], dict[str, dict[str, dict[str, str]]]] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        if row["finetune"] == "none" and row["method"] != "dense":
            found[row["reweight"], row["batchnorm"]][row["method"]][f"{float(row['value']):g}"] = row
    order = list(dict.fromkeys(c["method"] for c in cells))
    lines = [
        "# ResNet56 on CIFAR-10, budgets without labels",
        "",
        f"Made by `experiments/resnet56_table.py` from the committed rows; {'seed' if len(seeds) == 1 else 'seeds'} "
        f"{', '.join(seeds)}, 10,000 test images, no fine-tuning. Dense top-1 {float(dense['top1']):.2f} here, 92.27 "
        "in the paper. 512 augmented training images without labels (the gradient methods use labels); layerwise "
        "methods share the target out by knapsack on their error curves, where the paper measures accuracy on 10,000 "
        "labelled images. In brackets: the paper's top-1, and the share of the dense accuracy that is left, ours "
        "less the paper's, in points. The paper's reweighted and sequential runs have BatchNorm taken anew "
        "without saying so; here it is a switch. A dash: not run.",
    ]
    for key, title in PARTS.items():
        lines += ["", f"## {title}", "", "| method | " + " | ".join(f"c = {v}" for v in VALUES) + " |"]
        lines += ["|---" * (len(VALUES) + 1) + "|"]
        for method in (m for m in order if m in found[key]):
            own = found[key][method]
            lines.append(f"| {method} | " + " | ".join(cell(own.get(v)) for v in VALUES) + " |")
    PAGE.write_text("\n".join(lines) + "\n")
    print(f"wrote {PAGE.name} and {RESULTS.name}/")


if __name__ == "__main__":
    main()
