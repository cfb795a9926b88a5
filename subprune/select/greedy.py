"""Greedy selection on statistics: the keep order and its error curve. Knows nothing of networks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from subprune.errors import BudgetError, OptionError
from subprune.program import parallel
from subprune.select.elimination import Elimination
from subprune.select.keep_order import KeepOrder
from subprune.statistics.statistics import Statistics, unit_count

__all__ = ["follow", "greedy", "stochastic_greedy"]

TIE = 1e-9
"""Gains this close to the largest one, relative to it, are a tie: the lowest unit wins."""

NOTHING = 1e-14
"""Gains below this share of ‖Y‖² are rounding and count as zero."""

_SMALL = 1024  # columns below which a step is too little work for several threads
_DOUBT = 1e-6  # gains this close to the largest are computed again, from C itself, before comparing


def greedy(
    stats: Sequence[Statistics],
    n_units: int,
    k: int | None = None,
    *,
    tolerance: float | None = None,
) -> KeepOrder:
    """Pick k units (all if None), each time the one with the largest exact gain.

    Gains add over the statistics. Columns of unit -1 are always kept: they are eliminated first and
    ``errors[0]`` is the error with them alone. A tie (gains within 1e-9 of the largest, relatively,
    or within rounding of ``‖Y‖²``) goes to the lowest unit. A column counts only if it adds more
    than ``tolerance`` of its own energy to the columns before it (None: what the precision of the
    statistics allows). Once no unit gains anything, the rest follows lowest unit first with gain 0,
    listed in ``dependent``.
    """
    with _threads(stats):
        return _run(stats, n_units, k, tolerance, lambda remaining: remaining)


def _threads(stats: Sequence[Statistics]) -> AbstractContextManager[None]:
    """As many threads as the largest of the statistics is worth."""
    return parallel.one_thread(all(s.width < _SMALL and s.gram.device.type == "cpu" for s in stats))


def stochastic_greedy(
    stats: Sequence[Statistics],
    n_units: int,
    k: int,
    epsilon: float,
    generator: torch.Generator,
    *,
    tolerance: float | None = None,
) -> KeepOrder:
    """Greedy that looks, at every step, at ⌈n/k·log(1/ε)⌉ random remaining units only.

    (Mirzasoleiman et al., 2015.) The order depends on k, so a prefix is not the run with a smaller
    k.
    """
    if not 0 < epsilon < 1:
        raise OptionError(f"epsilon = {epsilon} must lie strictly between 0 and 1")
    if k < 1:
        raise BudgetError(f"k = {k}: stochastic greedy needs a budget of at least 1")
    size = math.ceil(n_units / k * math.log(1 / epsilon))

    def sample(remaining: Tensor) -> Tensor:
        if size >= len(remaining):
            return remaining
        chosen = torch.randperm(len(remaining), generator=generator, device=generator.device)[:size]
        return remaining[chosen.cpu().sort().values]

    with _threads(stats):
        return _run(stats, n_units, k, tolerance, sample)


def follow(
    stats: Sequence[Statistics],
    n_units: int,
    order: Sequence[int],
    *,
    tolerance: float | None = None,
) -> KeepOrder:
    """The gains and error curve of units taken in a given order."""
    _check(stats, n_units, len(order), tolerance)
    with _threads(stats):
        state = Elimination(stats, n_units, tolerance)
        floor = NOTHING * state.energy
        residual_energy = max(0.0, state.energy - state.fixed_gain)
        gains: list[float] = []
        ranks: list[int] = []
        for unit in order:
            gain, rank = state.add(int(unit))
            gains.append(min(gain, residual_energy) if gain > floor else 0.0)
            residual_energy -= gains[-1]
            ranks.append(rank)
    return _result(state, [int(u) for u in order], gains, ranks)


def _check(
    stats: Sequence[Statistics], n_units: int, k: int | None, tolerance: float | None
) -> int:
    """Validate and return the number of units to pick."""
    if unit_count(stats) > n_units:
        raise OptionError(
            f"the statistics mention unit {unit_count(stats) - 1}, but n_units is {n_units}"
        )
    if tolerance is not None and not 0 < tolerance < 1:
        raise OptionError(
            f"tolerance = {tolerance} must lie strictly between 0 and 1; it is relative"
        )
    if k is not None and not 0 <= k <= n_units:
        raise BudgetError(f"k = {k} must be between 0 and the number of units, {n_units}")
    return n_units if k is None else k


def _run(
    stats: Sequence[Statistics],
    n_units: int,
    k: int | None,
    tolerance: float | None,
    sample: Callable[[Tensor], Tensor],
) -> KeepOrder:
    """The greedy loop; ``sample`` says which of the remaining units [q] may be picked."""
    budget = _check(stats, n_units, k, tolerance)
    state = Elimination(stats, n_units, tolerance)
    remaining = torch.ones(n_units, dtype=torch.bool)
    order: list[int] = []
    gains: list[float] = []
    ranks: list[int] = []
    residual_energy = max(0.0, state.energy - state.fixed_gain)  # ‖Y‖² − F(S)
    floor = NOTHING * state.energy
    while len(order) < budget:
        candidates = remaining.nonzero().flatten()
        every = state.gains()
        if float(every[candidates].max()) <= floor or residual_energy <= floor:
            order += candidates[: budget - len(order)].tolist()
            break
        unit = _best(state, every, sample(candidates), floor)
        gain, rank = state.add(unit)
        gain = min(gain, residual_energy) if gain > floor else 0.0
        residual_energy -= gain
        remaining[unit] = False
        order.append(unit)
        gains.append(gain)
        ranks.append(rank)
    missing = len(order) - len(gains)
    return _result(state, order, gains + [0.0] * missing, ranks + [0] * missing)


def _best(state: Elimination, gains: Tensor, candidates: Tensor, floor: float) -> int:
    """The candidate with the largest gain; close calls are decided on exact gains, ties by number.

    A gain that turns out smaller than it looked is corrected, and the choice is repeated.
    """
    # Gains that were updated step by step carry rounding: `noise`, where it is known, or a share of
    # the largest. Whatever may be the best within that is computed afresh.
    estimates, every = gains[candidates], state.noise()
    noise = None if every is None else every[candidates]
    exact: dict[int, float] = {}
    while True:
        top = float(estimates.max())
        highest = estimates if noise is None else estimates + noise
        likely = highest >= top - max(_DOUBT * top, floor)
        close = likely.nonzero().flatten().tolist()
        for i in close:
            if i not in exact:
                exact[i] = state.exact_gain(int(candidates[i]))
        best = max(exact[i] for i in close)
        # The largest estimate was right, but for what was doubted anyway: the choice stands.
        if best >= top - 2 * max(_DOUBT * top, floor):
            return int(
                candidates[next(i for i in close if exact[i] >= best - max(TIE * best, floor))]
            )
        # The estimates were too large: with exact gains in their place, others may be close.
        estimates[close] = estimates.new_tensor([exact[i] for i in close])
        if noise is not None:
            noise[close] = 0.0


def _result(
    state: Elimination, order: list[int], gains: list[float], ranks: list[int]
) -> KeepOrder:
    """Gains as an error curve, relative to ‖Y‖²."""
    steps = torch.tensor(gains, dtype=torch.float64)
    total = state.energy
    explained = torch.cat([steps.new_tensor([min(state.fixed_gain, total)]), steps]).cumsum(0)
    errors = (1 - explained / total).clamp_min(0) if total > 0 else torch.zeros_like(explained)
    dependent = tuple(unit for unit, gain in zip(order, gains, strict=True) if gain == 0)
    return KeepOrder(
        order=tuple(order),
        gains=steps,
        errors=errors,
        ranks=tuple(ranks),
        energy=total,
        dependent=dependent,
    )
