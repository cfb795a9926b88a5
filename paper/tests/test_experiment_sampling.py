"""Cells of layer-sampling: the paper's delta for each data set, and sensitivities measured once."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

import subprune
from subprune.budget.sampling import SampleSize
from subprune.select import sensitivity
from subprune.select.sensitivity import DELTA, Sampling
from subprune_paper import cells
from subprune_paper.cells import Context, run_job
from subprune_paper.config import Config, parse_config, read_config, shipped_names
from subprune_paper.grid import cells_of, jobs_of

TINY: dict[str, Any] = {
    "name": "tiny",
    "model": "lenet",
    "dataset": "mnist-sample",
    "methods": ["layer-sampling", "layer-random"],
    "allocate": "uniform",
    "values": [4, 16],
    "seeds": [1],
    "batches": 1,
    "batch_size": 32,
    "test": 100,
}
SAMPLED = {**TINY, "methods": ["layer-sampling"], "allocate": "knapsack"}  # budgets of its own


def config(**changes: Any) -> Config:
    return parse_config({**SAMPLED, **changes})


def test_delta_is_the_papers() -> None:
    assert DELTA == 1e-12
    for name in shipped_names():
        read = read_config(name)
        assert read.delta == (1e-16 if read.dataset == "cifar10" else 1e-12), name


def test_a_cell_has_the_delta_of_its_experiment() -> None:
    own, other = (cells_of(config(delta=d)) for d in (1e-16, DELTA))
    sampled = [c for c in own if c.method == "layer-sampling"]
    assert sampled
    assert all(c.delta == 1e-16 for c in sampled)
    assert not {c.key for c in sampled} & {c.key for c in other}
    assert all(c.delta == DELTA for c in own if c not in sampled)
    # keys of cells that were run before there was that setting stay as they are
    assert all("delta" not in c.to_dict() for c in other)
    assert all(c.to_dict()["delta"] == 1e-16 for c in sampled)
    assert cells._allocator(sampled[0]) == SampleSize(1e-16)
    plain = [c for c in cells_of(parse_config({**TINY, "delta": 1e-16})) if c.method != "dense"]
    assert all(c.delta == DELTA for c in plain), "equal fractions need none"


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-16])
def test_a_delta_that_is_no_probability_is_refused(delta: float) -> None:
    with pytest.raises(subprune.errors.OptionError, match="between 0 and 1"):
        config(delta=delta)


def test_sensitivities_are_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for the budgets and again for the draws; and they are those of a call of its own."""
    measured: Counter[str] = Counter()
    original = sensitivity._sensitivity

    def counted(group: Any, dense: Any) -> Any:
        measured[group.name] += 1
        return original(group, dense)

    monkeypatch.setattr(sensitivity, "_sensitivity", counted)
    cells._pruned.cache_clear()
    cells._demand.cache_clear()
    jobs = jobs_of([c for c in cells_of(config()) if c.method == "layer-sampling"])
    assert len(jobs) == 2, "one with reweighting and one without"
    kept = {}
    for job in jobs:
        measured.clear()
        for cell, outcome in run_job(job, Context()):
            assert outcome.status == "done", outcome
            kept[cell.reweight, cell.value] = outcome.values["top1"], outcome.values["kept"]
        assert len(measured) == 4
        assert set(measured.values()) == {1}, measured
    monkeypatch.setattr(Sampling, "knowing", lambda self, calibration: self)
    cells._pruned.cache_clear()
    cells._demand.cache_clear()
    measured.clear()
    for job in jobs:
        for cell, outcome in run_job(job, Context()):
            same = outcome.values["top1"], outcome.values["kept"]
            assert kept[cell.reweight, cell.value] == same
            assert set(json.loads(same[1])) == set(measured)
    assert set(measured.values()) == {2 * (1 + 2)}, "for the budgets, and for each cell"
