"""Pages that are made from committed rows are what their scripts make of them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("docs", "experiments", "scripts")


def test_pages_are_made_again_from_committed_rows(tmp_path: Path) -> None:
    pytest.importorskip("subprune_paper")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, tmp_path / name)
    subprocess.run([sys.executable, tmp_path / "scripts" / "pages.py"], check=True)
    made = sorted((tmp_path / "docs").glob("results-*.md"))
    assert len(made) > 5
    for page in made:
        committed = (ROOT / "docs" / page.name).read_text(encoding="utf-8")
        text = page.read_text(encoding="utf-8")
        assert text == committed, f"docs/{page.name} is not what `make pages` makes of the rows"


def test_every_shortfall_has_a_reason() -> None:
    text = (ROOT / "docs" / "results-claims.md").read_text(encoding="utf-8")
    rows = text.split("## Every cell below the paper")[1].splitlines()
    cells = [line.split("|")[1:-1] for line in rows if line.startswith("| ")][1:]
    listed = [cell for cell in cells if len(cell) == 7 and "share" not in cell[5]]
    assert len(listed) > 100
    assert all(cell[6].strip() for cell in listed)
    assert any("not explained" in cell[6] for cell in listed)  # and what has none says so
