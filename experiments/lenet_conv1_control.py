"""LeNet with the paper's budgets at c = 8 and 16, and with one channel more in conv1: what that one channel does.

    python experiments/lenet_conv1_control.py --data-dir DATA

Prints mean and standard deviation of top-1 over five seeds; the numbers stand in docs/results-lenet.md.
"""

from __future__ import annotations

import argparse
from statistics import mean, pstdev

import subprune
from subprune.experiments.datasets import calibration_batches, load
from subprune.experiments.models import shipped_lenet
from subprune.experiments.training import count_correct

GROUPS = ("conv1", "conv2", "fc1", "fc2")
BUDGETS = ((1, 3, 38, 16), (2, 3, 38, 16), (1, 5, 49, 21), (2, 5, 49, 21))
METHODS = ("asym-in-change", "seq-in-change", "layer-in-change")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data-dir", help="folder of the official MNIST files")
    options = parser.parse_args()
    model, _ = shipped_lenet()
    train, test = (load("mnist", split, options.data_dir) for split in ("train", "test"))
    for counts in BUDGETS:
        budgets = dict(zip(GROUPS, counts, strict=True))
        for method in METHODS:
            top1 = []
            for seed in (42, 43, 44, 45, 46):
                data = calibration_batches(train, 512, seed)
                small = subprune.prune(model, data, method=method, budgets=budgets, seed=seed, progress=False).model
                top1.append(100 * count_correct(small, test) / len(test))
            print(f"{'-'.join(map(str, counts))} {method}: {mean(top1):.2f} ± {pstdev(top1):.2f}", flush=True)


if __name__ == "__main__":
    main()
