"""One HTML page with everything in it: plots whose legend switches methods on and off, tables
next to the paper's.
"""

from __future__ import annotations

import html
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from subprune.errors import DataError
from subprune.files import write_atomic
from subprune_paper.config import Config
from subprune_paper.figures import (
    can_draw,
    colour,
    methods_in_order,
    panels,
    setting_title,
    write_figures,
)
from subprune_paper.store import Row
from subprune_paper.tables import (
    LABELS,
    OURS,
    Group,
    Point,
    dense_top1,
    points,
    summary_rows,
    write_csv,
)

__all__ = ["made_with", "page", "write_report"]

Curves = dict[Group, list[Point]]


def write_report(config: Config, rows: Sequence[Row], folder: Path) -> list[Path]:
    """report.html, summary.csv and, where matplotlib is installed, the figures, from the rows of a
    grid.
    """
    curves, dense = points(config, rows), dense_top1(rows)
    if not curves or math.isnan(dense):
        raise DataError(
            "the dense cell and at least one other must be finished for a report; "
            "run the experiment."
        )
    written = [write_atomic(folder / "report.html", page(config, rows).encode())]
    written.append(write_csv(summary_rows(curves), folder / "summary.csv"))
    return written + (
        write_figures(config, curves, dense, folder / "figures") if can_draw() else []
    )


def page(config: Config, rows: Sequence[Row]) -> str:
    """The page as text."""
    curves, dense = points(config, rows), dense_top1(rows)
    by_ratio = config.goal == "compression"
    data = {
        "axis": f"{'compression ratio' if by_ratio else 'share of channels kept'} (log scale)",
        "letter": "c" if by_ratio else "share",
        "values": sorted({1.0, *(p.value for curve in curves.values() for p in curve)}),
        "facts": _facts(config, rows, dense),
        "sections": [_section(config, curves, dense, *pair) for pair in panels(curves)],
    }
    template = (Path(__file__).resolve().parent / "page.html").read_text(encoding="utf-8")
    embedded = json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")
    return template.replace("__TITLE__", html.escape(config.title or config.name)).replace(
        "__DATA__", embedded
    )


def _facts(config: Config, rows: Sequence[Row], dense: float) -> list[str]:
    states = Counter(row["status"] for row in rows)
    images = next((row["images"] for row in rows if row["images"]), 0)
    paper = f", {config.paper_dense:.2f} in the paper" if config.paper_dense else ""
    facts = [
        f"Dense top-1: {dense:.2f} here{paper}. Top-1 counted on {images:,} test images; mean ± "
        "standard deviation over seeds, where there are several."
    ]
    facts.append(
        f"{states['done']} cells done, {states['infeasible']} not feasible, {states['failed']} "
        f"failed. Budgets of layerwise methods: {config.allocate}"
        + (
            f", measured on {config.verify_samples:,} training images."
            if "equal" in config.allocate
            else "."
        )
    )
    if config.paper_model and config.goal == "compression":
        facts.append(
            "The paper's accuracies count the last batch as full, about 1.1% too low; so "
            "differences are between shares of the dense accuracy that are left, ours less the "
            "paper's, in points. Its fine-tuned rows are taken as fine-tuned on all data."
        )
    return [*facts, f"Made with {made_with(rows)}."]


def made_with(rows: Iterable[Row]) -> str:
    """The versions that made the rows, each set of them once with its commits, the commit of most
    rows first.
    """
    commits: dict[str, Counter[str]] = {}
    for row in rows:
        packages = json.loads(row["versions"])
        text = ", ".join(
            f"{name} {packages[name]}"
            for name in ("subprune", "torch", "python")
            if name in packages
        )
        commits.setdefault(text, Counter())[packages.get("commit", "")] += 1
    return "; ".join(_versions(text, commits[text]) for text in sorted(commits))


def _versions(text: str, commits: Counter[str]) -> str:
    known = [
        commit
        for commit, _ in sorted(commits.items(), key=lambda item: (-item[1], item[0]))
        if commit
    ]
    return (
        f"{text}, {'commit' if len(known) == 1 else 'commits'} {', '.join(known)}"
        if known
        else text
    )


def _section(
    config: Config, curves: Curves, dense: float, batchnorm: str, finetune: str
) -> dict[str, Any]:
    section = {g: p for g, p in curves.items() if g[2:] == (batchnorm, finetune)}
    ordered = [
        (m, rw)
        for m in methods_in_order(section)
        for rw in (True, False)
        if (m, rw, batchnorm, finetune) in section
    ]
    lines = [(m, rw, section[m, rw, batchnorm, finetune]) for m, rw in ordered]
    return {
        "title": setting_title(batchnorm, finetune),
        "series": [_series(*line, dense) for line in lines],
        "tables": [
            _table("Top-1, %", lines, config, _accuracy),
            _table("Speed-up (FLOPs before / after)", lines, config, _speedup),
            _table("Pruning time, without the choice of budgets", lines, config, _seconds),
        ],
    }


def _series(method: str, reweight: bool, curve: list[Point], dense: float) -> dict[str, Any]:
    start = {"value": 1, "top1": dense, "std": 0, "runs": 1, "paper": None}
    measured = [
        {"value": p.value, "top1": p.top1, "std": p.std, "runs": p.runs, "paper": p.paper_top1}
        for p in curve
    ]
    return {
        "method": method,
        "label": LABELS.get(method, method),
        "colour": colour(method),
        "reweight": reweight,
        "ours": method in OURS,
        "points": sorted([start, *measured], key=lambda p: p["value"]),
    }


Lines = list[tuple[str, bool, list[Point]]]


def _table(
    title: str, lines: Lines, config: Config, cell: Callable[[Point], dict[str, str]]
) -> dict[str, Any]:
    values = sorted({p.value for _, _, curve in lines for p in curve})
    sign = "c = " if config.goal == "compression" else "kept "
    rows = []
    for method, reweight, curve in lines:
        by_value = {p.value: p for p in curve}
        cells = [cell(by_value[v]) if v in by_value else {"text": "–"} for v in values]
        rows.append({"label": LABELS.get(method, method), "reweight": reweight, "cells": cells})
    return {"title": title, "columns": [f"{sign}{v:g}" for v in values], "rows": rows}


def _accuracy(p: Point) -> dict[str, str]:
    cell = {"text": p.text}
    if p.paper_top1 is not None and p.difference is not None:
        sign = "−" if p.difference < 0 else "+"
        cell |= {
            "paper": f"paper {p.paper_top1:.1f}",
            "difference": f"{sign}{abs(p.difference):.1f}",
        }
    return cell


def _speedup(p: Point) -> dict[str, str]:
    paper = {} if p.paper_speedup is None else {"paper": f"paper {p.paper_speedup:.1f}"}
    return {"text": f"{p.speedup:.1f}", **paper}


def _seconds(p: Point) -> dict[str, str]:
    paper = {} if p.paper_seconds is None else {"paper": f"paper {_time(p.paper_seconds)}"}
    return {"text": _time(p.seconds), **paper}


def _time(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
