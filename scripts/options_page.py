"""Writes docs/options.md, the reference of all options, from their table.

python scripts/options_page.py
"""

from __future__ import annotations

from pathlib import Path

from subprune.keywords import Option, describe
from subprune.messages import FLAGS
from subprune.options.table import OPTIONS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "options.md"
HEAD = """# All options

Options of `subprune.prune` and `subprune.forecast`, which take them by name, and of `subprune prune`, whose flags are the
same names: `round_to=8` in Python is `--round-to 8` on the command line. A switch that is on is turned off with `--no-`.
This page is made by `scripts/options_page.py` from the table in `subprune/options/table.py`, as signature and flags are.
"""


def page() -> str:
    """The whole page: a table for every group of options."""
    panels: dict[str, list[Option]] = {}
    for o in OPTIONS.values():
        panels.setdefault(o.panel, []).append(o)
    tables = [f"## {panel}\n\n{_table(options)}" for panel, options in panels.items()]
    return "\n".join([HEAD, *tables])


def _table(options: list[Option]) -> str:
    lines = ["| option | flag | default | meaning |", "|---|---|---|---|"]
    lines += [f"| `{o.name}` | {_flag(o)} | `{o.default!r}` | {_sentence(o)} |" for o in options]
    return "\n".join(lines) + "\n"


def _flag(o: Option) -> str:
    if not o.flag:
        return "Python only"
    flag = FLAGS.name(o.name)
    words = f"{flag}, --no-{flag[2:]}" if o.switch else f"{flag} {o.metavar}".strip()
    return f"`{words}`"


def _sentence(o: Option) -> str:
    return describe(o).replace("|", "\\|").replace("*", "\\*")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
