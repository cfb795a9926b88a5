"""Commands that torchrun starts several times, once for each rank of a job."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

__all__ = ["rank_here", "started_job"]


def rank_here() -> int:
    """This process's rank in the job that it was started for; 0 without one."""
    number = os.environ.get("RANK", "0")
    return int(number) if number.isdigit() and "WORLD_SIZE" in os.environ else 0


@contextlib.contextmanager
def started_job() -> Iterator[int]:
    """Join the job that torchrun has started this process for, if it has; this process's rank."""
    if os.environ.get("WORLD_SIZE", "1") == "1" or "MASTER_ADDR" not in os.environ:
        yield 0
        return
    import torch
    import torch.distributed as dist

    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield dist.get_rank()
    finally:
        dist.destroy_process_group()
