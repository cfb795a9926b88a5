"""Jobs of several processes on this machine, for tests: forked, with a store on 127.0.0.1."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

LONGEST = 120.0  # seconds that a job may take


@dataclass(frozen=True)
class Ended:
    """How one rank ended."""

    code: int | None  # of the process; below zero: by a signal
    outcome: Any = None  # of the work: tensors, numbers and words
    error: str = ""
    at: float = 0.0  # by the clock that all processes share


@contextlib.contextmanager
def started(
    count: int, work: Callable[..., Any], folder: Path, *args: Any
) -> Iterator[list[multiprocessing.process.BaseProcess]]:
    """Processes that do the work, each with its rank; those that still run at the end are killed."""
    port, context = _free_port(), multiprocessing.get_context("fork")
    processes = [
        context.Process(target=_rank, args=(rank, count, port, work, folder, *args))
        for rank in range(count)
    ]
    for process in processes:
        process.start()
    try:
        # After the forks: its thread may hold locks that a child would never see released.
        store = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
        yield processes
        del store
    finally:
        for process in processes:
            process.kill()
            process.join()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def job(count: int, work: Callable[..., Any], folder: Path, *args: Any) -> list[Ended]:
    """How each rank of a job has ended, all of them within the time that a job may take."""
    until = time.monotonic() + LONGEST
    with started(count, work, folder, *args) as processes:
        for process in processes:
            process.join(max(0.0, until - time.monotonic()))
        codes = [process.exitcode for process in processes]
    return [_ended(folder / f"rank-{rank}.pt", code) for rank, code in enumerate(codes)]


def _ended(path: Path, code: int | None) -> Ended:
    known = torch.load(path, weights_only=True) if path.exists() else {}
    path.unlink(missing_ok=True)
    return Ended(code, **known)


def _rank(
    rank: int, count: int, port: int, work: Callable[..., Any], folder: Path, *args: Any
) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=count)
    ended: dict[str, Any] = {}
    try:
        ended["outcome"] = work(rank, *args)
    except Exception as error:
        ended["error"] = f"{type(error).__name__}: {error}"
    ended["at"] = time.monotonic()
    folder.mkdir(exist_ok=True)
    torch.save(ended, folder / f"rank-{rank}.new")
    (folder / f"rank-{rank}.new").rename(folder / f"rank-{rank}.pt")
    os._exit(3 if "error" in ended else 0)  # without waiting for ranks that are gone
