"""The first-time path, timed: from a clone to a pruned model of one's own.

    python scripts/first_time.py

Clones this repository into a temporary folder, sets it up as the README says, writes a network, its
weights and inputs as a newcomer would have them, prunes it from the command line, and loads what
came out. The seconds of every step are printed, and those of the processor, which other work on the
machine changes less; downloads of packages are part of the setting up.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

NET = """
from torch import nn


def build() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * 8 * 8, 128), nn.ReLU(), nn.Linear(128, 10),
    )
"""

FILES = """
import numpy, torch
from net import build
torch.manual_seed(0)
torch.save(build().state_dict(), "net.pt")
numpy.savez("inputs.npz", inputs=torch.randn(256, 3, 32, 32).numpy())
"""

LOAD = """
import subprune, torch
from net import build
small = subprune.load(build(), "mine/model.safetensors")
print(sum(p.numel() for p in small.parameters()), tuple(small(torch.randn(2, 3, 32, 32)).shape))
"""

PRUNE = (
    "-m subprune prune --model net.py:build --weights net.pt --data inputs.npz --compression 2 "
    "--output mine"
)


def processor_seconds() -> float:
    """Of all finished steps."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def main() -> None:
    total = 0.0
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        clone, work = place / "subprune", place / "work"
        work.mkdir()
        (work / "net.py").write_text(NET)
        python = str(clone / ".venv/bin/python")
        steps: list[tuple[str, list[str], Path]] = [
            ("clone", ["git", "clone", "-q", str(ROOT), str(clone)], place),
            ("set up, and the demo", ["make", "demo"], clone),
            ("a network, weights, inputs", [python, "-c", FILES], work),
            ("prune it", [python, *PRUNE.split()], work),
            ("load the result", [python, "-c", LOAD], work),
        ]
        for name, words, where in steps:
            started, before = time.perf_counter(), processor_seconds()
            ran = subprocess.run(words, cwd=where, capture_output=True, text=True)
            seconds = time.perf_counter() - started
            total += seconds
            spent = processor_seconds() - before
            print(f"{name:<28} {seconds:7.1f} s, processor {spent:7.1f} s", flush=True)
            if ran.returncode:
                sys.exit(ran.stdout + ran.stderr)
    print(f"{'all of it':<28} {total:7.1f} s, processor {processor_seconds():7.1f} s")


if __name__ == "__main__":
    main()
