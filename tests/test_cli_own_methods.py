"""Methods and parts that a user's own file registers are known to the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from run_cli import Run, runner

from subprune.methods import METHODS

FILE = """
import torch
from torch import nn
import subprune

@subprune.method("from-a-file")
def first(view: subprune.View) -> list[int]:
    return list(range(view.n_units))

def build():
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))

def data():
    return torch.randn(64, 6, generator=torch.Generator().manual_seed(0))
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_file.py").write_text(FILE)
    return runner(monkeypatch, capsys)


def test_a_method_of_the_models_file_is_used_by_name(run: Run, tmp_path: Path) -> None:
    """The file is named twice, and runs once: it could not register its method again."""
    words = ("--model", "own_file.py:build", "--data", "own_file.py:data", "--keep", 0.5)
    try:
        done = run("prune", *words, "--method", "from-a-file", "--output", tmp_path / "out")
    finally:
        METHODS.pop("from-a-file", None)
    assert done.code == 0, done.err
    plan = json.loads((tmp_path / "out" / "report.json").read_text())["plan"]
    assert plan["method"] == "from-a-file"
    assert plan["groups"][0]["kept"] == list(range(8))
