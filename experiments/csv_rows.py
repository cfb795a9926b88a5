"""Rows of committed results: read, written, added one by one."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

__all__ = ["add_row", "read_rows", "write_rows"]


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a file, by the names in its first line; none if there is no such file."""
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """All rows of a file; the first says which columns there are."""
    every = list(rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(every[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(every)


def add_row(path: Path, row: Mapping[str, Any]) -> None:
    """One more row at the end: others may be at work on the same file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = not path.is_file()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(row), lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow(row)
