"""Tables for the terminal."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from subprune.measure.tables import WIDTH, text_table
from subprune.report.brought import ROUNDING, errors_by_stage

if TYPE_CHECKING:
    from subprune.measure.compare import Comparison
    from subprune.plan import GroupPlan
    from subprune.report.figures import Report

__all__ = [
    "by_reason",
    "comparisons",
    "error_left",
    "faster",
    "measured",
    "milliseconds",
    "not_pruned",
    "percent",
    "remarks_text",
    "report_table",
    "report_text",
    "spent",
    "surprise",
    "throughput",
    "timed",
    "verified",
    "weight_growth",
]


_NAMES = 6  # that are shown of those left whole for one reason


def remarks_text(lines: list[str], width: int = WIDTH) -> str:
    """Lines below a table, each broken at its words where it is too long."""
    return "\n".join(
        textwrap.fill(line, width, subsequent_indent="  ", break_on_hyphens=False) for line in lines
    )


def percent(x: float, digits: int = 2) -> str:
    """A share as a percentage, a dash if it is unknown; rounding errors are not shown in digits."""
    if math.isnan(x):
        return "–"
    if 0 < abs(x) < ROUNDING:
        return f"under {ROUNDING:.4%}"
    return f"{100 * x:.1g}%" if 0 < abs(x) < 0.5 * 10.0 ** -(digits + 2) else f"{x:.{digits}%}"


def error_left(group: GroupPlan) -> str:
    """The error of a group in words, held-out rows first; one that lost nothing is whole."""
    if len(group.kept) == group.units:
        return "whole"
    if math.isnan(group.held_out):
        return f"{percent(group.error)} fitted" if group.rows else percent(group.error)
    return f"{percent(group.held_out)} ({percent(group.error)})"


def weight_growth(group: GroupPlan) -> str:
    """How the norm of the weights that read the group has changed."""
    return "–" if math.isnan(group.growth) else f"{group.growth:.2f}×"


def faster(report: Report) -> str:
    """How the two times compare: no verdict where the middle halves of the calls overlap."""
    if report.latency is None or not all(report.latency):
        return "–"
    a, b = report.latency
    if report.latency_spread is not None:
        (low, high), (lower, higher) = report.latency_spread
        if lower <= high and low <= higher:
            return "no measurable difference"
    return f"{a / b:.2f}× faster" if b <= a else f"{b / a:.2f}× slower"


def milliseconds(report: Report) -> str:
    """Median and quartiles before and after."""
    spreads = report.latency_spread or (None, None)
    both = zip(report.latency or (), spreads, strict=False)
    return " → ".join(_range(median, spread) for median, spread in both)


def _range(median: float, spread: tuple[float, float] | None) -> str:
    around = "" if spread is None else f" ({spread[0] * 1e3:.3g}–{spread[1] * 1e3:.3g})"
    return f"{median * 1e3:.3g} ms{around}"


def timed(report: Report) -> str:
    """What the latency is about."""
    n, threads, calls = report.latency_inputs, report.latency_threads, report.latency_calls
    parts = [f"for {n:,} input{'' if n == 1 else 's'}"]
    parts += [f"{threads} thread{'' if threads == 1 else 's'}"] if threads else []
    parts += [f"median of {calls} calls and the middle half of them"] if calls else []
    return ", ".join(parts)


def spent(report: Report) -> str:
    """What the seconds went into."""
    return ", ".join(f"{name} {seconds:.2f}" for name, seconds in report.parts.items())


def report_table(report: Report, width: int = WIDTH) -> str:
    """Kept units, group by group."""
    header = ("group", "kind", "units", "kept", "error left (fitted)", "weights", "read by")
    rows = [
        (
            g.name,
            g.kind,
            f"{g.units:,}",
            f"{len(g.kept):,}",
            error_left(g),
            weight_growth(g),
            ", ".join(g.consumers),
        )
        for g in report.plan.groups
    ]
    return text_table(header, rows, right=header[2:6], title=report.summary(), width=width)


def report_text(report: Report, width: int = WIDTH) -> str:
    """The table, what else was measured, where the time went, and remarks."""
    lines = [f"{name}: {text}" for name, text in measured(report)]
    lines += not_pruned(report.refused)
    lines += [f"note: {note}" for note in report.notes]
    return f"{report_table(report, width)}\n\n{remarks_text(lines, width)}\n"


def by_reason(refused: Mapping[str, str]) -> dict[str, list[str]]:
    """Why layers were left whole, and which."""
    reasons: dict[str, list[str]] = {}
    for name, why in refused.items():
        reasons.setdefault(why, []).append(name or "the model itself")
    return reasons


def not_pruned(refused: Mapping[str, str]) -> list[str]:
    """What was left whole, and why: a line for each reason, with the first names."""
    lines = []
    for why, names in by_reason(refused).items():
        more = len(names) - _NAMES
        rest = f" and {more:,} more" if more > 0 else ""
        lines.append(f"not pruned: {', '.join(names[:_NAMES])}{rest}: {why}")
    return lines


def comparisons(report: Report) -> list[tuple[str, str, str]]:
    """How the outputs compare: a name, the figure, and the inputs it is about."""
    shown, fitted = report.compared, report.fitted
    figures: list[tuple[str, Callable[[Comparison], str]]] = []
    if shown.perplexity is not None:
        figures.append(("perplexity", surprise))
    if shown.cosine is not None:
        figures.append(("mean cosine with the dense model", lambda c: f"{c.cosine:.4f}"))
    if not math.isnan(shown.agreement):
        same = "agreement with the dense model"
        figures.append((same, lambda c: f"same answer for {percent(c.agreement)} of {c.kind}s"))
    if shown.kind and not math.isnan(shown.output_change):
        figures.append(("output change", lambda c: percent(c.output_change)))
    elif not math.isnan(shown.output_change):
        figures.append(("relative output error", lambda c: percent(c.relative_error)))
    if report.held_out is None:
        return [
            (name, words(shown), "on the calibration data itself, which flatters")
            for name, words in figures
        ]
    where = f"on {shown.inputs:,} held-out input{'' if shown.inputs == 1 else 's'}"
    return [
        (name, words(shown), f"{where}; on fitted inputs: {words(fitted)}")
        for name, words in figures
    ]


def surprise(c: Comparison) -> str:
    """Perplexity before and after, and over how many tokens."""
    before, after = c.perplexity or (math.nan, math.nan)
    ratio = f", {after / before:.3f}×" if before and math.isfinite(after / before) else ""
    return f"{before:.4g} → {after:.4g}{ratio} over {c.tokens:,} tokens"


def verified(report: Report) -> list[tuple[str, str]]:
    """Figures on the verification data, apart from accuracy."""
    rows: list[tuple[str, str]] = []
    if report.verified is not None and report.verified.perplexity is not None:
        rows.append(("perplexity", surprise(report.verified)))
    if report.verified is not None and report.verified.cosine is not None:
        rows.append(("mean cosine", f"{report.verified.cosine:.4f}"))
    return rows


def throughput(report: Report) -> str:
    """Tokens per second before and after."""
    before, after = report.tokens_per_second or (math.nan, math.nan)
    return (
        f"{before:,.0f} → {after:,.0f} (whole sequences, {report.latency_tokens:,} tokens a call)"
    )


def measured(report: Report) -> list[tuple[str, str]]:
    """Measured figures beyond sizes, in words."""
    lines = [(name, f"{value}, {where}") for name, value, where in comparisons(report)]
    if report.accuracy is not None:
        a, b = report.accuracy
        lines.append((f"accuracy on {report.accuracy_on}", f"{percent(a)} → {percent(b)}"))
    lines += [(f"{name} on {report.accuracy_on}", value) for name, value in verified(report)]
    for course in errors_by_stage(report.plan):
        where = f"error left, mean of {course.what}"
        lines.append((where, str(course)))
    if report.latency is not None:
        lines.append(("latency", f"{faster(report)}: {milliseconds(report)} {timed(report)}"))
    if report.tokens_per_second is not None:
        lines.append(("tokens per second", throughput(report)))
    if report.parts:
        lines.append(("time", f"{report.seconds:.2f} s: {spent(report)}"))
    return lines
