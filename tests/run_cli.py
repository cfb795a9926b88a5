"""Runs the command line inside the test's process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from subprune.cli.app import main

__all__ = ["Run", "Shown", "runner"]


@dataclass(frozen=True)
class Shown:
    """Exit code and what was printed."""

    code: int
    out: str
    err: str


Run = Callable[..., Shown]


def runner(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """A function that runs ``subprune`` with the arguments it is given."""

    def run(*args: object) -> Shown:
        monkeypatch.setattr(sys, "argv", ["subprune", *map(str, args)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            main()
        said = capsys.readouterr()
        return Shown(int(left.value.code or 0), said.out, said.err)

    return run
