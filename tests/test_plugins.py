"""Commands of other distributions: added where they are installed, explained where they are not."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

import pytest
import typer
from run_cli import runner
from typer.testing import CliRunner

import subprune
from subprune.cli import plugins
from subprune.errors import OptionError

hello = typer.Typer(help="Greets.")
not_a_command = 3


@hello.command()
def world(loud: bool = False) -> None:
    """Greet."""
    typer.echo("HELLO" if loud else "hello")


@hello.command()
def moon() -> None:
    """Greet somebody else."""


def entry(name: str, attribute: str, module: str = __name__) -> EntryPoint:
    return EntryPoint(name, f"{module}:{attribute}", plugins.GROUP)


def added(monkeypatch: pytest.MonkeyPatch, *entries: EntryPoint) -> tuple[typer.Typer, set[str]]:
    """An app with one command of its own, and what these entry points add to it."""
    monkeypatch.setattr(plugins, "entry_points", lambda group: entries)
    app = typer.Typer()
    app.command("own")(lambda: typer.echo("own"))
    return app, plugins.add_commands(app)


def test_an_installed_command_is_added_with_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    app, names = added(monkeypatch, entry("greet", "hello"))
    assert names == {"greet", *plugins.KNOWN}
    assert CliRunner().invoke(app, ["greet", "world", "--loud"]).output == "HELLO\n"


@pytest.mark.parametrize("words", [[], ["run", "smoke"], ["run", "--workers", "2", "--only=a"]])
def test_a_known_command_that_is_not_installed_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    app, names = added(monkeypatch)
    assert names == {"experiment"}
    done = CliRunner().invoke(app, ["experiment", *words])
    assert isinstance(done.exception, OptionError)
    text = "part of subprune-paper, which is not installed; run pip install ./paper"
    assert text in str(done.exception)
    shown = CliRunner().invoke(app, ["experiment", "--help"])
    assert shown.exit_code == 0
    assert "not installed" in " ".join(shown.output.split())


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (entry("greet", "hello", "no_such_package"), "ModuleNotFoundError.*no_such_package"),
        (entry("greet", "goodbye"), "AttributeError.*goodbye"),
        (entry("greet", "not_a_command"), r"is a int, not a typer\.Typer"),
    ],
)
def test_a_command_that_cannot_be_loaded_says_why_and_leaves_the_others(
    monkeypatch: pytest.MonkeyPatch, broken: EntryPoint, words: str
) -> None:
    app, names = added(monkeypatch, broken)
    assert "greet" in names
    assert CliRunner().invoke(app, ["own"]).output == "own\n"
    with pytest.raises(OptionError, match=f"subprune greet .* cannot be loaded .*{words}"):
        CliRunner().invoke(app, ["greet", "world"], catch_exceptions=False)


@pytest.mark.skipif(
    not entry_points(group=plugins.GROUP), reason="subprune-paper is not installed (make setup)"
)
def test_the_evaluation_is_found_and_keeps_its_own_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = runner(monkeypatch, capsys)
    assert "status" in run("experiment", "--help").out
    done = run("experiment", "status", "smoke", "--only", "method=nothing")
    assert "method=nothing leaves no cell" in done.err
    assert plugins.own_packages() == ["subprune", "subprune_paper"]


def test_the_library_does_not_know_the_evaluation() -> None:
    for path in Path(subprune.__file__).parent.rglob("*.py"):
        assert "subprune_paper" not in path.read_text(encoding="utf-8"), path
