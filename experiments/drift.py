"""ResNet56 with and without the refit of layers whose inputs drift, on held-out training images.

    python experiments/drift.py --data-dir DATA --weights resnet56-cifar10.safetensors

Calibrated on 512 training images drawn by seed, asym-in-change; judged on 2,000 other training
images, never on test images. Rows go to experiments/results/drift.csv.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from csv_rows import write_rows
from torch import Tensor, nn

import subprune
from subprune.zoo.datasets import load
from subprune.zoo.models import build
from subprune.zoo.weights import load_weights

ROWS = Path(__file__).parent / "results" / "drift.csv"
CALIBRATED, JUDGED = slice(0, 512), slice(2000, 4000)  # of the images in the order of the seed


@torch.no_grad()
def top1(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    answers = torch.cat([model(part).argmax(1) for part in images.split(500)])
    return round(100 * float((answers == labels).double().mean()), 2)


def rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    model = build("resnet56").eval()
    load_weights(model, options.weights)
    train = load("cifar10", "train", options.data_dir)
    for seed in options.seeds:
        order = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))
        images, judged = train.inputs(order[CALIBRATED]), train.inputs(order[JUDGED])
        labels = train.labels[order[JUDGED]]
        for ratio in options.ratios:
            for drift in (False, True):
                started = time.process_time()
                result = subprune.prune(
                    model,
                    images,
                    compression=ratio,
                    method="asym-in-change",
                    drift=drift,
                    seed=seed,
                    n_samples=None,
                    time_calls=False,
                    progress=False,
                )
                seconds = time.process_time() - started
                yield {
                    "compression": ratio,
                    "seed": seed,
                    "drift": int(drift),
                    "top1": top1(result.model, judged, labels),
                    "agreement_reported": round(100 * result.report.agreement, 2),
                    "cpu_seconds": round(seconds, 1),
                    "machine": f"{platform.machine()}, {torch.get_num_threads()} threads, "
                    f"torch {torch.__version__}",
                }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--ratios", type=float, nargs="+", default=[2, 4, 8, 16, 32])
    parser.add_argument("--seeds", type=int, nargs="+", default=[42])
    written = []
    for row in rows(parser.parse_args()):
        print(row, flush=True)
        written.append(row)
    write_rows(ROWS, written)


if __name__ == "__main__":
    main()
