"""Where the commands print: results to standard output, everything else to standard error."""

from __future__ import annotations

import json
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape

__all__ = ["err", "line_width", "out", "print_json", "print_text", "say"]

out = Console()
err = Console(stderr=True)

_WIDTH, _NARROWEST = 110, 60  # characters of a line: in files and pipes, and at least


def line_width() -> int:
    """Characters of a line: those of the terminal, if there is one."""
    return max(_NARROWEST, out.width) if out.is_terminal else _WIDTH


def print_text(text: str) -> None:
    """Text as it is, lines and all."""
    out.print(text.rstrip("\n"), highlight=False, markup=False, soft_wrap=True)


def print_json(content: Any) -> None:
    """One JSON document on standard output, for machines."""
    typer.echo(json.dumps(content, indent=1, allow_nan=False))


def say(text: str) -> None:
    """A remark for people, on standard error."""
    err.print(escape(text), highlight=False, soft_wrap=True)
