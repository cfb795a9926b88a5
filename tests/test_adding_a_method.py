"""The text of docs/adding-a-method.md runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import subprune
from subprune.errors import OptionError
from subprune.select.selector import Function

TEXT = (Path(__file__).resolve().parent.parent / "docs" / "adding-a-method.md").read_text(
    encoding="utf-8"
)


def test_the_text_runs(capsys: pytest.CaptureFixture[str]) -> None:
    register, use = re.findall(r"```python\n(.*?)```", TEXT, re.S)
    assert len(register.strip().splitlines()) <= 20
    names: dict[str, Any] = {"__name__": "mine"}
    torch.manual_seed(0)
    try:
        exec(compile(register, "mine.py", "exec"), names)
        exec(compile(use, "use.py", "exec"), names)
        with pytest.raises(OptionError, match="'mine' already"):
            exec(compile(register, "mine.py", "exec"), names)
    finally:
        subprune.METHODS.pop("mine", None)
    assert names["result"].plan.method == "mine"
    assert names["result"].report.compression >= 2
    assert "mine" in capsys.readouterr().out


def small() -> tuple[torch.nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    layers = torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 16), torch.nn.ReLU()
    return torch.nn.Sequential(*layers, torch.nn.Linear(16, 4)).eval(), torch.randn(256, 8)


@pytest.mark.parametrize("allocate", ["balanced", "equal-agreement"])
def test_a_ranking_of_some_units_is_refused_where_all_are_needed(allocate: Any) -> None:
    few = Function(lambda view: range(view.k or 3))
    model, x = small()
    with pytest.raises(OptionError, match=r"ranked 3 of 32 units of group '0'; where view\.k is"):
        subprune.prune(model, x, compression=2, selector=few, allocate=allocate, progress=False)
    assert subprune.prune(model, x, keep=0.5, selector=few, progress=False).plan.counts["0"] == 16


def test_curves_on_disk_are_those_of_the_same_function(tmp_path: Path) -> None:
    def ranked(step: int) -> Function:
        return Function(lambda view: range(view.n_units)[::step])

    functions = [
        ranked(1),
        ranked(-1),
        ranked(1),
        Function(lambda view: range(view.n_units)),
    ]
    model, x = small()
    files = []
    for selector in functions:
        subprune.prune(
            model,
            x,
            compression=2,
            selector=selector,
            allocate="equal-agreement",
            cache=tmp_path,
            progress=False,
            time_calls=False,
        )
        files.append(len(list(tmp_path.glob("curves-*.json"))))
    assert files == [1, 2, 2, 3]
