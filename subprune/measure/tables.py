"""Tables of text, the same look wherever one is printed; plain characters, nothing to install."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Sequence

__all__ = ["WIDTH", "text_table"]

WIDTH = 110
"""Characters of a line, where nothing else is known."""

_BETWEEN = "  "


def text_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Collection[str] = (),
    title: str = "",
    width: int = WIDTH,
) -> str:
    """A title, a header, a line and the rows; columns named in `right` hold numbers.

    Where that is too wide, the widest cells are broken into lines, at their words; names stay
    whole, so a table can be wider than asked for.
    """
    table = [list(header), *(list(row) for row in rows)]
    numbers = [name in right for name in header]
    widths = [max(len(row[i]) for row in table) for i in range(len(header))]
    least = [max(_longest_word(row[i]) for row in table) for i in range(len(header))]
    _narrow(widths, least, width)
    lines = [line for row in table for line in _lines(row, widths, numbers)]
    first = len(_lines(table[0], widths, numbers))
    rule = "─" * (sum(widths) + len(_BETWEEN) * (len(widths) - 1))
    shown = [*lines[:first], rule, *lines[first:]]
    titles = textwrap.wrap(title, max(width, len(rule)), break_on_hyphens=False) if title else []
    return "\n".join([*titles, *([""] if titles else []), *shown])


def _longest_word(text: str) -> int:
    return max((len(word) for word in text.split()), default=0)


def _narrow(widths: list[int], least: Sequence[int], most: int) -> None:
    """Take from the widest columns until the table is narrow enough, or no word would fit."""
    while sum(widths) + len(_BETWEEN) * (len(widths) - 1) > most:
        wide = [i for i, width in enumerate(widths) if width > least[i]]
        if not wide:
            return
        widths[max(wide, key=lambda i: widths[i])] -= 1


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]


def _lines(row: Sequence[str], widths: Sequence[int], numbers: Sequence[bool]) -> list[str]:
    """One row, in as many lines as its longest cell takes."""
    cells = [
        [text] if len(text) <= width else _wrapped(text, width)
        for text, width in zip(row, widths, strict=True)
    ]
    height = max(len(cell) for cell in cells)
    lines = []
    for i in range(height):
        parts = [cell[i] if i < len(cell) else "" for cell in cells]
        placed = [
            part.rjust(width) if number else part.ljust(width)
            for part, width, number in zip(parts, widths, numbers, strict=True)
        ]
        lines.append(_BETWEEN.join(placed).rstrip())
    return lines
