"""Small pieces of HTML that several sections of a page are made of."""

from __future__ import annotations

import html
from collections.abc import Sequence

__all__ = ["big", "breakable", "count", "e", "html_table", "section"]


def e(text: object) -> str:
    """Names come from models and files: everything is escaped."""
    return html.escape(str(text))


def html_table(
    head: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int] = ()
) -> str:
    """Cells are HTML already."""
    mark = ['class="n"' if i in numbers else "" for i in range(len(head))]
    top = "".join(f"<th {m}>{e(h)}</th>" for m, h in zip(mark, head, strict=True))
    lines = ["".join(f"<td {m}>{c}</td>" for m, c in zip(mark, row, strict=True)) for row in rows]
    body = "".join(f"<tr>{x}</tr>" for x in lines)
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def section(title: str, text: str, body: str, wide: str = "") -> str:
    """A heading, a sentence that says how to read what follows, and that; `body` is HTML, `wide`
    is about what narrow screens do not show.
    """
    more = f'<span class="wide"> {e(wide)}</span>' if wide else ""
    words = f'<p class="soft">{e(text)}{more}</p>' if text else ""
    return f"<section><h2>{e(title)}</h2>{words}{body}</section>"


def breakable(name: str) -> str:
    """Long names break at their dots, not in the middle of a word or of a range (8–15)."""
    return e(name).replace(".", ".<wbr>").replace("–", "\u2060–\u2060")


def count(number: int, noun: str) -> str:
    """A number of something, on one line."""
    return f"{number:,}\u00a0{noun}{'' if number == 1 else 's'}"


def big(x: float) -> str:
    """A large number in three digits."""
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(x) >= size:
            return f"{x / size:.3g}\u00a0{unit}"
    return f"{x:.3g}"
