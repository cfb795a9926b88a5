"""A model card: what lies in a folder, how it is loaded, and what was measured."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from subprune.report.figures import Report

__all__ = ["card", "files_of"]

# By this line a folder is known as one that may be written again.
_MARK = "<!-- written by subprune: {files} -->"


def files_of(text: str) -> list[str] | None:
    """The names of the files that were written with a card; None if it is not one of ours."""
    match = re.search(_MARK.format(files="(.*)"), text)
    return None if match is None else match[1].split(", ")


def card(report: Report, loading: str, files: Sequence[str]) -> str:
    """The README.md of a folder with a pruned model; `loading` is Python that loads it, `files` are
    those written with it.
    """
    before, after = report.parameters
    name = report.model or "model"
    lines = [
        "---",
        "tags:",
        "- pruned",
        "- subprune",
        "---",
        _MARK.format(files=", ".join(sorted(files))),
        f"# {name}, pruned",
        "",
        f"{report.summary()}.",
        "",
        "```python",
        loading,
        "```",
        "",
        "| | before | after |",
        "|---|---:|---:|",
        f"| parameters | {before:,} | {after:,} |",
        f"| FLOPs per input | {report.flops[0]:,} | {report.flops[1]:,} |",
    ]
    if report.accuracy is not None:
        a, b = report.accuracy
        lines.append(f"| accuracy on {report.accuracy_on} | {a:.2%} | {b:.2%} |")
    if report.latency is not None:
        a, b = report.latency
        lines.append(f"| milliseconds per call | {a * 1e3:.3g} | {b * 1e3:.3g} |")
    lines += ["", *_groups(report), *_notes(report)]
    lines += ["## The call", "", "```python", report.command, "```", ""]
    lines += [f"Versions: {', '.join(f'{n} {v}' for n, v in report.versions.items())}.", ""]
    return "\n".join(lines)


def _groups(report: Report) -> list[str]:
    rows = [
        f"| {g.name} | {g.kind} | {g.units} | {len(g.kept)} |"
        for g in report.plan.groups
        if len(g.kept) < g.units
    ]
    head = ["## Units kept", "", "| group | kind | units | kept |", "|---|---|---:|---:|"]
    return [*head, *rows, ""] if rows else []


def _notes(report: Report) -> list[str]:
    notes = [f"* {note}" for note in report.notes]
    return ["## Notes", "", *notes, ""] if notes else []
