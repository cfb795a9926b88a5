"""The parts of the benchmarks that can be tried in seconds."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
import torch

import subprune

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture(autouse=True)
def beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """The benchmarks import each other by name, as scripts do; afterwards they are forgotten."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for name in [path.stem for path in BENCHMARKS.glob("*.py")]:
        monkeypatch.delitem(sys.modules, name, raising=False)


def test_awkward_networks_are_as_said() -> None:
    from odd_networks import DenselyConnected, LongKernels

    structure = subprune.find_groups(DenselyConnected().eval(), torch.zeros(2, 3, 32, 32))
    assert len(structure.inner()) == 87
    assert max(len(g.consumers) for g in structure.groups) > 10
    long = LongKernels().eval()
    assert round(sum(p.numel() for p in long.parameters()), -3) == 486_000
    assert len(subprune.find_groups(long, torch.zeros(2, 1, 4000)).inner()) == 3


def test_a_profile_names_what_is_at_work() -> None:
    from sampling import sampled
    from workloads import synthetic

    from subprune.select.greedy import greedy

    statistics, end = synthetic(256, 64), time.monotonic() + 20
    with sampled(0.001) as profile:
        while sum(profile.seen.values()) < 50 and time.monotonic() < end:
            greedy([statistics], 256, 64)
    shares = profile.shares(4)
    assert sum(shares.values()) == pytest.approx(1, abs=0.01)
    rooms = {name.split(".")[0] for name in profile.seen}
    assert rooms <= {"greedy", "elimination", "blocks", "halves", "parallel", "statistics"}
    assert "blocks" in rooms


def test_waiting_threads_are_not_at_work() -> None:
    import threading

    from sampling import sampled

    with sampled(0.001) as profile:
        threading.Event().wait(0.05)
    assert not profile.seen
    assert profile.shares() == {}


def test_the_busy_process_ends_with_its_block() -> None:
    import busy

    with busy.neighbour() as process:
        assert process.poll() is None
    assert process.poll() is not None


def test_rows_far_above_their_limit_say_where_the_time_goes() -> None:
    import run

    profile = {"blocks.Block.add": 0.75, "other": 0.25}
    rows = {
        "near": {"ratio": 2.4, "profile": profile},
        "far": {"ratio": 2.6, "profile": profile},
    }
    table = run._left(rows)
    assert "| far | 2.60 | `blocks.Block.add` 75%, `other` 25% |" in table
    assert "near" not in table
    assert run._left({"near": rows["near"]}) == ""
