"""What README and index say in figures is what the committed rows say; every page has its place."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import subprune

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"


def test_the_figures_of_the_readme_are_those_of_the_rows() -> None:
    pytest.importorskip("matplotlib")
    sys.path.insert(0, str(ROOT / "experiments"))
    try:
        import front_picture as picture
    finally:
        sys.path.pop(0)
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"{picture.BEGIN}{picture.caption()}{picture.END}" in text, (
        "run experiments/front_picture.py"
    )


def test_the_readme_is_short_and_shows_pictures_that_exist() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) < 140
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text)
    assert pictures == ["docs/front.png", "docs/report.png"]
    assert all((ROOT / path).stat().st_size < 150_000 for path in pictures)


def test_every_page_is_in_the_navigation() -> None:
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("nav:")[-1]
    listed = set(re.findall(r"- (\S+\.md)", nav))
    assert listed == {str(p.relative_to(DOCS)) for p in DOCS.rglob("*.md")}


def test_every_public_name_has_an_example() -> None:
    text = (DOCS / "api.md").read_text(encoding="utf-8")
    parts = re.split(r"^::: ", text, flags=re.M)[1:]
    examples = {part.split()[0]: re.findall(r"```python\n(.*?)```", part, re.S) for part in parts}
    for name in subprune.__all__:
        code = "".join(examples[f"subprune.{name}"])
        assert f"subprune.{name}" in code, f"{name} has no example in docs/api.md"
