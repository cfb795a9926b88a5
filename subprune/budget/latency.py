"""Budgets for a measured latency: the largest model, by FLOPs, whose calls take no longer than asked.

Latency depends on widths only, not on which units stay, so candidates are cut without any statistics and
timed; the budget rule shares out each candidate's FLOPs from the same error curves.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

from torch import nn

from subprune.budget.allocate import Demand, allocate
from subprune.budget.target import Counts, amount
from subprune.errors import BudgetError
from subprune.masking import keep_mask
from subprune.measure import latency
from subprune.surgery import cut_in_place, duplicate

__all__ = ["by_latency"]

TRIALS = 7
_MARGIN = 0.97  # clocks scatter: aim a little lower than asked


def by_latency(demand: Demand, name: str, asked: str | float) -> Counts:
    """Search the share of FLOPs that meets the latency; `asked` is a share or milliseconds for the first batch."""
    timed = _timer(demand)
    full = timed({})
    limit = amount("latency", asked, full * 1e3) / 1e3
    smallest = {g.name: demand.rounding.least(g.n_units) for g in demand.groups}
    least = timed(smallest)
    if least > limit:
        raise BudgetError(
            f"latency={asked!r} cannot be reached: it allows {limit * 1e3:.3g} ms a call, the smallest widths take "
            f"{least * 1e3:.3g} ms of {full * 1e3:.3g} ms; the nearest feasible share is {least / full:.0%}"
        )
    share, low, high = 1.0, demand.cost.flops(smallest) / max(1, demand.cost.flops({})), 1.0
    best = smallest
    for _ in range(TRIALS):
        share = (low + high) / 2
        counts = _at(demand, name, share)
        if timed(counts) <= limit * _MARGIN:
            best, low = counts, share
        else:
            high = share
    return best


def _at(demand: Demand, name: str, share: float) -> Counts:
    """Counts for a share of the FLOPs; the copy shares the curves that were computed already."""
    part = copy.copy(demand)
    part.__dict__.pop("target", None)
    part.flops = f"{100 * share:.6f}%"
    counts = allocate(part, name)
    demand.__dict__.update({k: v for k, v in part.__dict__.items() if k == "error_curves"})
    return counts


def _timer(demand: Demand) -> Callable[[Counts], float]:
    """Seconds per call of the model cut to so many units; any units, they all take as long."""
    structure, inputs = demand.calibration.structure, demand.calibration.batches[0].inputs

    def timed(counts: Counts) -> float:
        keeps = [(structure[n], keep_mask(structure[n], range(k))) for n, k in counts.items()]
        for eager in (False, True):
            small: nn.Module = duplicate(demand.calibration.model)
            cut_in_place(small, keeps, structure.program, eager=eager)
            try:
                return latency(small, inputs).median
            except Exception:
                if eager:
                    raise
        raise AssertionError("not reached")

    return timed
