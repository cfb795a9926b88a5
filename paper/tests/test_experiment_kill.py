"""kill -9 in the middle of a run, ten times: the store ends up as that of a run nobody disturbed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from subprune_paper.store import TIMINGS, Store


def contents(folder: Path) -> list[dict[str, Any]]:
    """All rows without what depends on the clock, or on a commit made while the test runs."""
    aside = {*TIMINGS, "versions"}
    with Store(folder / "results.sqlite") as store:
        return [
            {name: value for name, value in row.items() if name not in aside}
            for row in store.rows()
        ]


@pytest.mark.skipif(
    not hasattr(os, "fork"), reason="the helper forks its children, which this system cannot"
)
def test_ten_kills_at_random_moments_change_nothing(tmp_path: Path) -> None:
    helper = Path(__file__).with_name("kill_driver.py")
    ran = subprocess.run(
        [sys.executable, str(helper), str(tmp_path), "10", "5"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout.splitlines()[-1])
    assert told["hit"] == 10, told
    assert all(after == sorted(after) for after in told["after"]), "a kill lost rows"
    calm = contents(tmp_path / "calm")
    assert len(calm) == 25
    assert {row["status"] for row in calm} == {"done"}
    for folder in sorted(tmp_path.glob("killed-*")):
        assert contents(folder) == calm
        assert not list(folder.glob("*-run-*")), "locks of dead runs are left"
