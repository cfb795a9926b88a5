"""Helper of test_experiment_ray: a tiny grid on Ray, while something goes wrong.

    python tests/ray_driver.py workers FOLDER     with 1, 2 and 4 workers, a store each
    python tests/ray_driver.py speed FOLDER       the same of a larger grid, and no other processes' time
    python tests/ray_driver.py plain FOLDER       with 2 workers, on this machine
    python tests/ray_driver.py node FOLDER        on a cluster of two nodes, one of which is lost

Prints one JSON line of what it did. `speed` counts the CPU seconds of each worker: those of the
busiest are how long the grid takes where there are as many free cores as workers, whatever else runs
on the machine that counted them.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from kill_driver import CONFIG, rows

from subprune_paper.cells import Context
from subprune_paper.config import parse_config
from subprune_paper.engine import Summary, run_cells
from subprune_paper.grid import cells_of
from subprune_paper.ray_engine import RayEngine
from subprune_paper.store import Store

QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}


SPEED = {**CONFIG, "seeds": list(range(1, 9)), "finetune": ["none"]}
WORKERS = (1, 2, 4)


def grid(folder: Path, workers: int, content: dict[str, Any] = CONFIG) -> Summary:
    """Run what is not finished, on the Ray that is there, or one of this machine."""
    config = parse_config(content)
    with Store(folder / "results.sqlite") as store:
        engine = RayEngine(workers, Context(cache=str(folder / "cache")))
        return run_cells(config, cells_of(config), store, engine)


def with_workers(folder: Path) -> dict[str, Any]:
    import ray

    ray.init(num_cpus=4, include_dashboard=False, **QUIET)
    grid(folder / "warm", 4)  # workers are started, and have imported PyTorch
    seconds = {}
    for workers in WORKERS:
        began = time.perf_counter()
        summary = grid(folder / str(workers), workers)
        seconds[workers] = round(time.perf_counter() - began, 2)
        assert not summary.failed, summary.failed
    ray.shutdown()
    return {"seconds": seconds}


def speed(folder: Path) -> dict[str, Any]:
    """By number of workers: the clock, and CPU seconds of each process of Ray's that worked."""
    import ray

    ray.init(num_cpus=max(WORKERS), include_dashboard=False, **QUIET)
    grid(folder / "warm", max(WORKERS), {**SPEED, "seeds": [1, 2]})
    told = {}
    for workers in WORKERS:
        began, before, own = time.perf_counter(), worked(), time.process_time()
        summary = grid(folder / str(workers), workers, SPEED)
        assert not summary.failed, summary.failed
        after = {pid: round(cpu - before.get(pid, 0.0), 1) for pid, cpu in worked().items()}
        told[workers] = {
            "clock": round(time.perf_counter() - began, 1),
            "workers": sorted((cpu for cpu in after.values() if cpu >= 0.2), reverse=True),
            "driver": round(time.process_time() - own, 1),
            "cells": summary.done,
        }
    ray.shutdown()
    return {"seconds": told, "cores": os.cpu_count(), "load": round(os.getloadavg()[0], 1)}


def worked() -> dict[int, float]:
    """CPU seconds so far of each of Ray's workers, by process."""
    tick, seconds = os.sysconf("SC_CLK_TCK"), {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if b"ray::" in (folder / "cmdline").read_bytes():
                user, system = (folder / "stat").read_text().rpartition(")")[2].split()[11:13]
                seconds[int(folder.name)] = (int(user) + int(system)) / tick
        except OSError:  # it has ended
            continue
    return seconds


def lost_node(folder: Path) -> dict[str, Any]:
    """The node goes when some rows are there; what it was at is run again on the other."""
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    lost = cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, **QUIET)
    before: list[int] = []

    def lose() -> None:
        while rows(folder) < 6:
            time.sleep(0.05)
        before.append(rows(folder))
        cluster.remove_node(lost, allow_graceful=False)

    folder.mkdir(exist_ok=True)
    losing = threading.Thread(target=lose, daemon=True)
    losing.start()
    summary = grid(folder, 2)
    losing.join(60)
    ray.shutdown()
    cluster.shutdown()
    return {"rows before": before, "failed": summary.failed, "done": summary.done}


def main(what: str, folder: Path) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if what == "workers":
        told = with_workers(folder)
    elif what == "speed":
        told = speed(folder)
    elif what == "node":
        told = lost_node(folder)
    else:
        told = {"failed": grid(folder, 2).failed}
    print(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
