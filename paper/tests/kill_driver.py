"""Helper of test_experiment_kill: runs a tiny grid in a child process and kills it at random
moments.

    python tests/kill_driver.py FOLDER KILLS SEED

A grid that is finished before all kills have hit is followed by another. Prints one JSON line: how
many kills hit a running grid, and for each grid how many rows its store held after each. Children
are forked, so PyTorch is loaded once.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

from subprune_paper.cells import Context, check
from subprune_paper.config import parse_config
from subprune_paper.engine import run_cells
from subprune_paper.grid import cells_of
from subprune_paper.local_engine import LocalEngine
from subprune_paper.store import Store

CONFIG = {
    "name": "tiny",
    "model": "lenet",
    "dataset": "mnist-sample",
    "methods": ["random", "layer-weight-norm"],
    "values": [1, 4, 16],
    "reweight": [False],
    "allocate": "uniform",
    "seeds": [1, 2, 3],
    "batches": 1,
    "batch_size": 32,
    "test": 200,
    "finetune": ["none", "limited"],
    "finetune_epochs": 1,
}


def run(folder: Path) -> None:
    torch.set_num_threads(1)
    config = parse_config(CONFIG)
    with Store(folder / "results.sqlite") as store:
        run_cells(
            config,
            cells_of(config),
            store,
            LocalEngine(1, Context(cache=str(folder / "cache")), "fork"),
        )


def start(folder: Path) -> multiprocessing.Process:
    child = multiprocessing.get_context("fork").Process(target=run, args=(folder,))
    child.start()
    return child  # type: ignore[return-value]


def rows(folder: Path) -> int:
    with Store(folder / "results.sqlite") as store:
        return len(store.rows())


def main(folder: Path, kills: int, seed: int) -> None:
    draw = random.Random(seed)
    check(cells_of(parse_config(CONFIG)), Context())  # reads the data once, for all children
    began = time.monotonic()
    start(folder / "calm").join()
    length = time.monotonic() - began
    hit, after = 0, []
    while hit < kills:
        own = folder / f"killed-{len(after)}"
        after.append([0])
        whole = False
        while not whole:
            child = start(own)
            if hit < kills:
                time.sleep(draw.uniform(0.1, 0.35) * length)
            else:
                child.join()
            if child.is_alive():
                os.kill(child.pid or 0, signal.SIGKILL)
            child.join()
            hit += child.exitcode == -signal.SIGKILL
            whole = child.exitcode == 0
            after[-1].append(rows(own))
    print(json.dumps({"hit": hit, "after": after}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
