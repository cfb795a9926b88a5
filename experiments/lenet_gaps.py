"""LayerWeightNorm and the greedy-fs pair behind the paper on LeNet: is it the budgets, or the
network?

    python experiments/lenet_gaps.py --data-dir DATA --models-dir MODELS \
        --cells experiments/results/lenet-mnist/cells.csv --output experiments/results/lenet-gaps.md

Three tables. Budgets: the paper's speedups beside those of our budgets, and the widths of the
convolutions that the paper's number allows. Networks: the same methods with the same budgets on the
shipped LeNet and on others that differ from each other in the seed of their training alone; those
are trained into MODELS unless they are there. Variants: other readings of the two methods on the
shipped LeNet. No choice is made by any of these numbers.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, pstdev

import torch
from torch import nn

import subprune
from subprune.select.forward_selection import greedy_loss
from subprune.select.selector import Ranking, View
from subprune.zoo.correct import count_correct
from subprune.zoo.datasets import Images, calibration_batches, load
from subprune.zoo.models import LeNet, shipped_lenet
from subprune.zoo.weights import load_weights, save_weights
from subprune_paper.tables import LABELS, paper_rows
from subprune_paper.training import recipe, train

Widths = tuple[int, int, int, int]
FULL: Widths = (6, 16, 120, 84)
GROUPS = ("conv1", "conv2", "fc1", "fc2")
SEEDS = (42, 43, 44, 45, 46)
VALUES = (2, 4, 8, 16, 32)
PAPER_DENSE = 97.75
COMPARED = (
    "layer-weight-norm",
    "layer-greedy-fs",
    "layer-greedy-fs-fd",
    "layer-in-change",
    "layer-act-grad",
)
# Budgets whose speedups are the paper's for these methods.
RUNS: tuple[tuple[str, int, Widths], ...] = (
    ("layer-weight-norm", 8, (1, 5, 49, 21)),
    ("layer-weight-norm", 16, (1, 3, 35, 22)),
    ("layer-weight-norm", 32, (6, 2, 24, 13)),
    ("layer-in-change", 32, (6, 2, 24, 13)),
    ("layer-greedy-fs", 8, (2, 4, 54, 29)),
    ("layer-greedy-fs", 16, (2, 2, 48, 20)),
)
# The same methods and other readings of them.
VARIANTS: tuple[tuple[str, str, Widths], ...] = (
    ("layer-weight-norm", "ℓ1 norm of outgoing weights (paper, authors' code)", (6, 2, 24, 13)),
    ("incoming-weight-norm", "ℓ1 norm of incoming weights (Li et al.)", (6, 2, 24, 13)),
    (
        "layer-greedy-fs",
        "greedy-fs, reweighted to the pruned network's values (authors' code)",
        (6, 5, 44, 29),
    ),
    ("asymmetric-greedy-fs", "greedy-fs, reweighted to the dense network's values", (6, 5, 44, 29)),
    ("layer-greedy-fs", "greedy-fs, conv1 at one third", (2, 5, 45, 30)),
)


@subprune.method("incoming-weight-norm")
def incoming(view: View) -> Ranking:
    """Sum of |w| over the weights that make a unit; of the shipped LeNet only."""
    weight = shipped_lenet()[0].get_submodule(view.group.name).get_parameter("weight").detach()
    return Ranking(
        tuple(weight.abs().flatten(1).sum(1).argsort(descending=True, stable=True).tolist())
    )


@subprune.method("asymmetric-greedy-fs", target="asymmetric", labels=True)
def asymmetric(view: View) -> Ranking:
    """Greedy on the loss, then reweighted to the dense network's values."""
    return greedy_loss(view)


def params(k: Widths) -> int:
    """Parameters of a LeNet of these widths."""
    a, b, c, d = k
    return 10 * a + (9 * a + 1) * b + (25 * b + 1) * c + (c + 1) * d + 10 * (d + 1)


def speedup(k: Widths) -> float:
    """As the authors' code counts it: the output of a convolution as large as its input, padded or
    not.
    """
    return _flops(FULL) / _flops(k)


def _flops(k: Widths) -> int:
    a, b, c, d = k
    return 784 * 9 * a + 169 * 9 * a * b + 25 * b * c + c * d + 10 * d


def allowed(ratio: int, printed: float) -> list[str]:
    """Widths conv1-conv2 for which a budget that is used up, with both linear layers pruned, has
    that speedup.
    """
    limit = params(FULL) // ratio
    found = Counter(f"{k[0]}-{k[1]}" for k in _used_up(limit) if round(speedup(k), 1) == printed)
    return list(found)


def _used_up(limit: int) -> Iterator[Widths]:
    for a in range(1, FULL[0] + 1):
        for b in range(1, FULL[1] + 1):
            for c in range(1, FULL[2]):
                left = limit - params((a, b, c, 0))
                d = left // (c + 11)
                if left >= 0 and 1 <= d < FULL[3]:
                    yield a, b, c, d


def budgets_table(cells: Path) -> list[str]:
    """Speedups and widths, reweighted cells."""
    with cells.open(newline="") as file:
        rows = [r for r in csv.DictReader(file) if r["reweight"] == "1" and r["finetune"] == "none"]
    lines = [
        "| method | c | speedup here | units kept here | the paper's speedup | conv1-conv2 it allows |"
    ]
    lines.append("|---|---|---|---|---|---|")
    for method in COMPARED:
        for c in VALUES:
            own = [r for r in rows if r["method"] == method and float(r["value"]) == c]
            kept = [tuple(json.loads(r["kept"])[g] for g in GROUPS) for r in own]
            printed = paper_rows()["lenet", method, True, False, float(c)]["flops_speedup"]
            often = "-".join(map(str, Counter(kept).most_common(1)[0][0]))
            ours = mean(speedup(k) for k in kept)
            widths = ", ".join(allowed(c, printed)) or "none"
            lines.append(
                f"| {LABELS[method]} | {c} | {ours:.1f} | {often} | {printed} | {widths} |"
            )
    return lines


def networks(folder: Path, images: Images, count: int) -> Iterator[tuple[str, nn.Module]]:
    """The shipped LeNet, then others: the paper's recipe with ten times the learning rate for a
    tenth of the epochs.
    """
    yield "shipped", shipped_lenet()[0]
    plan = dataclasses.replace(recipe("lenet"), epochs=20, learning_rate=1e-2)
    for seed in range(1, count + 1):
        path = folder / f"lenet-{seed}.safetensors"
        if not path.exists():
            save_weights(train(plan, images, seed)[0], path, {"seed": str(seed)})
        model = LeNet()
        load_weights(model, path)
        yield f"seed {seed}", model.eval()


def networks_table(folder: Path, images: Images, test: Images, count: int) -> list[str]:
    """Share of the dense accuracy that is left, for each network."""
    heads = [f"{LABELS[m]}, c = {c}<br>{'-'.join(map(str, k))}" for m, c, k in RUNS]
    lines = [f"| network | dense | {' | '.join(heads)} |", "|---|---|" + "---|" * len(RUNS)]
    for name, model in networks(folder, images, count):
        dense = 100 * count_correct(model, test) / len(test)
        texts = []
        for method, _, widths in RUNS:
            shares = [100 * top1 / dense for top1 in _top1(model, method, widths, images, test)]
            texts.append(f"{mean(shares):.1f} ± {pstdev(shares):.1f}")
        lines.append(f"| {name} | {dense:.2f} | {' | '.join(texts)} |")
        print(lines[-1], flush=True)
    paper = [
        paper_rows()["lenet", m, True, False, float(c)]["top1"] / PAPER_DENSE for m, c, _ in RUNS
    ]
    return [
        *lines,
        f"| the paper's | {PAPER_DENSE} | {' | '.join(f'{100 * p:.1f}' for p in paper)} |",
    ]


def variants_table(images: Images, test: Images) -> list[str]:
    """Top-1 of each reading, on the shipped LeNet."""
    lines = ["| reading | units kept | top-1 |", "|---|---|---|"]
    for method, label, widths in VARIANTS:
        top1 = list(_top1(shipped_lenet()[0], method, widths, images, test))
        lines.append(
            f"| {label} | {'-'.join(map(str, widths))} | {mean(top1):.1f} ± {pstdev(top1):.1f} |"
        )
        print(lines[-1], flush=True)
    return lines


def _top1(
    model: nn.Module, method: str, widths: Widths, images: Images, test: Images
) -> Iterator[float]:
    budgets = dict(zip(GROUPS, widths, strict=True))
    for seed in SEEDS:
        data = calibration_batches(images, 512, seed)
        small = subprune.prune(
            model, data, method=method, budgets=budgets, seed=seed, ridge=0, progress=False
        ).model
        yield 100 * count_correct(small, test) / len(test)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data-dir", help="folder of the official MNIST files")
    parser.add_argument(
        "--models-dir", type=Path, required=True, help="folder of the trained networks"
    )
    parser.add_argument("--networks", type=int, default=3, help="how many besides the shipped one")
    parser.add_argument(
        "--cells", type=Path, required=True, help="rows exported by `subprune experiment export`"
    )
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.models_dir.mkdir(parents=True, exist_ok=True)
    images, test = (load("mnist", split, options.data_dir) for split in ("train", "test"))
    budgets = budgets_table(options.cells)
    networks_ = networks_table(options.models_dir, images, test, options.networks)
    variants = variants_table(images, test)
    options.output.write_text("\n".join([*budgets, "", *networks_, "", *variants]) + "\n")


if __name__ == "__main__":
    main()
