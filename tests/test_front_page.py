"""What README and index say in figures is what the committed rows say; every page has its place."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

import subprune
from subprune.budget.allocators import ALLOCATORS
from subprune.fit.fits import FITS
from subprune.methods import METHODS
from subprune.select.selector import Function
from subprune.select.selectors import SELECTORS
from subprune.statistics.targets import TARGETS

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"


def experiment(name: str) -> ModuleType:
    """A script of experiments/, as a module."""
    sys.path.insert(0, str(ROOT / "experiments"))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.pop(0)


def test_the_figures_of_the_readme_are_those_of_the_rows() -> None:
    pytest.importorskip("matplotlib")
    picture = experiment("front_picture")
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"{picture.BEGIN}{picture.caption()}{picture.END}" in text, (
        "run experiments/front_picture.py"
    )


def test_the_picture_shows_rivals_beside_the_default() -> None:
    """Rows of one variant alone, at a further ratio, do not push the others out."""
    pytest.importorskip("matplotlib")
    shown, title, _ = experiment("front_picture").minilm()
    assert {"subprune, default", "the paper's method", "wanda-sp", "flap"} <= shown.keys()
    assert len({len(values) for values in shown.values()}) == 1
    assert all(len(line) < 36 for line in title.splitlines())  # wider ones are cut off


def test_the_figures_of_the_paper_s_method_are_explained_in_one_place() -> None:
    figures = experiment("paper_figures")
    page = (DOCS / "alternatives.md").read_text(encoding="utf-8")
    assert f"{figures.BEGIN}{figures.table()}{figures.END}" in page, (
        "run experiments/paper_figures.py"
    )
    place = "alternatives.md#one-method-several-figures"
    for path in (ROOT / "README.md", DOCS / "results-accuracy.md", DOCS / "results-resnet56.md"):
        assert place in path.read_text(encoding="utf-8"), path.name


def test_the_readme_is_short_and_shows_pictures_that_exist() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) < 140
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text)
    assert pictures == ["docs/front.png", "docs/report.png"]
    assert all((ROOT / path).stat().st_size < 150_000 for path in pictures)


def test_every_name_that_an_option_takes_is_explained() -> None:
    text = (DOCS / "choosing.md").read_text(encoding="utf-8")
    # Of the methods that come with the library; other tests register theirs.
    methods = [name for name, m in METHODS.items() if not isinstance(m.selector, Function)]
    for table in (methods, TARGETS, SELECTORS, FITS, ALLOCATORS):
        for name in table:
            assert re.search(rf'`"?{name}"?`', text), f"docs/choosing.md says nothing of {name}"


def test_every_page_is_in_the_navigation() -> None:
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("nav:")[-1]
    listed = set(re.findall(r"^ +- (?:\w+: )?(\S+\.md)$", nav, re.M))
    assert listed == {str(p.relative_to(DOCS)) for p in DOCS.rglob("*.md")}


def test_every_public_name_has_an_example() -> None:
    text = (DOCS / "api.md").read_text(encoding="utf-8")
    parts = re.split(r"^::: ", text, flags=re.M)[1:]
    examples = {part.split()[0]: re.findall(r"```python\n(.*?)```", part, re.S) for part in parts}
    for name in subprune.__all__:
        code = "".join(examples[f"subprune.{name}"])
        assert f"subprune.{name}" in code, f"{name} has no example in docs/api.md"
