"""Fine-tuning of a pruned LeNet: the compiled loop against PyTorch's, one thread, both from one
run.

    python benchmarks/lenet_finetune.py [--steps 40] [--repeats 5]

Prints milliseconds per step of 128 images at several widths, the best of some alternating repeats,
and the ratio.
"""

from __future__ import annotations

import argparse
import dataclasses

import torch
from torch import nn

from subprune.errors import SubpruneError
from subprune.zoo.datasets import Images, load
from subprune.zoo.models import LeNet
from subprune_paper import compiled
from subprune_paper.training import TrainingRecipe, finetune_recipe, fit

WIDTHS = ((6, 16, 120, 84), (2, 10, 94, 59), (1, 5, 49, 21), (6, 2, 24, 13), (2, 1, 10, 8))
"""The dense network, and budgets about those of the lenet-mnist grid at c = 2, 8, 32 and 128."""


def lenet(conv1: int, conv2: int, fc1: int, fc2: int) -> LeNet:
    model = LeNet()
    model.conv1, model.conv2 = nn.Conv2d(1, conv1, 3), nn.Conv2d(conv1, conv2, 3)
    model.fc1, model.fc2, model.fc3 = (
        nn.Linear(25 * conv2, fc1),
        nn.Linear(fc1, fc2),
        nn.Linear(fc2, 10),
    )
    return model


def seconds(widths: tuple[int, int, int, int], images: Images, plan: TrainingRecipe) -> float:
    """Of one epoch."""
    torch.manual_seed(0)
    return fit(lenet(*widths), images, plan, seed=0)[0].seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    if not compiled.available():
        raise SubpruneError(
            "there is no C compiler on this machine, so there is nothing to compare."
        )
    torch.set_num_threads(1)
    sample = load("mnist-sample", "train")
    images = sample.subset(torch.arange(128 * options.steps) % len(sample))
    plan = dataclasses.replace(finetune_recipe("lenet"), epochs=1)
    print("| widths | PyTorch, ms per step | compiled | ratio |\n|---|---|---|---|")
    for widths in WIDTHS:
        best = {False: float("inf"), True: float("inf")}
        for _ in range(options.repeats):
            for fast in best:
                best[fast] = min(
                    best[fast], seconds(widths, images, dataclasses.replace(plan, compiled=fast))
                )
        slow, fast_one = (1e3 * best[fast] / options.steps for fast in (False, True))
        print(
            f"| {'-'.join(map(str, widths))} | {slow:.2f} | {fast_one:.2f} | {slow / fast_one:.0f} |"
        )


if __name__ == "__main__":
    main()
