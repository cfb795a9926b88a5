"""Controls behind docs/results-lenet.md: other budgets at c = 8 and 16, and the dense network
fine-tuned on 512 images.

    python experiments/lenet_controls.py --data-dir DATA

Writes one row per seed to experiments/results/lenet-controls.csv, which `lenet_findings.py` reads.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import subprune
from subprune.measure.measurements import count_parameters
from subprune.zoo.correct import count_correct
from subprune.zoo.datasets import Images, calibration_batches, load
from subprune.zoo.models import shipped_lenet
from subprune_paper.tables import write_csv
from subprune_paper.training import finetune_recipe, fit

GROUPS = ("conv1", "conv2", "fc1", "fc2")
PAPER = "the paper's convolutions"
BUDGETS = {
    "equal accuracy": ((1, 5, 49, 21), (1, 3, 38, 16)),
    "one channel more": ((2, 5, 49, 21), (2, 3, 38, 16)),
    PAPER: ((2, 6, 41, 22), (2, 4, 29, 17)),
}
"""By what they are, at c = 8 and 16; the last have the conv1-conv2 that the paper's speedups allow.
"""
METHODS = ("asym-in-change", "seq-in-change", "layer-in-change")
SEEDS = (42, 43, 44, 45, 46)
OUTPUT = Path(__file__).resolve().parent / "results" / "lenet-controls.csv"


Row = dict[str, Any]


def measured(model: nn.Module, test: Images, **setting: Any) -> Row:
    """A row: the setting, and what the model reaches."""
    correct = count_correct(model, test)
    top1 = round(100 * correct / len(test), 2)
    return {
        **setting,
        "parameters": count_parameters(model),
        "correct": correct,
        "images": len(test),
        "top1": top1,
    }


def other_budgets(dense: nn.Module, train: Images, test: Images, seed: int) -> Iterator[Row]:
    """Every budget without fine-tuning; the paper's convolutions also fine-tuned on all images."""
    data = calibration_batches(train, 512, seed)
    for control, both in BUDGETS.items():
        for counts in both:
            budgets, kept = dict(zip(GROUPS, counts, strict=True)), "-".join(map(str, counts))
            for method, reweight in (*((m, True) for m in METHODS), ("layer-in-change", False)):
                small = subprune.prune(
                    dense,
                    data,
                    method=method,
                    budgets=budgets,
                    fit="least-squares" if reweight else "keep",
                    seed=seed,
                    progress=False,
                ).model
                own = {
                    "control": control,
                    "method": method,
                    "reweight": int(reweight),
                    "seed": seed,
                    "kept": kept,
                }
                yield measured(small, test, **own, finetune="none")
                if control == PAPER:
                    fit(small, train, finetune_recipe("lenet"), seed)
                    yield measured(small, test, **own, finetune="full")


def tuned_dense(dense: nn.Module, train: Images, test: Images, seed: int) -> Row:
    """The network with nothing pruned, fine-tuned on the images that prune it."""
    model = copy.deepcopy(dense)
    # as in a cell of the grid
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))
    fit(model, train.subset(order[:512]), finetune_recipe("lenet"), seed)
    own = {
        "control": "dense",
        "method": "dense",
        "reweight": 0,
        "seed": seed,
        "kept": "6-16-120-84",
    }
    return measured(model, test, **own, finetune="limited")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data-dir", help="folder of the official MNIST files")
    options = parser.parse_args()
    dense, _ = shipped_lenet()
    train, test = (load("mnist", split, options.data_dir) for split in ("train", "test"))
    rows: list[Row] = []
    for seed in SEEDS:
        rows += [*other_budgets(dense, train, test, seed), tuned_dense(dense, train, test, seed)]
        print(f"seed {seed} done", flush=True)
    print(f"wrote {write_csv(rows, OUTPUT).name}")


if __name__ == "__main__":
    main()
