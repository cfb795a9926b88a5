"""Committed results can be made again: every command that a text gives for them names a script that
exists and flags that it takes, and every file of results is written or read by one.

Scripts are read, not run: those that make results take hours.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("experiments", "benchmarks", "scripts")
SCRIPTS = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
TEXTS = [
    *sorted(ROOT.glob("*.md")),
    *sorted(ROOT.glob("docs/*.md")),
    ROOT / "paper" / "README.md",
    ROOT / "Makefile",
    *(path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("results/**/*.md"))),
]
RESULTS = sorted(
    path
    for folder in FOLDERS
    for suffix in ("csv", "json")
    for path in (ROOT / folder).rglob(f"results/**/*.{suffix}")
)
COMMAND = re.compile(
    r"python (?P<script>(?:experiments|benchmarks|scripts|paper|examples|docs)/[\w/]+\.py)"
    r"(?P<words>(?:\\\n|[^`\n])*)"
)
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")


def commands(text: str) -> Iterator[tuple[str, set[str]]]:
    """The scripts that a text calls, each with the flags it gives them."""
    for match in COMMAND.finditer(text):
        yield match["script"], set(FLAG.findall(match["words"]))


def flags(script: Path, seen: set[Path] | None = None) -> set[str]:
    """What a script takes, with the modules of its folder that it imports."""
    seen = set() if seen is None else seen
    seen.add(script)
    taken: set[str] = set()
    for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("add_argument"):
            taken |= {str(a.value) for a in node.args if isinstance(a, ast.Constant)}
        elif isinstance(node, ast.Compare):  # read from sys.argv by hand
            taken |= {str(c.value) for c in ast.walk(node) if isinstance(c, ast.Constant)}
        elif isinstance(node, ast.ImportFrom):
            other = (script.parent / str(node.module).replace(".", "/")).with_suffix(".py")
            if other.is_file() and other not in seen:
                taken |= flags(other, seen)
    return {word for word in taken if word.startswith("--")}


def wrong(text: str) -> list[str]:
    """Commands of a text that cannot be given."""
    found = []
    for name, given in commands(text):
        script = ROOT / name
        if not script.is_file():
            found.append(f"{name} does not exist")
        elif given - flags(script):
            found.append(f"{name} has no {', '.join(sorted(given - flags(script)))}")
    return found


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_commands_in_texts_exist(path: Path) -> None:
    assert wrong(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_script_takes_what_it_says(path: Path) -> None:
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    assert wrong(text) == []
    # A command may go on in the next line: there its flags are in brackets.
    asked = set(FLAG.findall(" ".join(re.findall(r"\[[^\]]*\]", text))))
    assert asked <= flags(path), f"{path.name} has no {', '.join(sorted(asked - flags(path)))}"


def test_wrong_commands_are_found() -> None:
    assert wrong("`python experiments/nothing.py`") == ["experiments/nothing.py does not exist"]
    assert wrong("`python benchmarks/run.py --nothing 1`") == ["benchmarks/run.py has no --nothing"]
    assert wrong("`python benchmarks/run.py --cpu`, `--nothing`") == []
    assert dict(commands("python a/b.py x; python docs/b.py \\\n --c")) == {"docs/b.py": {"--c"}}


def test_every_committed_result_is_known_to_a_script() -> None:
    """By its name, or by that of its folder, which a grid's file has; or a text names it."""
    sources = [*SCRIPTS, *TEXTS]
    text = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    grids = {path.stem for path in ROOT.glob("**/experiments/*.toml")}
    grids |= {path.stem for path in (ROOT / "paper" / "subprune_paper" / "configs").glob("*.toml")}
    grids |= {path.stem for path in (ROOT / "experiments" / "arena").glob("*.toml")}
    unknown = [
        path.relative_to(ROOT).as_posix()
        for path in RESULTS
        if not {path.stem, path.parent.name} & grids
        and f'"{path.name}"' not in text
        and f"/{path.name}" not in text
        and f'"{path.stem}"' not in text
        and f"{path.stem.rpartition('-')[0]}-{{" not in text  # a name that is put together
    ]
    assert unknown == [], "no script names these files"
