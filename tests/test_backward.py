"""Backward elimination against refitting without each unit, one by one."""

from __future__ import annotations

import pytest
import torch
from reference import Problem
from torch import Tensor, nn

import subprune
from subprune.fit.solver import solve
from subprune.select.backward import backward_order
from subprune.select.greedy import follow, greedy
from subprune.statistics.statistics import Statistics


def slow_order(stats: list[Statistics], n_units: int) -> tuple[int, ...]:
    """Refit the rest without each unit, drop the one that is missed least."""
    kept, removed = list(range(n_units)), []
    while kept:
        errors = [
            sum(solve(s, [u for u in kept if u != unit]).error * s.energy for s in stats)
            for unit in kept
        ]
        least = min(errors)
        unit = max(u for u, e in zip(kept, errors, strict=True) if e <= least * (1 + 1e-9))
        kept.remove(unit)
        removed.append(unit)
    return tuple(reversed(removed))


def problem(seed: int, units: Tensor, rows: int = 60, outputs: int = 3) -> Statistics:
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(len(units), len(units), generator=generator, dtype=torch.float64)
    B = torch.randn(rows, len(units), generator=generator, dtype=torch.float64) @ mixing
    Y = B @ torch.randn(len(units), outputs, generator=generator, dtype=torch.float64)
    Y += 0.1 * torch.randn(rows, outputs, generator=generator, dtype=torch.float64)
    return Problem(B, Y, units).statistics()


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    "units",
    [
        torch.arange(7),
        torch.arange(4).repeat_interleave(3),  # blocks
        torch.tensor([0, 1, 1, 2, -1, 3, 3, 3]),  # of different widths, one column of no unit
    ],
    ids=["single", "blocks", "mixed"],
)
def test_the_order_is_that_of_refitting_without_each(units: Tensor, seed: int) -> None:
    n = int(units.max()) + 1
    both = [problem(seed, units), problem(seed + 50, torch.arange(n), outputs=2)]
    for stats in (both[:1], both):
        assert backward_order(stats, n) == slow_order(stats, n)


def test_dependent_units_go_first() -> None:
    generator = torch.Generator().manual_seed(1)
    B = torch.randn(40, 4, generator=generator, dtype=torch.float64)
    B = torch.cat([B, B[:, :1], torch.zeros(40, 1, dtype=torch.float64)], 1)  # a copy, a dead one
    Y = B @ torch.ones(6, 2, dtype=torch.float64)
    stats = [Problem(B, Y, torch.arange(6)).statistics()]
    order = backward_order(stats, 6)
    assert sorted(order) == list(range(6))
    assert set(order[4:]) in ({4, 5}, {0, 5})
    assert float(follow(stats, 6, order).errors[4]) < 1e-9


def test_units_that_only_matter_together_are_not_overlooked() -> None:
    """Two columns that nearly cancel carry the target; each alone explains next to nothing of it."""
    generator = torch.Generator().manual_seed(0)
    noise, signal = torch.randn(2, 4000, generator=generator, dtype=torch.float64)
    weak = signal + 3 * torch.randn(4000, generator=generator, dtype=torch.float64)
    B = torch.stack([100 * noise + signal, 100 * noise, weak], 1)
    stats = [Problem(B, signal[:, None], torch.arange(3)).statistics()]
    assert greedy(stats, 3).order[0] == 2  # the weak one looks best at first
    assert set(backward_order(stats, 3)[:2]) == {0, 1}
    forward, backward = (follow(stats, 3, o) for o in (greedy(stats, 3).order, (0, 1, 2)))
    assert float(backward.errors[2]) < 1e-9 < float(forward.errors[2])


def test_it_prunes_by_name() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 6, 3), nn.ReLU())
    model.extend([nn.Flatten(), nn.Linear(6 * 16, 4)])
    x = torch.randn(64, 3, 8, 8)
    result = subprune.prune(model, x, compression=1.5, selector="backward", progress=False)
    assert result.report.compression >= 1.5
    for group in result.plan.groups:
        assert group.kept == tuple(sorted(group.order[: len(group.kept)]))
        assert len(group.errors) == group.units + 1


@pytest.mark.parametrize("mean", [0.0, 10.0, 1000.0])
def test_columns_less_their_means_are_rounded_as_before(mean: float) -> None:
    """Products in float32 of columns with a large mean: what is left may have no inverse."""
    generator = torch.Generator().manual_seed(2)
    few = torch.randn(200, 12, generator=generator)
    B = torch.cat([few, few @ torch.randn(12, 20, generator=generator)], 1) + mean
    stats = Problem(B, B[:, :3].clone(), torch.arange(32)).statistics()
    noisy = Statistics(
        gram=(B.T @ B).double(),
        cross=(B.T @ B[:, :3]).double(),
        energy=stats.energy,
        rows=stats.rows,
        sums=stats.sums,
        target_sums=stats.target_sums,
        units=stats.units,
        precision=torch.finfo(torch.float32).eps,
    )
    assert sorted(backward_order([noisy.centred()], 32)) == list(range(32))
