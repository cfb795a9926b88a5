"""What this machine can do: a description for the record, and rates that limits are computed from."""

from __future__ import annotations

import contextlib
import csv
import os
import platform
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from subprune.program.onednn import crossed


@dataclass(frozen=True)
class Rates:
    """Measured speed of matrix products, in multiply-adds counted as 2 operations per second."""

    single: float
    double: float

    def better(self, other: Rates) -> Rates:
        """The higher of two measurements: noise only ever slows."""
        return Rates(max(self.single, other.single), max(self.double, other.double))


def measure_rates(size: int = 2048) -> Rates:
    """The best of a few square products, in both precisions, by whichever library is faster."""

    def best(dtype: torch.dtype) -> float:
        a = torch.randn(size, size, dtype=dtype)
        ways = (lambda: a @ a, lambda: crossed(a, a))
        return 2 * size**3 / min(timed(way)[0] for way in ways for _ in range(5))

    return Rates(best(torch.float32), best(torch.float64))


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds, and what the work gave."""
    started = time.perf_counter()
    found = work()
    return time.perf_counter() - started, found


def describe() -> dict[str, Any]:
    """For the record."""
    names = [
        line.split(":", 1)[1].strip()
        for line in _lines("/proc/cpuinfo")
        if line.startswith("model name")
    ]
    memory = [
        int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemTotal")
    ]
    return {
        "processor": names[0] if names else platform.processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "vector": torch.backends.cpu.get_cpu_capability(),
        "memory_gb": round(memory[0] / 2**20) if memory else None,
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
    }


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


class Peak:
    """Memory beyond what was there at the start, in bytes."""

    extra = 0


@contextlib.contextmanager
def peak_memory(interval: float = 0.005) -> Iterator[Peak]:
    """Watch the most memory of the process' own inside the block, by looking every few
    milliseconds.

    Looking costs time: work that is watched is not timed.

    Pages of program files, which come in when code runs for the first time, do not count. Linux
    only; elsewhere the result is 0.
    """
    found, done, before = Peak(), threading.Event(), _own_memory()

    def watch() -> None:
        while not done.wait(interval):
            found.extra = max(found.extra, _own_memory() - before)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield found
    finally:
        done.set()
        watcher.join()
        found.extra = max(found.extra, _own_memory() - before)


def _own_memory() -> int:
    found = [
        int(line.split()[1]) * 1024
        for line in _lines("/proc/self/status")
        if line.startswith("RssAnon")
    ]
    return found[0] if found else 0


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """All rows of a file of results; the first says which columns there are."""
    every = list(rows)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(every[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(every)


def as_dict(rates: Rates) -> dict[str, float]:
    return asdict(rates)
