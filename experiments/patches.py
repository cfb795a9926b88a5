"""Random patches instead of all of them: what the choice costs in accuracy.

    python experiments/patches.py --data-dir DATA [--weights RESNET56]

AsymInChange, reweighted, 512 training images without labels, budgets by error curves: LeNet with
five seeds, and ResNet56 with one where its weights are given, judged on the test images. Rows go to
experiments/results/patches.csv; a row that is there already is not made again.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from csv_rows import add_row, read_rows
from torch import nn

import subprune
from subprune.zoo.correct import count_correct
from subprune.zoo.datasets import calibration_batches, load
from subprune.zoo.models import build, shipped_lenet
from subprune.zoo.weights import load_weights

OUTPUT = Path(__file__).resolve().parent / "results" / "patches.csv"
RATIOS = (2, 4, 8, 16, 32)
KEY = ("model", "patches", "compression", "seed")


def settings(
    weights: Path | None,
) -> list[tuple[str, str, nn.Module, tuple[int, ...], dict[str, Any]]]:
    """Networks with their images, seeds and further options."""
    every: list[tuple[str, str, nn.Module, tuple[int, ...], dict[str, Any]]] = [
        ("lenet", "mnist", shipped_lenet()[0], (42, 43, 44, 45, 46), {})
    ]
    if weights is not None:
        model = build("resnet56").eval()
        load_weights(model, weights)
        every.append(("resnet56", "cifar10", model, (42,), {"only": ["layer*.conv1"]}))
    return every


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--weights", type=Path, help="of ResNet56")
    options = parser.parse_args()
    known = {tuple(row[k] for k in KEY) for row in read_rows(OUTPUT)}
    for name, images, model, seeds, more in settings(options.weights):
        train, test = (load(images, part, options.data_dir) for part in ("train", "test"))
        cells = [(p, c, s) for s in seeds for c in RATIOS for p in ("all", "random")]
        for patches, ratio, seed in cells:
            if (name, patches, str(ratio), str(seed)) in known:
                continue
            started = time.process_time()
            result = subprune.prune(
                model,
                calibration_batches(train, 512, seed),
                compression=ratio,
                method="asym-in-change",
                patches=patches,
                seed=seed,
                time_calls=False,
                progress=False,
                **more,
            )
            seconds = time.process_time() - started
            row = {
                **dict(zip(KEY, (name, patches, ratio, seed), strict=True)),
                "top1": round(100 * count_correct(result.model, test) / len(test), 2),
                "cpu_seconds": round(seconds, 1),
            }
            print(row, flush=True)
            add_row(OUTPUT, row)


if __name__ == "__main__":
    main()
