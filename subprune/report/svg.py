"""Drawings of a report: the network with its widths, and the error curve of a group."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from subprune.plan import GroupPlan
    from subprune.report.figures import LayerWidth

__all__ = ["curve", "network"]

_ROW, _BAR, _WIDE, _LEFT = 34, 14, 340, 10
_FRAME = (34.0, 252.0, 10.0, 116.0)  # left, right, top, bottom of a curve's plot
_MOST_POINTS = 160


def network(layers: Sequence[LayerWidth]) -> str:
    """Layers from top to bottom: each a bar as wide as the layer was, the kept part filled."""
    widest = max((x.before for x in layers), default=1)
    height = _ROW * len(layers) + 4
    parts, previous = [], None
    for i, layer in enumerate(layers):
        top = i * _ROW + 16
        full, now = (_share(n, widest) * _WIDE for n in (layer.before, layer.after))
        if previous is not None:
            parts.append(_flow(previous, (top, now)))
        parts.append(_bar("before", top, full))
        parts.append(_bar("after", top, now))
        name = html.escape(_short(layer.name, 34))
        change = (
            f"{layer.before} → {layer.after}" if layer.after != layer.before else f"{layer.before}"
        )
        parts.append(f'<text class="name" x="{_LEFT}" y="{top - 3}">{name}</text>')
        parts.append(f'<text x="{_LEFT + _WIDE}" y="{top - 3}" text-anchor="end">{change}</text>')
        title = html.escape(f"{layer.name} ({layer.kind}): {layer.before} → {layer.after}")
        parts.append(
            f'<rect x="0" y="{top - 14}" width="360" height="{_ROW}" opacity="0">'
            f"<title>{title}</title></rect>"
        )
        previous = (top + _BAR, now)
    label = "the network from input to output, widths before and after"
    return f'<svg viewBox="0 0 360 {height}" role="img" aria-label="{label}">{"".join(parts)}</svg>'


def _share(n: int, widest: int) -> float:
    """Widths spread over orders of magnitude: the square root keeps narrow layers visible."""
    return math.sqrt(n / widest) if widest else 0.0


def _bar(kind: str, top: float, width: float) -> str:
    x = _LEFT + (_WIDE - width) / 2
    return (
        f'<rect class="{kind}" x="{x:.1f}" y="{top}" width="{max(width, 1):.1f}" '
        f'height="{_BAR}" rx="3"/>'
    )


def _flow(above: tuple[float, float], below: tuple[float, float]) -> str:
    """The kept width of one layer running into the next."""
    middle = _LEFT + _WIDE / 2
    (y, w), (z, v) = above, below
    points = (
        f"{middle - w / 2:.1f},{y} {middle + w / 2:.1f},{y} {middle + v / 2:.1f},{z} "
        f"{middle - v / 2:.1f},{z}"
    )
    return f'<polygon class="flow" points="{points}"/>'


def _short(name: str, most: int) -> str:
    return name if len(name) <= most else "…" + name[-(most - 1) :]


def curve(group: GroupPlan) -> str:
    """The error left for every number of units, on a logarithmic scale, with the chosen number
    marked.
    """
    x0, x1, y0, y1 = _FRAME
    errors = [(k, e) for k, e in enumerate(group.errors) if math.isfinite(e)]
    if len(errors) < 2 or group.units < 1:
        return ""
    least = 10.0 ** math.floor(
        math.log10(max(1e-6, min((e for _, e in errors if e > 0), default=1e-3)))
    )
    least = min(least, 0.1)
    step = max(1, len(errors) // _MOST_POINTS)
    shown = [p for i, p in enumerate(errors) if i % step == 0 or i == len(errors) - 1]

    def place(k: int, e: float) -> tuple[float, float]:
        height = math.log10(min(1.0, max(e, least))) / math.log10(least)
        return x0 + k / group.units * (x1 - x0), y0 + height * (y1 - y0)

    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(k, e) for k, e in shown))
    k = len(group.kept)
    at = place(k, group.errors[k] if k < len(group.errors) else least)
    parts = [f'<path class="axis" d="M{x0},{y0}V{y1}H{x1}"/>']
    for power in range(0, round(math.log10(least)) - 1, -1 if least >= 1e-3 else -2):
        y = place(0, 10.0**power)[1]
        parts.append(
            f'<text x="{x0 - 4}" y="{y + 4:.1f}" text-anchor="end">{_percent(power)}</text>'
        )
        parts.append(f'<path class="axis" d="M{x0},{y:.1f}H{x1}" opacity=".5"/>')
    parts.append(f'<polyline class="path" points="{line}"/>')
    parts.append(f'<line class="chosen" x1="{at[0]:.1f}" x2="{at[0]:.1f}" y1="{y0}" y2="{y1}"/>')
    parts.append(
        f'<circle class="dot" cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="4"/>'
        '<circle class="probe" r="4"/>'
    )
    parts += [
        f'<text x="{x0}" y="130">0</text>',
        f'<text x="{x1}" y="130" text-anchor="end">{group.units}</text>',
    ]
    data = html.escape(
        json.dumps([[k, float(f"{e:.3g}")] for k, e in shown], separators=(",", ":"))
    )
    frame = f"{x0},{x1},{y0},{y1},{least}"
    return (
        '<svg viewBox="0 0 260 134" role="img" '
        f'aria-label="error curve of {html.escape(group.name)}" '
        f'data-errors="{data}" data-units="{group.units}" data-frame="{frame}">'
        f"{''.join(parts)}</svg>"
    )


def _percent(power: int) -> str:
    return {0: "100%", -1: "10%", -2: "1%", -3: ".1%", -4: ".01%"}.get(power, f"1e{power}")
