"""How many cores there are for this process: containers show all of the machine's, and grant few."""

from __future__ import annotations

import os
from pathlib import Path

import torch

__all__ = ["granted", "use_threads"]

_GROUPS = Path("/sys/fs/cgroup")


def use_threads(wanted: int | None) -> None:
    """Let PyTorch use `wanted` threads from here on; None: its own number, if the cores allow it."""
    present = torch.get_num_threads()
    number = min(present, granted()) if wanted is None else wanted
    if number != present:
        torch.set_num_threads(number)


def granted(groups: Path = _GROUPS) -> int:
    """The cores that the process may run on, or fewer if its container is granted less time."""
    count = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    quota = _quota(groups)
    return count if quota is None else max(1, min(count, int(quota)))


def _quota(groups: Path) -> float | None:
    """Cores by the share of time that a container is granted; None: as many as there are.

    Both kinds of control groups say how many microseconds out of how many may be used.
    """
    try:
        if (groups / "cpu.max").is_file():
            used, period = (groups / "cpu.max").read_text().split()
        else:
            used = (groups / "cpu" / "cpu.cfs_quota_us").read_text()
            period = (groups / "cpu" / "cpu.cfs_period_us").read_text()
        share = float(used) / float(period)  # "max", or below zero: without a limit
    except (OSError, ValueError, ZeroDivisionError):
        return None
    return share if share > 0 else None
