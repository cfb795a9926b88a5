"""One self-contained HTML page per report: nothing in it is fetched from anywhere."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING

from subprune.report.brought import courses, parts_used
from subprune.report.svg import curve, network
from subprune.report.terminal import (
    error_left,
    faster,
    measured,
    milliseconds,
    percent,
    spent,
    surprise,
    throughput,
    timed,
    weight_growth,
)

if TYPE_CHECKING:
    from subprune.measure.compare import Comparison
    from subprune.plan import GroupPlan
    from subprune.report.figures import Report

__all__ = ["fragment", "html_table", "page"]

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def page(report: Report) -> str:
    """The whole page."""
    assets = files("subprune.report")
    css, js = (
        assets.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js")
    )
    name = e(report.model or "model")
    sections = (
        _head,
        _figures,
        _network,
        _groups,
        _parts,
        _curves,
        _guarantees,
        _exports,
        _skipped,
        _how,
    )
    body = "".join(section(report) for section in sections)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{name}, pruned</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f"<style>{css}</style></head><body><main>{body}</main><script>{js}</script></body></html>"
    )


def fragment(report: Report) -> str:
    """For a notebook: the table without its bars, whose style sheet is not there, and the lines of
    the terminal.
    """
    rows = [row[:5] + row[6:] for row in _group_rows(report.plan.groups)]
    lines = [f"{name}: {text}" for name, text in measured(report)] + [
        f"note: {note}" for note in report.notes
    ]
    table = html_table(_GROUP_HEAD[:5] + _GROUP_HEAD[6:], rows, numbers=(2, 3, 4, 5))
    return f"<p>{e(report.summary())}</p>{table}<p>{'<br>'.join(map(e, lines))}</p>"


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


def _head(r: Report) -> str:
    goal = next(
        (
            f"{k} = {_plain(r.plan.options[k])}"
            for k in ("compression", "speedup", "params", "flops", "latency", "keep")
            if r.plan.options.get(k) is not None
        ),
        "given budgets",
    )
    words = f"{r.plan.method}, {goal}, {r.samples} inputs, {r.seconds:.1f} s"
    if r.parts:
        words += f" ({spent(r)})"
    return (
        f"<h1>{e(r.model or 'model')}, {r.compression:.2f}× smaller</h1>"
        f'<p class="soft">{e(words)}</p>'
    )


def _plain(x: object) -> str:
    return f"{x:g}" if isinstance(x, int | float) else str(x)


def _figures(r: Report) -> str:
    (p, q), (f, g) = r.parameters, r.flops
    shown = [
        (f"{r.compression:.2f}×", f"fewer parameters: {p:,} → {q:,}"),
        (f"{r.speedup:.2f}×", f"fewer FLOPs per input: {_big(f)} → {_big(g)}"),
    ]
    if r.latency is not None:
        ratio, _, word = faster(r).partition(" ")
        if ratio == "no":
            ratio, word = "≈", faster(r)
        shown.append((ratio, f"{word}: {milliseconds(r)} {timed(r)}"))
    if r.accuracy is not None:
        a, b = r.accuracy
        shown.append((percent(b), f"accuracy on {r.accuracy_on}, {percent(a)} before"))
    if r.tokens_per_second is not None:
        shown.append((f"{r.tokens_per_second[1]:,.0f}", f"tokens per second: {throughput(r)}"))
    if r.verified is not None and r.verified.perplexity is not None:
        after = f"{r.verified.perplexity[1]:.4g}"
        shown.append((after, f"perplexity on {r.accuracy_on}: {surprise(r.verified)}"))
    if r.verified is not None and r.verified.cosine is not None:
        shown.append((f"{r.verified.cosine:.4f}", f"mean cosine on {r.accuracy_on}"))
    shown += _compared(r)
    cells = "".join(
        f'<div class="figure"><b>{e(b)}</b><span>{e(text)}</span></div>' for b, text in shown
    )
    return f'<div class="figures">{cells}</div>'


def _compared(r: Report) -> list[tuple[str, str]]:
    """How the outputs compare with those before: held-out inputs first, the fitted ones beside."""
    shown, fitted = r.compared, r.fitted
    figures: list[tuple[Callable[[Comparison], str], str]] = []
    if shown.perplexity is not None:
        before = f"perplexity, {shown.perplexity[0]:.4g} before, over {shown.tokens:,} tokens"
        figures.append((lambda c: f"{(c.perplexity or (math.nan,) * 2)[1]:.4g}", before))
    if shown.cosine is not None:
        figures.append((lambda c: f"{c.cosine:.4f}", "mean cosine with the dense model"))
    if not math.isnan(shown.agreement):
        figures.append(
            (lambda c: percent(c.agreement, 1), f"of {shown.kind}s: same answer as before")
        )
    if shown.kind and not math.isnan(shown.output_change):
        figures.append(
            (lambda c: percent(c.output_change), "change of the outputs (squared, relative)")
        )
    elif not math.isnan(shown.output_change):
        figures.append((lambda c: percent(c.relative_error), "relative output error"))
    if r.held_out is None:
        return [
            (f(shown), f"{text}, on the calibration data itself, which flatters")
            for f, text in figures
        ]
    where = f"on {shown.inputs:,} held-out inputs"
    return [(f(shown), f"{text}, {where}; on fitted inputs: {f(fitted)}") for f, text in figures]


def _big(x: float) -> str:
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if x >= size:
            return f"{x / size:.3g}\u00a0{unit}"
    return f"{x:.3g}"


def _network(r: Report) -> str:
    if not r.layers:
        return ""
    legend = (
        '<p class="soft legend"><i style="background:var(--kept)"></i>kept'
        '<i style="background:var(--gone)"></i>'
        "removed. Input at the top; bars grow with the square root of the width.</p>"
    )
    return f'<h2>What went where</h2>{legend}<div class="card net">{network(r.layers)}</div>'


_GROUP_HEAD = ("group", "kind", "units", "kept", "error left (fitted)", "", "weights", "read by")


def _group_rows(groups: Sequence[GroupPlan]) -> list[list[str]]:
    rows = []
    for g in groups:
        share = len(g.kept) / max(1, g.units)
        bar = f'<span class="bar"><i style="width:{share:.1%}"></i></span>'
        readers = _breakable(", ".join(g.consumers[:4]) + (" …" if len(g.consumers) > 4 else ""))
        rows.append(
            [
                _breakable(g.name),
                e(g.kind),
                str(g.units),
                str(len(g.kept)),
                error_left(g),
                bar,
                weight_growth(g),
                readers,
            ]
        )
    return rows


def _breakable(name: str) -> str:
    """Long names break at their dots, not in the middle of a word."""
    return e(name).replace(".", ".<wbr>")


def _groups(r: Report) -> str:
    text = (
        "Error left: the share of what the next layers received from these units that is lost "
        "after reweighting, on rows of data that were not fitted (in brackets: on those that "
        "were). Weights: their norm over the old one."
    )
    table = html_table(_GROUP_HEAD, _group_rows(r.plan.groups), numbers=(2, 3, 4, 6))
    return (
        f'<h2>Group by group</h2><p class="soft">{text}</p>'
        f'<div class="card scroll groups">{table}</div>'
    )


def _parts(r: Report) -> str:
    """What each part brought."""
    rows = [
        [e(f"{course.layers} {course.what}"), e(str(course)).replace(" → ", "<br>→ ")]
        for course in courses(r.plan)
    ]
    if not rows:
        return ""
    text = (
        "The share of what the layers should give that is left after each stage, on average, where "
        "it reaches the rest of the network; after fits, on rows of data that were not fitted. "
        f"Parts: {parts_used(r.plan)}."
    )
    table = html_table(("layers", "error left"), rows)
    return (
        f'<h2>What each part brought</h2><p class="soft">{e(text)}</p>'
        f'<div class="card scroll">{table}</div>'
    )


def _curves(r: Report) -> str:
    cards = []
    for g in r.plan.groups:
        drawing = curve(g)
        if drawing:
            k = len(g.kept)
            remaining = (
                "whole"
                if k == g.units
                else f"{percent(g.errors[k]) if k < len(g.errors) else '–'} left"
            )
            caption = f"{k} of {g.units} kept: {remaining}"
            cards.append(
                f'<div class="card curve"><h3>{e(g.name)}</h3>'
                f'<p class="soft said">{e(caption)}</p>{drawing}</div>'
            )
    if not cards:
        return ""
    text = (
        "For every number of units: the error that the greedy choice of so many leaves, with a "
        "plain fit and on the inputs it was fitted to. The dashed line is the choice."
    )
    return (
        f'<h2>Error curves</h2><p class="soft">{text}</p><div class="curves">{"".join(cards)}</div>'
    )


def _guarantees(r: Report) -> str:
    if not r.guarantees:
        why = (
            r.plan.unbounded
            or "They were not computed: --guarantees on the command line adds them."
        )
        return f'<h2>Guarantees</h2><p class="soft">{e(why)}</p>'
    head = ("group", "k", "error", "proven: at most", "γ at least", "assumptions")
    rows = [
        [e(g.name), str(g.k), percent(g.error), percent(min(g.bound, 1.0)), f"{g.gamma:.3g}",
         _folded(g.assumptions)]
        for g in r.guarantees
    ]  # fmt: skip
    table = html_table(head, rows, numbers=(1, 2, 3, 4))
    text = "Bounds that hold for this data, beside what was reached; 100% says nothing."
    return f'<h2>Guarantees</h2><p class="soft">{text}</p><div class="card scroll">{table}</div>'


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
    return (
        "<h2>Exported files</h2>"
        f'<div class="card scroll">{html_table(head, rows, numbers=(2, 4, 5, 6))}</div>'
    )


def _skipped(r: Report) -> str:
    notes = "".join(f"<p>{e(n)}</p>" for n in r.notes)
    if not r.refused:
        return (
            "<h2>Left as it was</h2>"
            f"<p class='soft'>Everything that can be pruned was looked at.</p>{notes}"
        )
    by_reason: dict[str, list[str]] = {}
    for name, why in r.refused.items():
        by_reason.setdefault(why, []).append(name)
    rows = [[e(_listed(names)), e(why)] for why, names in by_reason.items()]
    return (
        "<h2>Left as it was, and why</h2>"
        f'<div class="card scroll">{html_table(("what", "why"), rows)}</div>{notes}'
    )


def _listed(names: Sequence[str], most: int = 6) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _how(r: Report) -> str:
    versions = ", ".join(f"{k} {v}" for k, v in r.versions.items())
    data = f"Data fingerprint {e(r.plan.data)}. " if r.plan.data else ""
    return (
        f'<h2>Make it again</h2><div class="card"><pre id="command">{e(r.command)}</pre>'
        f'<button data-copy="command">copy</button></div><p class="soft">{data}{e(versions)}</p>'
    )
