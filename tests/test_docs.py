"""Every block of code in the README and the documentation works, page by page, in a folder that is
empty but for a model and a text of one's own, where a page speaks of them.

Python blocks run. Of shell blocks, commands on shipped models and data run; those that need a data
set or a cluster are parsed, so that every option in them exists; make and pip lines name targets
and extras that exist.
"""

from __future__ import annotations

import dataclasses
import pkgutil
import re
import shlex
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import language_models
import numpy as np
import pytest
import torch
import typer
from run_cli import runner

from subprune.cli.app import app
from subprune.fit.fits import FITS
from subprune.methods import METHODS
from subprune.program.ops import PRODUCTS
from subprune.program.record import MODULES
from subprune.select.selectors import SELECTORS
from subprune.statistics.statistics import Statistics
from subprune.statistics.targets import TARGETS
from subprune.structure.flow import RULES
from subprune.structure.rules import index, linear, shape  # noqa: F401  (the rules, to be put back)
from subprune_paper import train
from subprune_paper.config import Config

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "paper/README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.S | re.M)
NET = """
from torch import nn
def build():
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
"""


def blocks(page: Path, language: str = "python") -> list[tuple[int, str]]:
    """Line number and code of every block in that language."""
    text = page.read_text(encoding="utf-8")
    return [
        (text[: m.start(2)].count("\n"), m[2]) for m in BLOCK.finditer(text) if m[1] == language
    ]


def commands(page: Path) -> list[list[str]]:
    """The lines of all shell blocks, continued ones as one, in words."""
    lines = (
        line for _, code in blocks(page, "sh") for line in code.replace("\\\n", " ").splitlines()
    )
    return [words for line in lines if (words := shlex.split(line, True))]


@pytest.fixture(autouse=True)
def _registry() -> Iterator[None]:
    """Methods, parts and operations that a page adds are gone afterwards."""
    tables: list[dict[Any, Any]] = [METHODS, TARGETS, SELECTORS, FITS, PRODUCTS, RULES, MODULES]
    before = [dict(table) for table in tables]
    yield
    for table, rows in zip(tables, before, strict=True):
        table.clear()
        table.update(rows)


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=lambda p: p.name)
def test_code_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if "my-model" in page.read_text(encoding="utf-8"):  # one's own, in folders
        language_models.write_llama(tmp_path / "my-model")
        language_models.write_text(tmp_path / "text.txt")
    torch.manual_seed(0)
    names: dict[str, object] = {"__name__": "__main__"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for line, code in blocks(page):
            lines = "\n" * line + code  # so that a traceback shows the page's own line
            exec(compile(lines, str(page), "exec"), names)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the pages speak of: a network of one's own, its weights, and inputs."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(NET, names)
    (tmp_path / "net.py").write_text(NET)
    torch.save(names["build"]().state_dict(), tmp_path / "net.pt")  # type: ignore[operator]
    np.savez(
        tmp_path / "inputs.npz", x=np.random.default_rng(0).normal(size=(64, 6)).astype(np.float32)
    )
    return tmp_path


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "sh")], ids=lambda p: p.name)
def test_shell_blocks_work(
    page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = runner(monkeypatch, capsys)
    for program, *args in commands(page):
        if program == "make":
            assert re.search(rf"^{args[0]}:", (ROOT / "Makefile").read_text(), re.M), args
        elif program == "pip":
            assert missing_extras(args) == set(), args
        elif program == "python" and args[0].startswith("experiments/"):
            script = (ROOT / args[0]).read_text(encoding="utf-8")
            assert all(f'"{word}"' in script for word in args if word.startswith("--")), args
        elif program == "python":
            assert args[:2] == ["-m", "subprune_paper.train"], args
            train._parser().parse_args(args[2:])
        elif args[0] == "experiment":
            assert parses(args), args
        else:
            if program == "torchrun":  # which test_ranks starts; here one process does it
                assert args[:4:2] == ["--nproc-per-node", "-m"], args
                program, *args = args[3:]
            assert program == "subprune"
            done = run(*args)
            assert done.code == 0, (args, done.err)


def missing_extras(args: list[str]) -> set[str]:
    """What a pip line asks for that the distribution it names does not offer."""
    name, extras = re.fullmatch(r"(.+)\[([\w,]+)\]", args[-1]).groups()  # type: ignore[union-attr]
    place = {
        "subprune": ROOT,
        ".": ROOT,
        "subprune-paper": ROOT / "paper",
        "./paper": ROOT / "paper",
    }
    project = tomllib.loads((place[name] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return set(extras.split(",")) - project["optional-dependencies"].keys()


def parses(args: list[str]) -> bool:
    """Whether the command line takes these words; nothing is run."""
    command, context = typer.main.get_command(app), None
    for word in args[:2]:
        context = command.make_context(word, [], parent=context, resilient_parsing=True)
        command = context.command.get_command(context, word)  # type: ignore[attr-defined]
    return command.make_context(args[1], args[2:], parent=context) is not None


def test_toml_blocks_have_settings_that_exist() -> None:
    known = {f.name for f in dataclasses.fields(Config)}
    found = [tomllib.loads(code) for page in PAGES for _, code in blocks(page, "toml")]
    assert found
    assert all(set(x) <= known for x in found)


def test_no_block_is_without_a_language() -> None:
    """A block that is neither run nor parsed must be a drawing: the map in architecture.md is the
    only one.
    """
    assert [page.name for page in PAGES for _ in blocks(page, "")] == ["architecture.md"]
    known = {"", "python", "sh", "toml"}
    assert {
        m[1] for page in PAGES for m in BLOCK.finditer(page.read_text(encoding="utf-8"))
    } <= known


ARCHITECTURE = ROOT / "docs" / "architecture.md"
ROOM = re.compile(r"^([a-z_]+/?(?:, [a-z_]+/?)*)  +(.*)$")


def rooms() -> list[tuple[list[str], str]]:
    """The lines of the picture in architecture.md: rooms that know nothing of each other, and
    what is said of them.
    """
    ((_, picture),) = blocks(ARCHITECTURE, "")
    found: list[tuple[list[str], str]] = []
    for line in picture.splitlines():
        if match := ROOM.match(line):
            found.append(([name.rstrip("/") for name in match[1].split(", ")], match[2]))
        else:
            found[-1] = (found[-1][0], f"{found[-1][1]} {line.strip()}")
    return found


def test_the_picture_of_the_house_is_what_is_checked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    layers = project["tool"]["importlinter"]["contracts"][0]["layers"]
    checked = [set(layer.split(" | ")) for layer in reversed(layers) if layer != "__main__"]
    assert [set(names) for names, _ in rooms()] == checked


def test_files_in_the_picture_are_in_their_rooms() -> None:
    named = 0
    for names, words in rooms():
        for file in re.findall(r"\b(\w+\.py)\b", words):
            assert any((ROOT / "subprune" / name / file).is_file() for name in names), file
            named += 1
    assert named > 40


def test_names_in_architecture_exist() -> None:
    """Of modules and what is in them, in full or from their room on, and of files."""
    text = re.sub(r"^```.*?^```", "", ARCHITECTURE.read_text(encoding="utf-8"), flags=re.S | re.M)
    named = re.findall(r"`((?:\w+/)+\w+\.py|[a-z_]+(?:\.\w+)+)`", text)
    assert len(named) > 15
    for name in named:
        if "/" in name:
            assert (ROOT / "subprune" / name).is_file(), name
            continue
        pkgutil.resolve_name(name if name.startswith("torch.") else f"subprune.{name}")


def test_names_in_docstrings_and_comments_exist() -> None:
    """What stands in backticks with all its rooms, there and in the documentation."""
    texts = [*(ROOT / "subprune").rglob("*.py"), *PAGES]
    named = {
        (path.name, name)
        for path in texts
        for name in re.findall(r"`(subprune(?:\.\w+)+)`", path.read_text(encoding="utf-8"))
        if name != "subprune.commands"  # a group of entry points
    }
    assert len(named) > 40
    for page, name in named:
        try:
            pkgutil.resolve_name(name)
        except (AttributeError, ImportError) as error:
            raise AssertionError(f"{page} speaks of {name}") from error


def test_the_waist_in_architecture_is_the_code() -> None:
    names: dict[str, Any] = {}
    exec(next(code for _, code in blocks(ARCHITECTURE) if "class Statistics" in code), names)
    shown, real = (dataclasses.fields(x) for x in (names["Statistics"], Statistics))
    assert [f.name for f in shown] == [f.name for f in real]


def test_links_inside_the_documentation_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if not target.startswith(("http://", "https://", "mailto:")):
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


def anchors(page: Path) -> set[str]:
    """What headings, and names of the API, are called in links."""
    text = page.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.+)$", text, re.M)
    plain = [re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in headings]
    names = set(re.findall(r"^::: (\S+)", text, re.M))
    return {re.sub(r"[-\s]+", "-", heading) for heading in plain} | names


def test_links_to_headings_lead_to_headings() -> None:
    links = [
        (page, target, anchor)
        for page in PAGES
        for target, anchor in re.findall(
            r"\]\(([^)#:]*)#([^)]+)\)", page.read_text(encoding="utf-8")
        )
    ]
    assert links
    for page, target, anchor in links:
        assert anchor in anchors(page.parent / target if target else page), (
            f"{page.name}: #{anchor}"
        )
