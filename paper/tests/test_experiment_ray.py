"""Grids on Ray: any number of workers fills the same store, and no fault loses a finished cell."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from kill_driver import CONFIG, rows
from test_experiment_kill import contents

from subprune_paper.cells import Context
from subprune_paper.config import parse_config
from subprune_paper.engine import run_cells
from subprune_paper.grid import cells_of
from subprune_paper.local_engine import LocalEngine
from subprune_paper.store import Store

pytest.importorskip("ray", reason="Ray is not installed (extra subprune-paper[ray])")
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the calm run forks its worker")

DRIVER = Path(__file__).with_name("ray_driver.py")
LONGEST = 300


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The rows of a run without Ray, which nobody disturbed."""
    folder, config = tmp_path_factory.mktemp("calm"), parse_config(CONFIG)
    with Store(folder / "results.sqlite") as store:
        engine = LocalEngine(1, Context(cache=str(folder / "cache")), "fork")
        run_cells(config, cells_of(config), store, engine)
    return _tries_aside(contents(folder))


def _tries_aside(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A cell that a lost worker was at is tried once more; rows come as they are finished."""
    plain = [{k: v for k, v in row.items() if k != "attempts"} for row in found]
    return sorted(plain, key=lambda row: str(row["key"]))


def started(what: str, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(DRIVER), what, str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )


def told(process: subprocess.Popen[str]) -> dict[str, Any]:
    """What the driver printed; Ray's own processes end with it."""
    try:
        out, err = process.communicate(timeout=LONGEST)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, err[-2000:]
    answer: dict[str, Any] = json.loads(out.splitlines()[-1])
    return answer


def test_any_number_of_workers_fills_the_same_store(
    tmp_path: Path, calm: list[dict[str, Any]]
) -> None:
    seconds = told(started("workers", tmp_path))["seconds"]
    for workers in (1, 2, 4):
        assert _tries_aside(contents(tmp_path / str(workers))) == calm
        assert seconds[str(workers)] > 0


def test_a_driver_that_is_killed_and_restarted_loses_no_finished_cell(
    tmp_path: Path, calm: list[dict[str, Any]]
) -> None:
    first = started("plain", tmp_path)
    until = time.monotonic() + LONGEST
    while time.monotonic() < until and (first.poll() is not None or rows(tmp_path) < 5):
        assert first.poll() is None, first.communicate()
        time.sleep(0.05)
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    before = contents(tmp_path)
    assert 5 <= len(before) < len(calm)
    finished = {row["key"]: row.get("finished") for row in _with_times(tmp_path)}
    assert told(started("plain", tmp_path)) == {"failed": {}}
    assert _tries_aside(contents(tmp_path)) == calm
    after = {row["key"]: row.get("finished") for row in _with_times(tmp_path)}
    assert {key: after[key] for key in finished} == finished, "a finished cell was run again"


def _with_times(folder: Path) -> list[dict[str, Any]]:
    with Store(folder / "results.sqlite") as store:
        return [dict(row) for row in store.rows()]


def test_a_lost_node_loses_no_finished_cell(tmp_path: Path, calm: list[dict[str, Any]]) -> None:
    answer = told(started("node", tmp_path))
    assert answer["failed"] == {}
    assert answer["rows before"], "the node was never lost"
    assert answer["rows before"][0] < len(calm)
    assert _tries_aside(contents(tmp_path)) == calm
