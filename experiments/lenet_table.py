"""LeNet on MNIST at c = 2 … 32, three variants, three label-free budget rules, five seeds, beside
the paper.

    python experiments/lenet_table.py --output experiments/results/lenet [--paper paper_tables.csv]
    [--page docs/results-lenet-sample.md]

Writes one CSV row per run and a markdown table of means; with --page the table between the
markers in that file is replaced. 512 images are drawn from the shipped training sample by seed;
top-1 on the 10,000 test images.
"""

from __future__ import annotations

import argparse
import csv
import platform
import re
from collections import defaultdict
from pathlib import Path
from statistics import mean, pstdev

import torch

import subprune
from subprune.zoo.correct import count_correct
from subprune.zoo.datasets import calibration_batches, load
from subprune.zoo.models import shipped_lenet

METHODS = {
    "AsymInChange": "asym-in-change",
    "SeqInChange": "seq-in-change",
    "LayerInChange": "layer-in-change",
}
RATIOS = (2, 4, 8, 16, 32)
SEEDS = (42, 43, 44, 45, 46)
RULES = {"uniform": "equal fractions", "error": "error threshold", "knapsack": "knapsack"}
PAPER_DENSE = 97.75


def run_all(seeds: tuple[int, ...]) -> tuple[float, list[dict[str, object]]]:
    model, _ = shipped_lenet()
    train, test = load("mnist-sample", "train"), load("mnist-sample", "test")
    dense = 100 * count_correct(model, test) / len(test)
    rows: list[dict[str, object]] = []
    for seed in seeds:
        data = [x for x, _ in calibration_batches(train, 512, seed)]
        for label, method in METHODS.items():
            for rule in RULES:
                for c in RATIOS:
                    result = subprune.prune(
                        model, data, method=method, compression=c, allocate=rule, ridge=0, seed=seed
                    )
                    top1 = 100 * count_correct(result.model, test) / len(test)
                    kept = "-".join(map(str, result.plan.counts.values()))
                    rows.append(
                        {
                            "method": label,
                            "rule": rule,
                            "compression": c,
                            "seed": seed,
                            "top1": round(top1, 2),
                            "speedup": round(result.report.speedup, 2),
                            "kept": kept,
                            "seconds": round(result.report.seconds, 2),
                        }
                    )
    return dense, rows


def read_paper(path: Path) -> dict[tuple[str, int], float]:
    """Top-1 of the paper's reweighted, not fine-tuned LeNet rows."""
    found = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            if (
                row["model"].lower() == "lenet"
                and row["reweighted"] in YES
                and row["finetuned"] not in YES
            ):
                found[row["method"], int(float(row["compression"]))] = float(row["top1"])
    return found


YES = ("1", "True", "true", "yes", "✓")


def markdown(
    dense: float, rows: list[dict[str, object]], paper: dict[tuple[str, int], float]
) -> str:
    """Mean top-1 and, in the last line of each variant, share of the dense accuracy kept, ours and
    the paper's.
    """
    cells: dict[tuple[str, str, int], list[float]] = defaultdict(list)
    for row in rows:
        cells[str(row["method"]), str(row["rule"]), int(str(row["compression"]))].append(
            float(str(row["top1"]))
        )
    lines = [
        f"Dense: {dense:.2f} here, {PAPER_DENSE} in the paper. In brackets: share of the dense accuracy that is left.",
        "",
        "| variant | budgets | " + " | ".join(f"c = {c}" for c in RATIOS) + " |",
        "|---|---|" + "---|" * len(RATIOS),
    ]
    for label in METHODS:
        for rule, name in RULES.items():
            values = [cells[label, rule, c] for c in RATIOS]
            texts = [f"{mean(v):.1f} ± {pstdev(v):.1f} ({mean(v) / dense:.1%})" for v in values]
            lines.append(f"| {label} | {name} | " + " | ".join(texts) + " |")
        if paper:
            texts = [f"{paper[label, c]:.1f} ({paper[label, c] / PAPER_DENSE:.1%})" for c in RATIOS]
            lines.append(
                f"| {label} | *the paper* (equal accuracy, needs labels) | "
                + " | ".join(texts)
                + " |"
            )
    return "\n".join(lines) + "\n"


def machine() -> str:
    python, cores = platform.python_version(), torch.get_num_threads()
    return f"{cores} threads, {platform.machine()}, Python {python}, torch {torch.__version__}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--output", type=Path, default=Path("experiments/results/lenet"))
    parser.add_argument("--paper", type=Path, help="the paper's tables as CSV")
    parser.add_argument("--page", type=Path, help="file whose table is replaced")
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    options = parser.parse_args()
    dense, rows = run_all(tuple(options.seeds))
    paper = read_paper(options.paper) if options.paper else {}
    options.output.mkdir(parents=True, exist_ok=True)
    with (options.output / "runs.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    seeds = ", ".join(map(str, options.seeds))
    text = markdown(dense, rows, paper)
    note = f"\nMade by `experiments/lenet_table.py`, seeds {seeds}; {machine()}.\n"
    (options.output / "table.md").write_text(text + note)
    if options.page:
        old = options.page.read_text()
        start, end = "<!-- lenet table -->", "<!-- /lenet table -->"
        options.page.write_text(
            re.sub(f"{start}.*{end}", lambda _: f"{start}\n{text}{note}{end}", old, flags=re.S)
        )
    print(text)


if __name__ == "__main__":
    main()
