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
    """The mean error that the curves of the groups that were cut give for these widths."""
    errors = [
        g.errors[counts[g.name]]
        for g in r.plan.groups
        if len(g.kept) < g.units and counts[g.name] < len(g.errors)
    ]
    known = [x for x in errors if math.isfinite(x)]
    return sum(known) / len(known) if known else math.nan


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
        f"below (greedy choice, plain fit, fitted inputs){_inherited(r)}. Prune with the call below "
        "to be sure."
    )
    body = (
        f'<div class="card sizer">{_chart(r, costs)}'
        '<div class="script"><input type="range" id="size" min="0" max="1000" value="500" '
        'aria-label="share of the parameters left">'
        '<p class="said" id="sized" aria-live="polite"></p>'
        "<details><summary>the call for this size</summary>"
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
        ", which were measured with all earlier layers pruned as in this plan: they include what "
        "those layers lost, even with everything kept"
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
