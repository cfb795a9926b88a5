"""LeNet on MNIST: other ways to choose units beside ours, same data, same budgets rule, with and
without reweighting.

    python experiments/alternatives_table.py [--page docs/results-lenet-sample.md]

Writes experiments/results/alternatives/table.md; with --page the table between the markers in
that file is replaced. 512 images by seed from the shipped training sample, top-1 on the 10,000 test
images, no fine-tuning.
"""

from __future__ import annotations

import argparse
import platform
import re
from pathlib import Path
from statistics import mean

import torch

import subprune
from subprune.zoo.correct import count_correct
from subprune.zoo.datasets import calibration_batches, load
from subprune.zoo.models import shipped_lenet

METHODS = {
    "asym-in-change": "greedy on the input change",
    "layer-weight-norm": "ℓ1 norm of weights (Li et al. 2017)",
    "layer-act-grad": "activation × gradient, with labels (Molchanov et al. 2017)",
    "layer-greedy-fs": "greedy on the loss, with labels (Ye et al. 2020)",
    "layer-random": "random",
}
RATIOS = (2, 4, 8)
SEEDS = (42, 43, 44)


def measure(seeds: tuple[int, ...]) -> dict[tuple[str, bool, int], float]:
    """Mean top-1 in percent by method, reweighting and ratio."""
    model, _ = shipped_lenet()
    train, test = load("mnist-sample", "train"), load("mnist-sample", "test")
    found: dict[tuple[str, bool, int], list[float]] = {}
    for seed in seeds:
        data = calibration_batches(train, 512, seed)
        for method in METHODS:
            for reweight in (True, False):
                for c in RATIOS:
                    small = subprune.prune(
                        model,
                        data,
                        method=method,
                        compression=c,
                        allocate="uniform",
                        fit="least-squares" if reweight else "keep",
                        seed=seed,
                    ).model
                    found.setdefault((method, reweight, c), []).append(
                        100 * count_correct(small, test) / len(test)
                    )
    return {key: mean(values) for key, values in found.items()}


def markdown(values: dict[tuple[str, bool, int], float]) -> str:
    """One row per method; each cell: reweighted, then the old weights."""
    head = ["units chosen by", *(f"c = {c}" for c in RATIOS)]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for method, words in METHODS.items():
        cells = [f"{values[method, True, c]:.1f} / {values[method, False, c]:.1f}" for c in RATIOS]
        lines.append(f"| {words} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--page", type=Path, help="file whose table is replaced")
    parser.add_argument("--output", type=Path, default=Path("experiments/results/alternatives"))
    options = parser.parse_args()
    note = (
        f"\nMade by `experiments/alternatives_table.py`, equal fractions, mean of seeds {', '.join(map(str, SEEDS))}; "
        f"{platform.machine()}, torch {torch.__version__}.\n"
    )
    text = markdown(measure(SEEDS)) + note
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "table.md").write_text(text)
    if options.page:
        old = options.page.read_text()
        marks = r"(<!-- alternatives table -->\n).*?(<!-- /alternatives table -->)"
        options.page.write_text(re.sub(marks, lambda m: m[1] + text + m[2], old, flags=re.S))


if __name__ == "__main__":
    main()
