"""The top of a page: how good the smaller model is, and bars for how small and fast it is."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from subprune.report.markup import big, e
from subprune.report.terminal import faster, milliseconds, percent, surprise, throughput, timed

if TYPE_CHECKING:
    from subprune.measure.compare import Comparison
    from subprune.report.figures import Report

__all__ = ["bars", "quality"]


def quality(r: Report) -> str:
    """What the smaller model is worth, the figures that count most first."""
    shown: list[tuple[str, str]] = []
    if r.accuracy is not None:
        a, b = r.accuracy
        points = f"{100 * (b - a):+.2f} points".replace("-", "−")
        shown.append((percent(b), f"accuracy on {r.accuracy_on}, {percent(a)} before ({points})"))
    if r.verified is not None and r.verified.perplexity is not None:
        after = f"{r.verified.perplexity[1]:.4g}"
        shown.append((after, f"perplexity on {r.accuracy_on}: {surprise(r.verified)}"))
    if r.verified is not None and r.verified.cosine is not None:
        shown.append((f"{r.verified.cosine:.4f}", f"mean cosine on {r.accuracy_on}"))
    shown += _compared(r)
    cells = "".join(
        f'<div class="figure"><b>{e(b)}</b><span>{e(text)}</span></div>' for b, text in shown
    )
    return f'<div class="figures">{cells}</div>' if cells else ""


def _compared(r: Report) -> list[tuple[str, str]]:
    """How the outputs compare with those before: held-out inputs first, then the fitted ones."""
    shown, fitted = r.compared, r.fitted
    figures: list[tuple[Callable[[Comparison], str], str]] = []
    if shown.perplexity is not None:
        before = f"perplexity, {shown.perplexity[0]:.4g} before, over {shown.tokens:,} tokens"
        figures.append((lambda c: f"{(c.perplexity or (math.nan,) * 2)[1]:.4g}", before))
    if not math.isnan(shown.agreement):
        words = f"of {shown.kind}s: same answer as the dense model"
        figures.append((lambda c: percent(c.agreement, 1), words))
    if shown.cosine is not None:
        figures.append((lambda c: f"{c.cosine:.4f}", "mean cosine with the dense model"))
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


@dataclass(frozen=True)
class _Bar:
    """One quantity of one model."""

    when: str
    value: float
    text: str
    spread: tuple[float, float] | None = None


def bars(r: Report) -> str:
    """Parameters, FLOPs and latency, before and after, each on its own scale that starts at 0;
    below them how the latency was measured.
    """
    (p, q), (f, g) = r.parameters, r.flops
    cards = [
        _card(
            "Parameters",
            f"{r.compression:.2f}× fewer",
            [_Bar("before", p, f"{p:,}"), _Bar("after", q, f"{q:,}")],
        )
    ]
    if f:
        words = f"{r.speedup:.2f}× fewer" if g else "none left"
        both = [_Bar("before", f, big(f)), _Bar("after", g, big(g))]
        cards.append(_card("FLOPs per input", words, both))
    about = ""
    if r.latency is not None:
        cards.append(_card("Latency", faster(r), _latencies(r)))
        about = f'<p class="soft about">{e(_about(r))}</p>'
    return f'<div class="sizes">{"".join(cards)}</div>{about}'


def _latencies(r: Report) -> list[_Bar]:
    spreads = r.latency_spread or (None, None)
    return [
        _Bar(when, median, f"{median * 1e3:.3g} ms", spread)
        for when, median, spread in zip(("before", "after"), r.latency or (), spreads, strict=False)
    ]


def _about(r: Report) -> str:
    words = f"Latency: {milliseconds(r)} {timed(r)}"
    words += " (the thin line)" if r.latency_spread is not None else ""
    if r.tokens_per_second is not None:
        words += f"; tokens per second: {throughput(r)}"
    return words


def _card(title: str, change: str, both: Sequence[_Bar]) -> str:
    longest = max([b.spread[1] if b.spread else b.value for b in both] + [b.value for b in both])
    rows = "".join(_row(b, longest or 1.0) for b in both)
    return f'<div class="card size"><h3>{e(title)} <b>{e(change)}</b></h3>{rows}</div>'


def _row(bar: _Bar, longest: float) -> str:
    around = ""
    if bar.spread is not None:
        low, high = (100 * x / longest for x in bar.spread)
        around = f'<em style="left:{low:.2f}%;width:{high - low:.2f}%"></em>'
    return (
        f'<div class="pair {bar.when}"><span>{bar.when}</span><div class="track">'
        f'<i style="width:{100 * bar.value / longest:.2f}%"></i>{around}</div>'
        f"<span>{e(bar.text)}</span></div>"
    )
