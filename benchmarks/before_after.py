"""The workloads of `make bench` in two checkouts of this project, in turn, on the same machine.

    python benchmarks/before_after.py --old FOLDER --new FOLDER --data-dir DATA --models-dir MODELS
    [--only PART] [--repeats 3] [--cpu]

Every workload runs in a process of its own, by the benchmarks of its own checkout. The lowest of
the repeats counts: whatever else the machine does can only add to it. On a machine that is busy all
the time, --cpu counts CPU seconds of one thread instead. Rows go to
benchmarks/results/before-after.csv, with the commits of both; those of workloads that were not
asked for stay. A workload that one of them does not have is left out.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROWS = Path(__file__).parent / "results" / "before-after.csv"


# The benchmarks of either checkout, with the clock that they read counting CPU seconds, and work of
# less than a second done several times: a single run of it says little.
CPU_CLOCK = """
import pathlib, runpy, sys, time
time.perf_counter = time.process_time
del sys.argv[0]
sys.path.insert(0, str(pathlib.Path(sys.argv[0]).parent))
import machine
once = machine.timed

def timed(work):
    seconds, outcome = once(work)
    again = [once(work)[0] for _ in range(10 if seconds < 1 else 0)]
    return min([seconds, *again]), outcome

machine.timed = timed
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def measured(checkout: Path, part: str, options: argparse.Namespace) -> dict[str, Any]:
    """One workload in one process, by the checkout's own code."""
    paths = [str(checkout.resolve()), str((checkout / "paper").resolve())]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    script = str((checkout / "benchmarks/run.py").resolve())
    words = [sys.executable, script, "--child", part]
    if options.cpu:
        environment["OMP_NUM_THREADS"] = "1"
        words = [sys.executable, "-c", CPU_CLOCK, script, "--child", part]
    for flag, folder in (("--data-dir", options.data_dir), ("--models-dir", options.models_dir)):
        words += [flag, str(folder.resolve())] if folder else []
    run = subprocess.run(
        words, env=environment, cwd=checkout, stdout=subprocess.PIPE, text=True, check=True
    )
    return dict(json.loads(run.stdout.splitlines()[-1]))


def known(checkout: Path) -> set[str]:
    """The workloads that a checkout has."""
    script = "import json, sys; sys.path.insert(0, 'benchmarks'); import workloads; "
    paths = [str(checkout.resolve()), str((checkout / "paper").resolve())]
    run = subprocess.run(
        [sys.executable, "-c", f"{script} print(json.dumps(list(workloads.WORKLOADS)))"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        cwd=checkout,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return set(json.loads(run.stdout.splitlines()[-1]))


def commit(checkout: Path) -> str:
    """Which commit a checkout is of, and whether it was changed; empty if it is not known."""
    words = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--exclude=*"]
    ran = subprocess.run(words, capture_output=True, text=True, check=False)
    return ran.stdout.strip()


def row(part: str, runs: dict[str, list[dict[str, Any]]], cpu: bool) -> dict[str, Any]:
    """The lowest seconds and peak of each checkout, and their ratio."""
    old, new = (min(run["seconds"] for run in runs[name]) for name in ("old", "new"))
    before, after = (min(run["peak"] for run in runs[name]) / 1e9 for name in ("old", "new"))
    machine = runs["new"][0]["machine"]
    return {
        "workload": part,
        "old seconds": round(old, 3),
        "new seconds": round(new, 3),
        "ratio": round(new / old, 3),
        "old peak GB": round(before, 2),
        "new peak GB": round(after, 2),
        "repeats": len(runs["new"]),
        "clock": "CPU, 1 thread" if cpu else "wall",
        "machine": f"{machine['processor']}, {machine['cores']} cores",
    }


def main() -> None:
    from machine import write_rows
    from workloads import WORKLOADS

    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--old", type=Path, required=True)
    parser.add_argument("--new", type=Path, required=True)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--models-dir", type=Path)
    parser.add_argument("--only", action="append", help="workloads whose names begin so")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cpu", action="store_true", help="CPU seconds of one thread")
    options = parser.parse_args()
    both = known(options.old) & known(options.new)
    asked = tuple(options.only or [""])
    parts = [w for w in WORKLOADS if w in both and w.startswith(asked)]
    rows: dict[str, dict[str, Any]] = {}
    if ROWS.is_file():
        with ROWS.open(newline="") as file:
            rows = {r["workload"]: r for r in csv.DictReader(file)}
    for part in parts:
        runs: dict[str, list[dict[str, Any]]] = {"old": [], "new": []}
        for _ in range(options.repeats):
            for name, checkout in (("old", options.old), ("new", options.new)):
                runs[name].append(measured(checkout, part, options))
        commits = {"old": commit(options.old), "new": commit(options.new)}
        rows[part] = {**row(part, runs, options.cpu), **commits}
        print(rows[part], flush=True)
        columns = dict.fromkeys(rows[part], "")  # of the newest kind of row, and in its order
        write_rows(ROWS, ({**columns, **rows[w]} for w in WORKLOADS if w in rows))


if __name__ == "__main__":
    main()
