"""`only` and `ignore` of an experiment: read, checked before the first cell, never tried twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from subprune.errors import OptionError
from subprune_paper import cells as running
from subprune_paper.cells import Context, check, run_job
from subprune_paper.cli import app
from subprune_paper.config import parse_config
from subprune_paper.engine import run_cells
from subprune_paper.grid import Job, cells_of
from subprune_paper.local_engine import LocalEngine
from subprune_paper.store import Store

TINY: dict[str, Any] = {
    "name": "tiny",
    "model": "lenet",
    "dataset": "mnist-sample",
    "methods": ["random"],
    "values": [1, 2],
    "seeds": [1],
    "reweight": [True],
    "batches": 1,
    "batch_size": 16,
    "verify_samples": 100,
    "test": 20,
    "allocate": "uniform",
}


@pytest.mark.parametrize("option", ["only", "ignore"])
def test_a_single_string_will_do(option: str) -> None:
    assert getattr(parse_config({**TINY, option: "conv*"}), option) == ("conv*",)
    assert getattr(parse_config({**TINY, option: ["conv*"]}), option) == ("conv*",)
    with pytest.raises(OptionError, match=f"{option} is 3; it must be a string or a list of them"):
        parse_config({**TINY, option: 3})
    with pytest.raises(OptionError, match=r"seeds is .*; it must be a list"):
        parse_config({**TINY, "seeds": "1"})


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"only": "conv11"}, "did you mean 'conv1'"),
        ({"ignore": ["fc?", "cov*"]}, "'cov\\*', which matches no group"),
        ({"only": "fc3"}, "nothing it matches can be pruned: fc3"),
        ({"only": "fc1", "ignore": "fc*"}, "leave nothing to prune"),
    ],
)
def test_a_wrong_choice_is_found_before_the_first_cell(
    choice: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        check(cells_of(parse_config({**TINY, **choice})), Context())
    check(cells_of(parse_config({**TINY, "only": "conv*", "ignore": "conv1"})), Context())


def test_a_run_with_a_wrong_choice_stops_at_once(tmp_path: Path) -> None:
    text = [f"{name} = {json.dumps(value)}" for name, value in {**TINY, "only": ["conv11"]}.items()]
    (tmp_path / "tiny.toml").write_text("\n".join(text))
    ran = CliRunner().invoke(
        app, ["run", str(tmp_path / "tiny.toml"), "--output", str(tmp_path), "--workers", "1"]
    )
    assert isinstance(ran.exception, OptionError), ran.output
    with Store(tmp_path / "results.sqlite") as store:
        assert not store.rows()


def test_refused_options_are_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = parse_config({**TINY, "values": [2], "only": ["conv11"]})  # as if nobody had checked
    (cell,) = [c for c in cells_of(config) if c.value != 1]
    ((_, outcome),) = run_job(Job((cell,), ()), Context())
    assert (outcome.status, "did you mean 'conv1'" in outcome.values["note"]) == ("refused", True)
    with Store(tmp_path / "r.sqlite") as store:
        summary = run_cells(config, [cell], store, LocalEngine(1, Context(), "fork"))
        assert list(summary.failed) == [cell.label]
        assert [(r["status"], r["attempts"]) for r in store.rows()] == [("failed", 1)]

        def broken(*_: object) -> None:
            raise RuntimeError("once more")

        monkeypatch.setattr(running, "run_cell", broken)
        run_cells(config, [cell], store, LocalEngine(1, Context(), "fork"))
        assert [(r["status"], r["attempts"]) for r in store.rows()] == [("failed", 3)]
