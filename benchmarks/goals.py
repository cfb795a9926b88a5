"""One goal after another: what `calibrate` does once, and what every goal takes then.

    python benchmarks/goals.py --data-dir DATA --weights RESNET56 [--images 512] [--ratios 2 4 8]

CPU seconds of one thread, of the default method on ResNet56 at every ratio by itself, of
`subprune.calibrate`, and of every ratio after it. The models of both ways are compared, weight by
weight. Rows go to benchmarks/results/goals.csv.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from machine import describe, write_rows
from torch import nn

import subprune
from subprune.zoo.datasets import load
from subprune.zoo.models import build
from subprune.zoo.weights import load_weights

ROWS = Path(__file__).parent / "results" / "goals.csv"
QUIET: dict[str, Any] = {"n_samples": None, "time_calls": False, "progress": False, "threads": 1}


def timed(work: Any) -> tuple[float, Any]:
    started = time.process_time()
    made = work()
    return time.process_time() - started, made


def equal(a: nn.Module, b: nn.Module) -> bool:
    """Whether two models are the same to the last bit."""
    pairs = zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    return all(torch.equal(x, y) for x, y in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--ratios", type=float, nargs="+", default=[2, 4, 8])
    options = parser.parse_args()
    model = build("resnet56").eval()
    load_weights(model, options.weights)
    train = load("cifar10", "train", options.data_dir)
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(42))
    data = train.inputs(order[: options.images])
    subprune.prune(model, data[:8], compression=2, **QUIET)  # lazy imports of PyTorch

    once, ready = timed(lambda: subprune.calibrate(model, data, **QUIET))
    rows = []
    for ratio in options.ratios:
        goal: dict[str, Any] = {"compression": ratio, **QUIET}
        alone, one = timed(lambda goal=goal: subprune.prune(model, data, **goal))
        after, two = timed(lambda goal=goal: subprune.prune(model, ready, **goal))
        row = {
            "network": "resnet56",
            "images": options.images,
            "compression": ratio,
            "by itself": round(alone, 1),
            "calibrate": round(once, 1),
            "after it": round(after, 1),
            "same model": equal(one.model, two.model),
            "machine": f"{describe()['processor']}, CPU seconds of one thread",
        }
        print(row, flush=True)
        rows.append(row)
    write_rows(ROWS, rows)


if __name__ == "__main__":
    main()
