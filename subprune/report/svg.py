"""Drawings of a report: error curves on one scale, and the widths of all layers.

Lines are drawn in a box that is stretched to the place there is; labels and dots are HTML next to
it, so that letters keep their size on every screen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from subprune.report.markup import e

if TYPE_CHECKING:
    from subprune.plan import GroupPlan
    from subprune.report.figures import LayerWidth

__all__ = ["Point", "curve", "frame", "overlay", "samples", "skyline"]

Point = tuple[float, float]  # shares of the box's width and height, from its lower left corner

_MOST_POINTS = 72
_LEAST = 1e-4  # errors below it lie on the floor of the plot
_NAMED = 9  # up to this many columns have room for a name
_FAR = 4  # a layer that stays whole and is this many times wider than all that are cut is not drawn


def samples(group: GroupPlan) -> list[tuple[int, float]]:
    """Points of a group's error curve, the chosen one among them: numbers of units and errors."""
    known = [(k, x) for k, x in enumerate(group.errors) if math.isfinite(x)]
    step = max(1, math.ceil(len(known) / _MOST_POINTS))
    last, chosen = len(known) - 1, len(group.kept)
    return [p for i, p in enumerate(known) if i % step == 0 or i == last or p[0] == chosen]


def height(error: float, least: float = _LEAST) -> float:
    """Where an error lies on the common scale: 0 is its floor, 1 is 100%."""
    return 1 - math.log10(min(1.0, max(error, least))) / math.log10(least)


def frame(body: str, label: str, left: str, right: str, kind: str = "", data: str = "") -> str:
    """A plot with the common scale of errors; `body` is SVG in a box of 1000 × 1000, or dots."""
    powers = range(0, round(math.log10(_LEAST)) - 1, -1)
    places = [(100 * (1 - height(10.0**p)), _percent(p)) for p in powers]
    ticks = "".join(f'<span style="top:{y:.4g}%">{text}</span>' for y, text in places)
    lines = "".join(f'<path class="axis" d="M0,{10 * y:.4g}H1000"/>' for y, _ in places)
    drawn, _, dots = body.partition("<!--dots-->")
    return (
        f'<div class="plot {kind}" {data}><div class="ticks" aria-hidden="true">{ticks}</div>'
        f'<div class="box"><svg viewBox="0 0 1000 1000" preserveAspectRatio="none" role="img" '
        f'aria-label="{e(label)}">{lines}{drawn}</svg>{dots}</div>'
        f'<div class="ends"><span>{e(left)}</span><span>{e(right)}</span></div></div>'
    )


def line(points: Sequence[Point], kind: str = "path", data: str = "") -> str:
    """A line through points."""
    path = " ".join(f"{1000 * x:.0f},{1000 * (1 - y):.0f}" for x, y in points)
    return f'<polyline class="{kind}" points="{path}" {data}/>'


def dot(point: Point, kind: str = "dot", data: str = "") -> str:
    """A dot of a fixed size."""
    x, y = point
    return f'<i class="{kind}" style="left:{100 * x:.2f}%;top:{100 * (1 - y):.2f}%" {data}></i>'


def curve(group: GroupPlan, number: int) -> str:
    """The error left for every share of units kept, with the chosen one marked; empty if there is
    no curve.
    """
    known = samples(group)
    if len(known) < 2 or group.units < 1:
        return ""
    chosen = chosen_point(group)
    mark = f'<path class="chosen" d="M{1000 * chosen[0]:.0f},0V1000"/>'
    body = f"{line(_points(group))}{mark}<!--dots-->{dot(chosen)}{dot((0, 0), 'probe')}"
    return frame(
        body,
        f"error curve of {group.name}",
        "0",
        f"{group.units}",
        "small",
        f'data-curve="{number}"',
    )


def overlay(groups: Sequence[tuple[int, GroupPlan]]) -> str:
    """The curves of all groups in one plot, by the share of units kept."""
    shown = [(i, g) for i, g in groups if len(samples(g)) > 1]
    lines = "".join(line(_points(g), data=f'data-line="{i}"') for i, g in shown)
    dots = "".join(dot(chosen_point(g), data=f'data-dot="{i}"') for i, g in shown)
    words = f"error curves of {len(shown)} groups over the share of units kept"
    return frame(
        f"{lines}<!--dots-->{dots}", words, "no units kept", "all kept", "all", 'data-all="1"'
    )


def chosen_point(group: GroupPlan) -> Point:
    """The place of the chosen number of units on the group's curve."""
    k = len(group.kept)
    error = group.errors[k] if k < len(group.errors) else 0.0
    return k / max(1, group.units), height(error if math.isfinite(error) else 1.0)


def _points(group: GroupPlan) -> list[Point]:
    return [(k / group.units, height(x)) for k, x in samples(group)]


def _percent(power: int) -> str:
    return f"{100 * 10.0**power:g}%"


def skyline(layers: Sequence[LayerWidth]) -> str:
    """Layers from left to right, each a column as high as the layer was wide, the kept part filled.

    The scale is linear; a layer that stays whole and would flatten all others is named instead.
    """
    cut = [x.before for x in layers if x.after != x.before]
    most = _FAR * max(cut, default=max((x.before for x in layers), default=1))
    drawn = [x for x in layers if x.before <= most or x.after != x.before]
    widest = max((x.before for x in drawn), default=1)
    named = len(drawn) <= _NAMED
    columns = "".join(_column(x, widest, named) for x in drawn)
    far = dict.fromkeys(f"{x.name} ({x.before:,})" for x in layers if x not in drawn)
    note = f"Whole and too wide to be drawn here: {', '.join(far)}." if far else ""
    hint = "" if named else 'data-hint="1"'  # filled by the script
    kind = "soft said" if note else "soft said hint"  # a hint to point at things is not printed
    said = f'<p class="{kind}" {hint}>{e(note)}</p>' if note or hint else ""
    return (
        f'<div class="skyline{" named" if named else ""}" role="img" '
        f'aria-label="widths of {len(drawn)} layers before and after, at most {widest:,}">'
        f'<div class="ticks" aria-hidden="true"><span style="top:0">{widest:,}</span>'
        f'<span style="top:50%">{widest / 2:,.0f}</span><span style="top:100%">0</span></div>'
        f'<div class="columns">{columns}</div></div>{said}'
    )


def _column(layer: LayerWidth, widest: int, named: bool) -> str:
    full, now = (100 * n / widest for n in (layer.before, layer.after))
    change = f"{layer.before:,}"
    if layer.after != layer.before:
        change += f" → {layer.after:,}"
    words = e(f"{layer.name} ({layer.kind}): {change}")
    name = f"<small>{e(layer.name)}<br>{e(change)}</small>" if named else ""
    return (
        f'<div class="column" title="{words}"><div class="shaft">'
        f'<i class="before" style="height:{full:.3g}%"></i>'
        f'<i class="after" style="height:{now:.3g}%"></i></div>{name}</div>'
    )
