"""One self-contained HTML page per report: nothing in it is fetched from anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from typing import TYPE_CHECKING

from subprune.report.brought import errors_by_stage, parts_used
from subprune.report.group_table import brief_table, group_section
from subprune.report.markup import breakable, count, e, html_table, section
from subprune.report.other_sizes import page_data, size_section
from subprune.report.sizes import bars, quality
from subprune.report.stages import Stage, stages
from subprune.report.svg import curve, overlay, skyline
from subprune.report.terminal import by_reason, measured, not_pruned, percent, spent

if TYPE_CHECKING:
    from subprune.plan import GroupPlan
    from subprune.report.figures import Report

__all__ = ["fragment", "page"]

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
_GOALS = ("compression", "speedup", "params", "flops", "latency", "keep")


def page(report: Report) -> str:
    """The whole page."""
    assets = files("subprune.report")
    css, js = (
        assets.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js")
    )
    name = e(report.model or "model")
    sections = (
        _head,
        quality,
        bars,
        _notes,
        group_section,
        size_section,
        _curves,
        _layers,
        _parts,
        _guarantees,
        _exports,
        _skipped,
        _how,
    )
    body = "".join(part(report) for part in sections)
    data = f'<script type="application/json" id="data">{page_data(report)}</script>'
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{name}, pruned</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f"<style>{css}</style></head><body><main>{body}</main>{data}<script>{js}</script>"
        "</body></html>"
    )


def fragment(report: Report) -> str:
    """For a notebook: the table without its bars, whose style sheet is not there, and the lines of
    the terminal.
    """
    lines = [f"{name}: {text}" for name, text in measured(report)]
    lines += not_pruned(report.refused)
    lines += [f"note: {note}" for note in report.notes]
    table = brief_table(report.plan.groups)
    return f"<p>{e(report.summary())}</p>{table}<p>{'<br>'.join(map(e, lines))}</p>"


def _head(r: Report) -> str:
    goals = [
        f"{k} = {_plain(r.plan.options[k])}" for k in _GOALS if r.plan.options.get(k) is not None
    ]
    words = f"{r.plan.method}, {', '.join(goals) or 'given budgets'}, {r.samples} inputs, "
    words += f"{r.seconds:.1f} s"
    if r.parts:
        words += f" ({spent(r)})"
    return (
        f"<h1>{e(r.model or 'model')}, {r.compression:.2f}× smaller</h1>"
        f'<p class="soft">{e(words)}</p>'
    )


def _plain(x: object) -> str:
    return f"{x:g}" if isinstance(x, int | float) else str(x)


def _notes(r: Report) -> str:
    """Remarks stand before the details they are about."""
    if not r.notes:
        return ""
    return f'<ul class="notes">{"".join(f"<li>{e(n)}</li>" for n in r.notes)}</ul>'


def _layers(r: Report) -> str:
    """The widths of all layers; without a layer that was cut there is nothing to see."""
    if all(x.before == x.after for x in r.layers):
        return ""
    legend = (
        '<p class="soft legend"><i style="background:var(--kept)"></i>kept'
        '<i style="background:var(--gone)"></i>removed</p>'
    )
    text = (
        "Every layer with a weight, from the input on the left to the output on the right; the "
        "height is its width."
    )
    return section("What went where", text, f'{legend}<div class="card">{skyline(r.layers)}</div>')


def _parts(r: Report) -> str:
    """What each part brought."""
    rows = [
        [e(course.what), e(str(course)).replace(" → ", "<br>→ ")]
        for course in errors_by_stage(r.plan)
    ]
    if not rows:
        return ""
    text = (
        "How much of what the layers should reproduce is still missing after each stage, on "
        "average, where it reaches the rest of the network; after fits, on rows of data that were "
        "not fitted. "
        f"Parts: {parts_used(r.plan)}."
    )
    table = html_table(("layers", "error left"), rows)
    return section("What each part brought", text, f'<div class="card scroll">{table}</div>')


def _curves(r: Report) -> str:
    shown = [(stage, _cards(stage)) for stage in stages(r.plan.groups)]
    shown = [(stage, cards) for stage, cards in shown if cards]
    if not shown:
        return ""
    text = (
        "For every number of units: the error left by the greedy choice of that many, with a plain "
        "fit, on the inputs it was fitted to. All curves have the same scale; dots and dashed lines "
        "are what was chosen."
    )
    numbered = list(enumerate(r.plan.groups))
    together = ""
    if sum(len(cards) for _, cards in shown) > 1:
        said = '<p class="soft said hint">Point at a curve to see its group.</p>'
        together = f'<div class="card script together">{said}{overlay(numbered)}</div>'
    if len(shown) == 1:
        return section("Error curves", text, f"{together}{_grid(shown[0][1])}")
    folded = "".join(
        f"<details><summary>{breakable(stage.name)} "
        f'<span class="soft">{count(len(cards), "curve")}</span></summary>{_grid(cards)}</details>'
        for stage, cards in shown
    )
    return section("Error curves", text, together + folded)


def _grid(cards: Sequence[str]) -> str:
    return f'<div class="curves">{"".join(cards)}</div>'


def _cards(stage: Stage) -> list[str]:
    return [card for i, g in stage.groups if (card := _curve_card(i, g))]


def _curve_card(number: int, g: GroupPlan) -> str:
    drawing = curve(g, number)
    if not drawing:
        return ""
    k = len(g.kept)
    remaining = f"{percent(g.errors[k]) if k < len(g.errors) else '–'} left"
    caption = f"{k} of {g.units} kept: {'whole' if k == g.units else remaining}"
    return (
        f'<div class="card curve"><h3>{breakable(g.name)}</h3>'
        f'<p class="soft said">{e(caption)}</p>{drawing}</div>'
    )


def _guarantees(r: Report) -> str:
    if not r.guarantees:
        return ""
    head = ("group", "k", "error", "proven: at most", "γ at least", "assumptions")
    rows = [
        [e(g.name), str(g.k), percent(g.error), percent(min(g.bound, 1.0)), f"{g.gamma:.3g}",
         _folded(g.assumptions)]
        for g in r.guarantees
    ]  # fmt: skip
    table = html_table(head, rows, numbers=(1, 2, 3, 4))
    text = "Bounds that hold for this data, next to what was reached; 100% says nothing."
    return section("Guarantees", text, f'<div class="card scroll">{table}</div>')


def _folded(lines: Sequence[str]) -> str:
    return f"<details><summary>{len(lines)} checked</summary>{'<br>'.join(map(e, lines))}</details>"


def _exports(r: Report) -> str:
    if not r.exports:
        return ""
    head = ("file", "format", "size", "batch", "differs by", "ms a call", "PyTorch")
    rows = [
        [e(x.path), e(x.format), f"{x.bytes / 1e3:,.1f} kB", e(x.batch), f"{x.difference:.1e}",
         f"{x.latency[1] * 1e3:.3g}", f"{x.latency[0] * 1e3:.3g}"]
        for x in r.exports
    ]  # fmt: skip
    table = html_table(head, rows, numbers=(2, 4, 5, 6))
    return section("Exported files", "", f'<div class="card scroll">{table}</div>')


def _skipped(r: Report) -> str:
    if not r.refused:
        return ""
    rows = [[_listed(names), e(why)] for why, names in by_reason(r.refused).items()]
    table = html_table(("what", "why"), rows)
    return section("Left as it was, and why", "", f'<div class="card scroll">{table}</div>')


def _listed(names: Sequence[str], most: int = 6) -> str:
    shown = breakable(", ".join(names[:most]))
    if len(names) <= most:
        return shown
    rest = breakable(", ".join(names[most:]))
    return f"{shown}<details><summary>and {len(names) - most} more</summary>{rest}</details>"


def _how(r: Report) -> str:
    versions = ", ".join(f"{k} {v}" for k, v in r.versions.items())
    data = f"Data fingerprint {e(r.plan.data)}. " if r.plan.data else ""
    body = (
        f'<div class="card"><pre id="command">{e(r.command)}</pre>'
        f'<button data-copy="command">copy</button></div><p class="soft">{data}{e(versions)}</p>'
    )
    bounds = "" if r.guarantees else f'<p class="soft">Guarantees: {e(_no_bounds(r))}</p>'
    return section("Make it again", "", body + bounds)


def _no_bounds(r: Report) -> str:
    return r.plan.unbounded or "not computed; --guarantees on the command line adds them."
