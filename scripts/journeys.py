"""Makes notebooks and pages of the journeys: docs/journeys/*.py → .ipynb, and .md with what they
print.

    python scripts/journeys.py [--pictures] [NAME …]

The sources are Python with cells marked by ``# %%``; text stands in ``# %% [markdown]`` cells. The
notebooks have no outputs; the pages show what every cell printed when this script ran. Where
Chromium is installed, the page of the last pruning is taken as the journey's picture, without what
was timed: the text has the times of its own run. With `--pictures` nothing else is made.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pictures import BROWSER, shoot

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "journeys"
# Which result of a journey is shown, and what of its page is left out.
_LATENCY = "section ~ section, h1 + p { display: none }"
_FIRST = f"{_LATENCY} .sizes > :nth-child(3), .about {{ display: none }}"
_CURVES = "h1, h1 + p, .figures, .sizes, .about, .notes, section:first-of-type { display: none }"
_CURVES += " section:nth-of-type(n + 4) { display: none }"
_CURVES += " h2 { margin-top: 0 } section + section { margin-top: 24px }"
_SIZE = (900, 1600)  # at most: pages are cut where they end
PICTURES = {
    "cnn": ("result", _FIRST),
    "compare": ("result", _CURVES),
    "deploy": ("result", _LATENCY),
    "encoder": ("result", _FIRST),
    "extend": ("mine", _FIRST),
    "finetune": ("second", _FIRST),
    "language_model": ("result", _FIRST),
}
_MARK = re.compile(r"^# %%(.*)$", re.M)


@dataclass(frozen=True)
class Cell:
    """A piece of a journey."""

    kind: str  # "markdown" or "code"
    text: str


def cells(source: str) -> list[Cell]:
    """The cells of a source, in order."""
    parts = _MARK.split(source)[1:]
    found = []
    for mark, text in zip(parts[::2], parts[1::2], strict=True):
        if mark.strip() == "[markdown]":
            lines = (re.sub(r"^# ?", "", line) for line in text.strip("\n").splitlines())
            found.append(Cell("markdown", "\n".join(lines).strip()))
        else:
            found.append(Cell("code", text.strip("\n")))
    return found


def notebook(content: Sequence[Cell]) -> str:
    """The journey in the format of Jupyter, version 4.5."""
    made = []
    for i, cell in enumerate(content):
        lines: dict[str, Any] = {"cell_type": cell.kind, "id": f"cell-{i}", "metadata": {}}
        lines["source"] = cell.text.splitlines(keepends=True)
        if cell.kind == "code":
            lines |= {"execution_count": None, "outputs": []}
        made.append(lines)
    python = {"display_name": "Python 3", "language": "python", "name": "python3"}
    whole = {"cells": made, "metadata": {"kernelspec": python}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def run(content: Sequence[Cell], names: dict[str, Any]) -> Iterator[str]:
    """Run the code cells one after another in the current folder, with these names and those that
    they add; what each of them prints.
    """
    for i, cell in enumerate(content):
        if cell.kind == "code":
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                exec(compile(cell.text, f"<cell {i}>", "exec"), names)
            yield printed.getvalue()


def page(name: str, content: Sequence[Cell], printed: Sequence[str]) -> str:
    """The journey as a page: text, code, and what the code printed."""
    outputs, parts = iter(printed), []
    for cell in content:
        if cell.kind == "markdown":
            parts.append(cell.text)
        else:
            parts.append(f"```python\n{cell.text}\n```")
            text = "\n".join(line.rstrip() for line in next(outputs).strip("\n").splitlines())
            parts += [f"```text\n{text}\n```"] if text else []
    link = f"*This page as a notebook: [{name}.ipynb]({name}.ipynb).*"
    return "\n\n".join([parts[0], link, *parts[1:]]) + "\n"


def picture(name: str, names: dict[str, Any]) -> None:
    """The page of a journey's pruning; of `compare`, the part with the curves."""
    variable, style = PICTURES[name]
    shoot(names[variable].report, FOLDER / "pictures" / f"{name}.png", _SIZE, style=style)


def main(words: Sequence[str]) -> None:
    pictures_alone = "--pictures" in words
    chosen = [word for word in words if word != "--pictures"]
    for path in sorted(FOLDER.glob("*.py")):
        if chosen and path.stem not in chosen:
            continue
        content = cells(path.read_text(encoding="utf-8"))
        names: dict[str, Any] = {"__name__": "__main__"}
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            printed = list(run(content, names))
        if not pictures_alone:
            path.with_suffix(".ipynb").write_text(notebook(content), encoding="utf-8")
            text = page(path.stem, content, printed)
            path.with_suffix(".md").write_text(text, encoding="utf-8")
        print(f"{path.stem}: {sum(c.kind == 'code' for c in content)} cells of code")
        if BROWSER is not None:
            picture(path.stem, names)


if __name__ == "__main__":
    main(sys.argv[1:])
