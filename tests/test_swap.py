"""Exchanges of units: never worse than greedy or backward elimination, and often the best there is."""

from __future__ import annotations

import itertools

import pytest
import torch
from reference import Problem
from test_backward import problem
from torch import Tensor, nn

import subprune
from subprune.errors import OptionError
from subprune.fit.solver import solve
from subprune.select.backward import backward_order
from subprune.select.greedy import greedy
from subprune.select.objective import value
from subprune.select.swap import Swap, _Reader, exchanged

UNITS = {
    "single": torch.arange(9),
    "blocks": torch.arange(6).repeat_interleave(2),
    "mixed": torch.tensor([0, 1, 1, 2, -1, 3, 3, 3, 4, 5]),
}


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("units", UNITS.values(), ids=UNITS)
def test_never_worse_than_where_it_starts(units: Tensor, seed: int) -> None:
    n = int(units.max()) + 1
    stats = [problem(seed, units), problem(seed + 50, torch.arange(n), outputs=2)]
    for k in range(1, n):
        for order in (greedy(stats, n).order, backward_order(stats, n)):
            found = exchanged(stats, n, order[:k], 32)
            assert len(set(found)) == k
            assert value(stats, found) >= value(stats, order[:k]) * (1 - 1e-9)


@pytest.mark.parametrize("units", UNITS.values(), ids=UNITS)
def test_costs_and_gains_are_those_of_refitting(units: Tensor) -> None:
    n, stats = int(units.max()) + 1, problem(3, units)

    def error(kept: list[int]) -> float:
        return solve(stats, kept).error * stats.energy

    kept, reader = [0, 2, 3], _Reader(stats, n)
    costs, gains = reader.costs(kept), reader.gains(kept)
    for unit in range(n):
        if unit in kept:
            wanted = error([u for u in kept if u != unit]) - error(kept)
            assert float(costs[unit]) == pytest.approx(wanted, rel=1e-6)
        else:
            wanted = error(kept) - error([*kept, unit])
            assert float(gains[unit]) == pytest.approx(wanted, rel=1e-6)


def test_it_finds_the_best_set_more_often_than_greedy() -> None:
    """Brute force over all sets, on problems small enough for it."""
    best = dict.fromkeys(("greedy", "swap"), 0)
    for seed in range(20):
        stats = [problem(seed, torch.arange(8), outputs=2)]
        top = max(value(stats, s) for s in itertools.combinations(range(8), 4))
        first = greedy(stats, 8).order[:4]
        best["greedy"] += value(stats, first) >= top * (1 - 1e-9)
        best["swap"] += value(stats, exchanged(stats, 8, first, 32)) >= top * (1 - 1e-9)
    assert best["swap"] > best["greedy"]


def test_dead_and_doubled_units_are_left_outside() -> None:
    generator = torch.Generator().manual_seed(1)
    B = torch.randn(40, 4, generator=generator, dtype=torch.float64)
    B = torch.cat([B[:, :1], torch.zeros(40, 1, dtype=torch.float64), B], 1)  # 0 and 2 are equal
    Y = B @ torch.ones(6, 2, dtype=torch.float64)
    stats = [Problem(B, Y, torch.arange(6)).statistics()]
    found = exchanged(stats, 6, [0, 1, 2, 3], 32)
    assert 1 not in found
    assert len({0, 2} & set(found)) == 1


def test_it_prunes_by_name_and_budgets_follow_greedy() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 6, 3), nn.ReLU())
    model.extend([nn.Flatten(), nn.Linear(6 * 16, 4)])
    x = torch.randn(64, 3, 8, 8)
    swap, plain = (
        subprune.prune(model, x, keep=0.5, selector=name, target="layer", progress=False)
        for name in ("swap", "greedy")
    )
    assert swap.plan.counts == plain.plan.counts
    first, other = swap.plan.groups[0], plain.plan.groups[0]
    assert first.kept == tuple(sorted(first.order[: len(first.kept)]))
    assert first.error <= other.error * (1 + 1e-6)


@pytest.mark.parametrize("count", [-1, 1.5, True, "many"])
def test_a_number_of_exchanges_that_is_none_is_refused(count: object) -> None:
    with pytest.raises(OptionError, match="exchanges"):
        Swap(exchanges=count)  # type: ignore[arg-type]
