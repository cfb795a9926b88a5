"""One row per group: its widths, the error left, and what it saves; deep networks in stages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from subprune.report.markup import big, breakable, count, e, html_table, section
from subprune.report.stages import Stage, stages
from subprune.report.terminal import error_left, percent, weight_growth

if TYPE_CHECKING:
    from subprune.plan import GroupPlan
    from subprune.report.figures import Report

__all__ = ["brief_table", "group_section"]

_HEAD = (
    ("group", ""),
    ("kind", "wide"),
    ("width", ""),
    ("error left (fitted)", "n"),
    ("params saved", "n"),
    ("FLOPs saved", "n"),
    ("weights", "n wide"),
    ("read by", "wide"),
)


def group_section(r: Report) -> str:
    """The table of all groups, with a field to search in it where they are many."""
    parts = stages(r.plan.groups)
    bodies = "".join(_stage(r, stage) for stage in parts)
    head = "".join(f'<th class="{kind}">{e(name)}</th>' for name, kind in _HEAD)
    folds = len(parts) > 1
    total = _totals(r, r.plan.groups, f"all {len(r.plan.groups)} groups")
    table = (
        f'<table id="groups"><thead><tr>{head}</tr></thead>{bodies}'
        f"<tfoot>{_row_of(total, 'th')}</tfoot></table>"
    )
    text = (
        "Width: units before and after; the bar is the share that stays. Error left: the share of "
        "what the next layers received from these units that is lost after reweighting, on rows of "
        "data that were not fitted (in brackets: on those that were). What is saved adds up to the "
        "whole: where two groups cut the same weight, each is credited with half of what both save."
    )
    wide = "Weights: the norm of the new ones over that of the old ones."
    tools = _tools(len(r.plan.groups)) if folds else ""
    body = f'{tools}<div class="card scroll groups">{table}</div>'
    return section("Group by group", text, body, wide)


def _tools(groups: int) -> str:
    return (
        '<div class="tools script"><input type="search" id="search" placeholder="search groups" '
        'aria-label="search groups"><button data-fold="groups">open all stages</button>'
        f'<span class="soft" id="matches" aria-live="polite">{groups} groups</span></div>'
    )


def _stage(r: Report, stage: Stage) -> str:
    rows = "".join(_group(r, g) for _, g in stage.groups)
    if not stage.name or len(stage.groups) == 1:
        return f"<tbody>{rows}</tbody>"
    groups = [g for _, g in stage.groups]
    fold = f'<button class="fold" aria-expanded="true">{breakable(stage.name)}</button>'
    cells = _totals(r, groups, "")
    cells[0] = f'{fold} <span class="many">{count(len(groups), "group")}</span>'
    return f'<tbody class="stage">{_row_of(cells, "th", "head")}{rows}</tbody>'


def _group(r: Report, g: GroupPlan) -> str:
    saved = r.savings.get(g.name)
    cells = [
        breakable(g.name),
        e(g.kind),
        _width(g.units, len(g.kept)),
        e(error_left(g)),
        _saved(saved[0] if saved else None, r.parameters[0]),
        _saved(saved[1] if saved else None, r.flops[0]),
        weight_growth(g),
        breakable(", ".join(g.consumers[:4]) + (" …" if len(g.consumers) > 4 else "")),
    ]
    words = " ".join((g.name, g.kind, *g.consumers)).lower()
    return _row_of(cells, "td", data=f'data-words="{e(words)}"')


def _totals(r: Report, groups: Sequence[GroupPlan], name: str) -> list[str]:
    """Sums of some groups, and their mean error."""
    known = [r.savings[g.name] for g in groups if g.name in r.savings]
    sums = [sum(x[i] for x in known) if known else None for i in (0, 1)]
    return [
        e(name),
        "",
        _width(sum(g.units for g in groups), sum(len(g.kept) for g in groups)),
        e(_mean_error(groups)),
        _saved(sums[0], r.parameters[0]),
        _saved(sums[1], r.flops[0]),
        "",
        "",
    ]


def _mean_error(groups: Sequence[GroupPlan]) -> str:
    """Of the groups that were cut, on held-out rows where there are some."""
    cut = [g for g in groups if len(g.kept) < g.units]
    errors = [g.error if math.isnan(g.held_out) else g.held_out for g in cut]
    errors = [x for x in errors if not math.isnan(x)]
    if not errors:
        return "" if cut else "whole"
    return f"mean {percent(sum(errors) / len(errors))}"


def _row_of(cells: Sequence[str], tag: str, kind: str = "", data: str = "") -> str:
    inside = "".join(
        f'<{tag} class="{mark}">{cell}</{tag}>'
        for cell, (_, mark) in zip(cells, _HEAD, strict=True)
    )
    return f'<tr class="{kind}" {data}>{inside}</tr>'


def _width(units: int, kept: int) -> str:
    share = kept / max(1, units)
    change = f"{units:,}" if kept == units else f"{units:,} → {kept:,}"
    return (
        f'<span class="width">{change}</span><span class="bar" title="{share:.0%} stay">'
        f'<i style="width:{share:.1%}"></i></span>'
    )


def _saved(amount: int | None, whole: int) -> str:
    if amount is None:
        return "–"
    if not amount:
        return "0"
    return f'{big(amount)} <span class="soft">{amount / max(1, whole):.1%}</span>'


def brief_table(groups: Sequence[GroupPlan]) -> str:
    """For a notebook, which has no style sheet: the same without bars."""
    head = ("group", "kind", "units", "kept", "error left (fitted)", "weights", "read by")
    rows = [
        [e(g.name), e(g.kind), str(g.units), str(len(g.kept)), e(error_left(g)), weight_growth(g),
         e(", ".join(g.consumers[:4]) + (" …" if len(g.consumers) > 4 else ""))]
        for g in groups
    ]  # fmt: skip
    return html_table(head, rows, numbers=(2, 3, 4, 5))
