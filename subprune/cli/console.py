"""Where the commands print: results to standard output, everything else to standard error."""

from __future__ import annotations

import json
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape

__all__ = ["err", "out", "print_json", "say"]

out = Console()
err = Console(stderr=True)


def print_json(content: Any) -> None:
    """One JSON document on standard output, for machines."""
    typer.echo(json.dumps(content, indent=1, allow_nan=False))


def say(text: str) -> None:
    """A remark for people, on standard error."""
    err.print(escape(text), highlight=False, soft_wrap=True)
