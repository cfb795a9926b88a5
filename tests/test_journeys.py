"""The journeys run: each notebook, cell by cell, in an empty folder, and its page shows the same
code; links and pictures lead somewhere.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from subprune.methods import METHODS
from subprune.program.ops import PRODUCTS
from subprune.structure.flow import RULES

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "journeys"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py"))

sys.path.insert(0, str(ROOT / "scripts"))
from journeys import Cell, cells, notebook, page, run  # noqa: E402

sys.path.pop(0)


def read(name: str) -> list[Cell]:
    """The cells of a notebook file."""
    content = json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))
    assert content["nbformat"] == 4
    return [Cell(c["cell_type"], "".join(c["source"])) for c in content["cells"]]


@pytest.fixture(autouse=True)
def _registry() -> Any:
    """Methods and rules that a journey adds are gone afterwards."""
    before = [dict(table) for table in (METHODS, PRODUCTS, RULES)]
    yield
    for table, rows in zip((METHODS, PRODUCTS, RULES), before, strict=True):
        table.clear()
        table.update(rows)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", NAMES)
def test_notebook_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    printed = list(run(read(name), names))
    assert len("".join(printed)) > 50
    assert any(hasattr(value, "report") for value in names.values())  # something was pruned


@pytest.mark.parametrize("name", NAMES)
def test_notebook_and_page_are_made_from_the_source(name: str) -> None:
    source = cells((FOLDER / f"{name}.py").read_text(encoding="utf-8"))
    assert read(name) == source
    assert (FOLDER / f"{name}.ipynb").read_text(encoding="utf-8") == notebook(source)
    shown = (FOLDER / f"{name}.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)\n```$", shown, re.S | re.M)
    assert blocks == [cell.text for cell in source if cell.kind == "code"]
    for cell in source:
        if cell.kind == "markdown":
            assert cell.text in shown


def test_a_page_shows_what_was_printed() -> None:
    source = cells("# %% [markdown]\n# # Title\n#\n# Text\n\n# %%\nprint(1 + 1)\n\n# %%\nx = 1\n")
    assert source == [Cell("markdown", "# Title\n\nText"), Cell("code", "print(1 + 1)"),
                      Cell("code", "x = 1")]  # fmt: skip
    names: dict[str, Any] = {}
    shown = page("a", source, list(run(source, names)))
    assert "```python\nprint(1 + 1)\n```\n\n```text\n2\n```" in shown
    assert shown.count("```text") == 1
    assert names["x"] == 1


@pytest.mark.parametrize("name", [*NAMES, "index"])
def test_links_and_pictures_are_there(name: str) -> None:
    text = (FOLDER / f"{name}.md").read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text)
    assert all((FOLDER / target).exists() for target in targets)
    if name != "index":
        assert f"pictures/{name}.png" in targets


def test_every_journey_is_listed() -> None:
    index = (FOLDER / "index.md").read_text(encoding="utf-8")
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for name in NAMES:
        assert f"({name}.md)" in index
        assert f"journeys/{name}.md" in nav
