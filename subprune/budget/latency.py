"""Budgets for a measured latency: the largest model, by FLOPs, whose calls take no longer than
asked.

Latency depends on widths only, not on which units stay, so candidates are cut without any
statistics and timed alongside the dense model; the budget rule divides each candidate's FLOPs by
the same error curves. The winner is timed once more, longer: of many candidates the best is often
one that was lucky.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from subprune.budget.demand import LATENCY_STEPS, Demand
from subprune.budget.goal import Counts, amount
from subprune.cutting.masking import keep_mask
from subprune.cutting.surgery import cut_in_place, duplicate
from subprune.cutting.twin import first_line
from subprune.errors import BudgetError
from subprune.measure.measurements import Latency, side_by_side
from subprune.messages import Message

__all__ = ["LatencyGoal", "by_latency"]

TRIALS = LATENCY_STEPS - 2  # besides the smallest model, and the winner once more
_MARGIN = 0.97  # clocks scatter: aim a little lower than asked
_REPEATS, _CONFIRM_REPEATS, _SECONDS = 20, 40, 3.0

# seconds of the dense and of the cut model, side by side
Timer = Callable[[Counts, int], tuple[float, float]]


@dataclass(frozen=True)
class LatencyGoal:
    """What was asked for: a share of the dense model's latency, or milliseconds."""

    asked: str | float

    def allowed(self, dense: float) -> float:
        """Seconds a call may take, where the dense model takes `dense`."""
        return amount("latency", self.asked, dense * 1e3) / 1e3

    def met(self, dense: float, small: float, margin: float = 1.0) -> bool:
        return small <= margin * self.allowed(dense)

    def verdict(self, dense: Latency, small: Latency) -> str:
        """In words, whether it was met; neither is said where the calls' spread covers
        the limit.
        """
        figures = Message(
            "{latency=} allows {allowed:.3g} ms a call, {small:.3g} ms ({share:.0%} of {dense:.3g} "
            "ms) were measured",
            latency=self.asked,
            allowed=self.allowed(dense.median) * 1e3,
            small=small.median * 1e3,
            share=small.median / dense.median,
            dense=dense.median * 1e3,
        )
        if small.high <= self.allowed(dense.low):
            return Message("goal met: {figures}", figures=figures)
        if small.low > self.allowed(dense.high):
            return Message("goal missed: {figures}; ask for less", figures=figures)
        spread = f"half of the calls took {small.low * 1e3:.3g} to {small.high * 1e3:.3g} ms"
        words = "goal within the noise: {figures}, and {spread}; ask for less to be sure"
        return Message(words, figures=figures, spread=spread)


def by_latency(demand: Demand) -> Counts:
    """Search the share of FLOPs that meets the latency asked for, within the other limits."""
    assert demand.goal.latency is not None
    demand.check()
    return _search(demand, LatencyGoal(demand.goal.latency), _timer(demand))


def _search(demand: Demand, goal: LatencyGoal, timed: Timer) -> Counts:
    smallest = demand.smallest()
    demand.say("timing the smallest widths")
    _check(goal, *timed(smallest, _REPEATS))
    if demand.goal.measured:
        counts = _at(demand, 1.0)
        demand.say("timing what the other limits leave")
        if goal.met(*timed(counts, _CONFIRM_REPEATS), margin=_MARGIN):
            return counts
    # Halving the interval of shares of FLOPs: below `low` calls were quick enough, above `high` not.
    low, high = demand.cost.at_most("flops", smallest) / max(1, demand.cost.flops({})), 1.0
    fitting = [smallest]
    for _ in range(TRIALS):
        share = (low + high) / 2
        counts = _at(demand, share)
        demand.say(f"timing {share:.0%} of the FLOPs")
        if goal.met(*timed(counts, _REPEATS), margin=_MARGIN):
            fitting.append(counts)
            low = share
        else:
            high = share
    # The largest candidate is timed more often; if it does not hold, the next smaller one is.
    while len(fitting) > 1:
        demand.say("timing the chosen widths again")
        if goal.met(*timed(fitting[-1], _CONFIRM_REPEATS)):
            return fitting[-1]
        fitting.pop()
    _check(goal, *timed(smallest, _CONFIRM_REPEATS))
    return smallest


def _check(goal: LatencyGoal, dense: float, small: float) -> None:
    if not goal.met(dense, small):
        raise BudgetError(
            Message(
                "{latency=} cannot be reached: it allows {allowed:.3g} ms a call, the smallest "
                "widths take {small:.3g} ms of {dense:.3g} ms; the nearest feasible share is "
                "{share:.0%}",
                latency=goal.asked,
                allowed=goal.allowed(dense) * 1e3,
                small=small * 1e3,
                dense=dense * 1e3,
                share=small / dense,
            )
        )


def _at(demand: Demand, share: float) -> Counts:
    """Counts for a share of the FLOPs; curves that were computed already are remembered."""
    goal = replace(demand.goal, latency=None, share=share)
    return replace(demand, goal=goal).shared_out()


def _timer(demand: Demand) -> Timer:
    """Seconds per call of the model cut to these numbers of units, whichever units they are."""
    structure, inputs = demand.calibration.structure, demand.calibration.given[0].inputs
    dense, ranks = demand.calibration.model, demand.calibration.ranks

    def timed(counts: Counts, repeats: int) -> tuple[float, float]:
        keeps = [
            ((g := structure[n]), keep_mask(g, g.choice(range(g.n_units), k)))
            for n, k in counts.items()
        ]
        return ranks.first(lambda: measured(keeps, counts, repeats))

    def measured(keeps: Any, counts: Counts, repeats: int) -> tuple[float, float]:
        for eager in (False, True):
            small: nn.Module = duplicate(dense)
            cut_in_place(small, keeps, structure.program, eager=eager)
            try:
                a, b = side_by_side([dense, small], inputs, repeats=repeats, seconds=_SECONDS)
            except Exception as error:
                if eager:
                    raise BudgetError(
                        Message(
                            "{latency=} is met by timing narrower models, and the "
                            "model's code does not run cut to {counts}: {error}; ask for "
                            "{flops=} or {budgets=} instead",
                            counts=counts,
                            error=f"{type(error).__name__}: {first_line(error)}",
                        )
                    ) from error
            else:
                return a.median, b.median
        raise AssertionError("not reached")

    return timed
