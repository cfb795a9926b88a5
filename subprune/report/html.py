"""One self-contained HTML page per report."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from subprune.report.figures import Report

__all__ = ["fragment", "page"]


def page(report: Report) -> str:
    """The whole page."""
    return f"<!doctype html><meta charset=utf-8><title>subprune</title>{fragment(report)}"


def fragment(report: Report) -> str:
    """The table for a notebook."""
    return f"<pre>{html.escape(str(report))}</pre>"
