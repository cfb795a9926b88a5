"""The text of docs/adding-a-method.md runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import subprune
from subprune.errors import OptionError

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
