"""What other sizes would cost: widths in the proportions of this plan, errors from its curves."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from subprune.report.markup import section
from subprune.report.svg import dot, frame, height, line, samples
from subprune.report.terminal import percent

if TYPE_CHECKING:
    from subprune.plan import GroupPlan
    from subprune.report.figures import Report
    from subprune.structure.formula import Formula

__all__ = ["page_data", "size_section", "widths"]

_STEPS = 48
_LOST = 1e-3  # an error that a curve has with all units kept
_FURTHEST = 4.0  # the share of units that stays is raised to at most this power


def widths(r: Report, power: float) -> dict[str, int]:
    """Units kept where the share of every group is raised to a power: 0 keeps everything, 1 is the
    plan, 2 takes the same share away once more.
    """
    return {g.name: _width(g, power) for g in r.plan.groups}


def _width(g: GroupPlan, power: float) -> int:
    kept = len(g.kept)
    if kept == g.units or power == 1:
        return kept
    return max(1, round(g.units * (kept / g.units) ** power))


def mean_error(r: Report, counts: Mapping[str, int]) -> float:
    """The mean error of the groups that were cut, estimated for these widths.

    A curve ends, with all units kept, at what the layers before it had lost in this plan. What lies
    above that end is lost by the group itself; the end grows and shrinks with what all groups lose
    themselves, and is nothing where all are whole.
    """
    cut = [g for g in r.plan.groups if len(g.kept) < g.units and _known(g, counts[g.name])]
    planned = sum(_own(g, len(g.kept)) for g in cut)
    grown = sum(_own(g, counts[g.name]) for g in cut) / planned if planned else 0.0
    errors = [min(1.0, _own(g, counts[g.name]) + grown * g.errors[g.units]) for g in cut]
    return sum(errors) / len(errors) if errors else math.nan


def _known(g: GroupPlan, count: int) -> bool:
    points = (count, len(g.kept), g.units)
    return g.units < len(g.errors) and all(math.isfinite(g.errors[k]) for k in points)


def _own(g: GroupPlan, count: int) -> float:
    """What this many units leave of the error beyond what all of them leave."""
    return max(0.0, g.errors[count] - g.errors[g.units])


def known_costs(r: Report) -> Formula | None:
    """The formula of the costs, if the report has one that covers its groups."""
    usable = r.costs is not None and r.costs.speaks_of([g.name for g in r.plan.groups])
    return r.costs if usable and r.parameters[0] > 0 else None


def size_section(r: Report) -> str:
    """A slider over other sizes; empty where nothing was cut, or costs are not known."""
    costs = known_costs(r)
    if costs is None or all(len(g.kept) == g.units for g in r.plan.groups):
        return ""
    counted = "exactly" if costs.exact else "as if all units of a group were of one size"
    text = (
        "An estimate, not a measurement. Widths go up and down in the proportions of this plan, "
        f"and what they cost is counted {counted}. Errors are read from the error curves "
        f"below (greedy choice, plain fit, fitted inputs){_inherited(r)}."
    )
    body = (
        f'<div class="card sizer">{_chart(r, costs)}'
        '<div class="script"><input type="range" id="size" min="0" max="1000" value="500" '
        'aria-label="share of the parameters left">'
        '<p class="said" id="sized" aria-live="polite"></p>'
        "<details><summary>the call that makes this size, and measures it</summary>"
        '<pre id="budgets"></pre><button data-copy="budgets">copy</button></details>'
        "</div></div>"
    )
    return section("What other sizes would cost", text, body)


def _inherited(r: Report) -> str:
    """Curves of most targets begin with what the layers before have lost."""
    ends = [g.errors[g.units] for g in r.plan.groups if g.units < len(g.errors)]
    if not any(x > _LOST for x in ends):
        return ""
    return (
        ", which include what earlier layers lost, as they were pruned here; at other sizes that "
        "part is scaled with what all groups lose themselves"
    )


def _path(r: Report, costs: Formula) -> list[tuple[float, float]]:
    """Shares of parameters left, and mean errors, from dense to the smallest."""
    points = []
    for i in range(_STEPS + 1):
        counts = widths(r, _FURTHEST * i / _STEPS)
        share = costs.total("params", counts) / r.parameters[0]
        points.append((share, mean_error(r, counts)))
    return points


def _chart(r: Report, costs: Formula) -> str:
    path = [(share, error) for share, error in _path(r, costs) if not math.isnan(error)]
    if len(path) < 2:
        return ""
    least = min(share for share, _ in path)
    if least >= 1:
        return ""

    def place(share: float, error: float) -> tuple[float, float]:
        return (share - least) / (1 - least), height(error)

    counts = r.plan.counts
    now = place(costs.total("params", counts) / r.parameters[0], mean_error(r, counts))
    mark = f'<path class="chosen" d="M{1000 * now[0]:.0f},0V1000"/>'
    drawn = line([place(*p) for p in path])
    return frame(
        f"{drawn}{mark}<!--dots-->{dot(now)}{dot(now, 'probe')}",
        "mean error left in a group over the share of parameters left; the plan is marked",
        f"{percent(least, 1)} of the parameters left",
        "100%",
        "sized",
    )


def page_data(r: Report) -> str:
    """What the script of a page works with, as JSON that can stand in a page."""
    groups = [
        {
            "name": g.name,
            "units": g.units,
            "kept": len(g.kept),
            "curve": [[k, float(f"{x:.3g}")] for k, x in samples(g)],
        }
        for g in r.plan.groups
    ]
    content: dict[str, Any] = {"groups": groups, "furthest": _FURTHEST}
    if (c := known_costs(r)) is not None:
        places = {g.name: i for i, g in enumerate(r.plan.groups)}
        content |= {
            "dense": [r.parameters[0], r.flops[0]],
            "inputs": c.inputs,
            "lengths": [[x.fixed, list(x.groups), list(x.each)] for x in c.lengths],
            "params": [[p.factor, list(p.lengths)] for p in c.params],
            "flops": [[p.factor, list(p.lengths)] for p in c.flops],
            "order": [places[name] for name in c.groups],
        }
    return json.dumps(content, separators=(",", ":")).replace("<", "\\u003c")
