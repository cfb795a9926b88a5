"""Accuracy curves of ResNet56 against the same number of plain evaluations of the whole model.

    python benchmarks/curves.py --data-dir DATA --weights resnet56-cifar10.safetensors [--images
    10000] [--every 1]

Prints seconds for the curves (22 fractions per layer, only what lies after the layer rerun, on
values kept from one dense pass), seconds for one plain evaluation times the number of (layer,
fraction) pairs, and the ratio, all from one run. `--images` and `--every` (only every n-th layer)
make it shorter; what was left out is printed.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch

from subprune.budget.accuracy import FRACTIONS, accuracy_curves
from subprune.data.batches import batches
from subprune.loop.looks import curves
from subprune.loop.recipe import Recipe
from subprune.measure.measurements import accuracy
from subprune.methods import find_method
from subprune.select.selector import Setting
from subprune.statistics.calibration import Calibration
from subprune.structure.groups import in_order
from subprune.zoo.datasets import load
from subprune.zoo.models import build
from subprune.zoo.weights import load_weights


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--every", type=int, default=1)
    options = parser.parse_args()
    model = build("resnet56").eval()
    load_weights(model, options.weights)
    train = load("cifar10", "train", options.data_dir)
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(42))
    chosen = order[512 : 512 + options.images]
    calibration = Calibration.of(model, batches(train.inputs(order[:512]), model))
    verify = calibration.on(
        batches((train.inputs(chosen), train.labels[chosen].long()), model, None)
    )
    groups = in_order(calibration.structure.inner())
    row = find_method("layer-in-change")
    recipe = Recipe(row.target, row.selector, row.fit.plain(), name=row.name)
    picked = groups[options.every // 2 :: options.every]
    times = []  # first, while the process is as any other
    for _ in range(3):
        started = time.perf_counter()
        accuracy(model, verify.batches)
        times.append(time.perf_counter() - started)
    started = time.perf_counter()
    setting = Setting(calibration, tuple(picked))
    curves(setting, recipe)
    # done by the curves too, and not part of evaluating them
    ranking = time.perf_counter() - started
    started = time.perf_counter()
    accuracy_curves(setting, recipe, verify)
    ours = time.perf_counter() - started - ranking
    pairs = len(picked) * (len(FRACTIONS) - 1)
    plain = min(times) * pairs
    print(
        f"{len(picked)} of {len(groups)} layers, {options.images} images, {torch.get_num_threads()} threads"
    )
    print(f"ranking and statistics: {ranking:.1f} s (not counted)")
    print(
        f"curves: {ours:.1f} s; {pairs} plain evaluations: {plain:.1f} s; ratio {ours / plain:.3f}"
    )


if __name__ == "__main__":
    main()
