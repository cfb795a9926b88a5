"""What a user should know about the fits of a pruning, in plain words with what to do."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from subprune.fit.cross_fit import FOLDS
from subprune.messages import Message

if TYPE_CHECKING:
    from subprune.plan import Plan

__all__ = ["fit_remarks"]

_FEW = 32  # inputs below which any figure is a guess
_GAP = 3.0  # held-out error over fitted error from which a fit is called much worse
_SMALL = 0.01  # held-out errors below this are fine, however small the fitted one is
_ZERO = 1e-4  # fitted errors below this say nothing by themselves
_GROWTH = 10.0  # times the old weights' norm


def fit_remarks(plan: Plan, samples: int) -> Iterator[str]:
    """Remarks on too few inputs, on fits that do not carry over to other inputs, and on large
    weights.
    """
    cut = [g for g in plan.groups if len(g.kept) < g.units]
    fits = [g for g in cut if g.rows]
    if cut and samples < _FEW:
        yield (
            f"only {samples} input{'' if samples == 1 else 's'} to calibrate on: the figures of "
            "this report are rough; give a few hundred inputs"
        )
    if narrow := [g for g in fits if g.rows < g.columns]:
        worst = max(narrow, key=lambda g: g.columns / g.rows)
        wanted = math.ceil(2 * samples * worst.columns / worst.rows)
        yield (
            f"{_groups(len(narrow))} fitted with fewer rows of data than weights per "
            "output, so that the error on fitted inputs says nothing (most of all "
            f"{worst.name}: {_rows(worst.rows)} for {worst.columns:,} columns); about "
            f"{wanted:,} inputs would be enough"
        )
    if exact := [g for g in fits if math.isnan(g.held_out) and g.error < _ZERO and g not in narrow]:
        worst = min(exact, key=lambda g: g.rows / g.columns)
        yield Message(
            "{groups} fitted with almost no error, and no inputs were held out (most of "
            "all {worst}: {rows} for {columns:,} columns): either the units left are "
            "enough, or the inputs are too few to tell; {folds=} tells which",
            groups=_groups(len(exact)),
            worst=worst.name,
            rows=_rows(worst.rows),
            columns=worst.columns,
            folds=FOLDS,
        )
    if weak := [g for g in fits if g.held_out > max(_SMALL, _GAP * g.error)]:
        worst = max(weak, key=lambda g: g.held_out)
        yield (
            f"{_groups(len(weak))} fitted much better to the inputs seen than to "
            f"others (most of all {worst.name}: error {_share(worst.error)} on fitted "
            f"inputs, {_share(worst.held_out)} on held-out ones); more inputs would "
            "help, or a smaller cut there"
        )
    if large := [g for g in fits if g.growth > _GROWTH]:
        worst = max(large, key=lambda g: g.growth)
        yield Message(
            "{groups} left with large weights (most of all {worst}: {growth:.0f} times the old "
            "norm), which rounding and other inputs may upset; give more inputs, or a ridge such "
            "as {ridge=}",
            groups=_groups(len(large)),
            worst=worst.name,
            growth=worst.growth,
            ridge=0.01,
        )


def _groups(count: int) -> str:
    return f"{count} group{' was' if count == 1 else 's were'}"


def _rows(count: int) -> str:
    return f"{count:,} row{'' if count == 1 else 's'}"


def _share(x: float) -> str:
    return f"{x:.2g}" if x < 1e-4 else f"{x:.2%}"
