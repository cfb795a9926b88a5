"""CPU seconds of whole prunings in two checkouts of this project, alternating, in processes of their own.

    python benchmarks/before_after.py --old FOLDER --new FOLDER --data-dir DATA --weights RESNET56

One thread, so that the figures say what was computed and not how the cores were shared. Rows go to
benchmarks/results/before-after.csv.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path

ROWS = Path(__file__).parent / "results" / "before-after.csv"

MEASURE = """
import json, sys, time, torch, subprune
try:
    from subprune.zoo.datasets import load
    from subprune.zoo.models import build, shipped_lenet
    from subprune.zoo.weights import load_weights
except ImportError:  # before the zoo was a room of its own
    from subprune.experiments.datasets import load
    from subprune.experiments.models import build, load_weights, shipped_lenet
data, weights = sys.argv[1:]
resnet = build("resnet56").eval()
load_weights(resnet, weights)
images = load("cifar10", "train", data).inputs()[:256]
lenet, digits = shipped_lenet()[0], load("mnist-sample", "train").inputs()[:512]
plain = {"progress": False, "time_calls": False, "n_samples": None, "compression": 4}
layer = {**plain, "method": "layer-in-change", "allocate": "uniform", "ridge": 0}
calls = {
    "LeNet, default, three times": lambda: [subprune.prune(lenet, digits, **plain) for _ in "123"],
    "ResNet56, default": lambda: subprune.prune(resnet, images, **plain),
    "ResNet56, layer form, equal fractions": lambda: subprune.prune(resnet, images, **layer),
}
subprune.prune(lenet, digits[:32], **plain)  # what is loaded at the first call
seconds = {}
for name, call in calls.items():
    started = time.process_time()
    call()
    seconds[name] = time.process_time() - started
print(json.dumps(seconds))
"""


def measured(checkout: Path, data: Path, weights: Path) -> dict[str, float]:
    """CPU seconds of every call in one process."""
    paths = [str(checkout.resolve()), str((checkout / "paper").resolve())]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-c", MEASURE, str(data.resolve()), str(weights.resolve())]
    run = subprocess.run(
        words, env=environment, cwd=checkout, capture_output=True, text=True, check=True
    )
    seconds: dict[str, float] = json.loads(run.stdout.splitlines()[-1])
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    for name in ("--old", "--new", "--data-dir", "--weights"):
        parser.add_argument(name, type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    runs: dict[str, list[dict[str, float]]] = {"old": [], "new": []}
    for _ in range(options.repeats):
        for name, checkout in (("old", options.old), ("new", options.new)):
            runs[name].append(measured(checkout, options.data_dir, options.weights))
    rows = []
    for call in runs["old"][0]:
        old, new = (statistics.median(run[call] for run in runs[name]) for name in ("old", "new"))
        row = {
            "call": call,
            "old": round(old, 2),
            "new": round(new, 2),
            "ratio": round(new / old, 3),
        }
        rows.append({**row, "repeats": options.repeats, "machine": platform.machine()})
        print(f"{call:40} {old:6.2f} s → {new:6.2f} s   ratio {new / old:.3f}")
    with ROWS.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
