"""A whole `prune` call with one and with two threads, on a quiet machine and beside a process that
never rests.

Threads that wait for each other inside small operations are slower than one, as soon as somebody
else takes a part of a core.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from machine import timed
from workloads import QUICK, Place, paper_layers

import subprune

IMAGES = 8 if QUICK else 128
REPEATS = 1 if QUICK else 2


@contextlib.contextmanager
def neighbour() -> Iterator[subprocess.Popen[bytes]]:
    """A process that takes all of one core it can get, and ends with this one at the latest."""
    words = f"import os\nwhile os.getppid() == {os.getpid()}: pass"
    process = subprocess.Popen([sys.executable, "-c", words])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def compare(place: Place) -> list[dict[str, Any]]:
    """Seconds of ResNet56, the lowest of a few, for both numbers of threads, quiet and not."""
    model, data = place.network("resnet56"), place.images("cifar10", "train", IMAGES)
    only = paper_layers("resnet56", model)

    def work(threads: int, images: Any = data) -> Any:
        quiet: Any = {"time_calls": False, "progress": False, "threads": threads}
        how: Any = {"method": "asym-in-change", "allocate": "uniform", "compression": 2}
        return subprune.prune(model, images, only=only, **how, **quiet)

    work(2, data[:4])  # lazy imports of PyTorch
    rows = []
    for name, around in (("quiet", contextlib.nullcontext), ("beside a busy process", neighbour)):
        with around():
            one, two = (min(timed(lambda n=n: work(n))[0] for _ in range(REPEATS)) for n in (1, 2))
        rows.append({"machine": name, "one": one, "two": two, "ratio": two / one})
    return rows
