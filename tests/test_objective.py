"""The set functions equal least squares on the raw activations."""

from __future__ import annotations

from itertools import combinations

import pytest
import reference as slow
import torch
from reference import Problem, random_problem

from subprune.select import objective
from subprune.select.halves import whitening
from subprune.statistics.statistics import RANK_TOLERANCE

CASES = [
    pytest.param({"per_unit": r, "asymmetric": a, "rank": q}, id=f"{r}-{a}-{q}")
    for r in (1, 9)
    for a in (False, True)
    for q in (None, 5)
]


@pytest.mark.parametrize("options", CASES)
@pytest.mark.parametrize("seed", range(2))
def test_value_gain_residual_equal_lstsq(options: dict, seed: int) -> None:
    p = random_problem(seed, rows=80, units=4, **options)
    stats = [p.statistics()]
    for size in range(4):
        for kept in combinations(range(4), size):
            close = {"rel": 1e-8, "abs": 1e-8 * p.energy}
            assert objective.value(stats, kept) == pytest.approx(slow.value(p, kept), **close)
            assert objective.residual(stats, kept) == pytest.approx(slow.residual(p, kept), **close)
            for unit in set(range(4)) - set(kept):
                expected = slow.value(p, [*kept, unit]) - slow.value(p, kept)
                assert objective.gain(stats, unit, kept) == pytest.approx(expected, **close)


def test_normalised_and_never_decreasing() -> None:
    stats = [random_problem(3, per_unit=2).statistics()]
    assert objective.value(stats, []) == 0
    chain = [objective.value(stats, range(k)) for k in range(8)]
    assert chain == sorted(chain)
    assert chain[-1] == pytest.approx(stats[0].energy, rel=1e-10)


def test_values_add_over_consumers() -> None:
    stats = [random_problem(seed, outputs=seed + 1).statistics() for seed in range(3)]
    alone = sum(objective.value([s], [1, 4]) for s in stats)
    assert objective.value(stats, [1, 4]) == pytest.approx(alone, rel=1e-12)


def test_columns_without_unit_always_take_part() -> None:
    p = random_problem(5)
    marked = Problem(p.B, p.Y, torch.where(p.units == 2, -1, p.units))
    stats = [marked.statistics()]
    assert objective.value(stats, []) == pytest.approx(slow.value(p, [2]), rel=1e-10)
    assert objective.value(stats, [0]) == pytest.approx(slow.value(p, [0, 2]), rel=1e-10)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_dead_and_scaled_duplicate_columns_change_nothing(scale: float) -> None:
    p = random_problem(6)
    B = torch.cat([p.B, torch.zeros(60, 1, dtype=p.B.dtype), scale * p.B[:, 3:4]], 1)
    stats = [Problem(B, p.Y, torch.arange(9)).statistics()]
    assert objective.value(stats, [0, 3, 7, 8]) == pytest.approx(slow.value(p, [0, 3]), rel=1e-8)
    assert objective.gain(stats, 7, [0]) == pytest.approx(0, abs=1e-8 * p.energy)
    assert objective.gain(stats, 8, [3]) == pytest.approx(0, abs=1e-8 * p.energy)


def test_whitening_is_an_inverse_root() -> None:
    for rank, solver in ((None, "cholesky"), (4, "eigh")):
        gram = random_problem(7, rank=rank).statistics().gram
        factor = whitening(gram, RANK_TOLERANCE)
        assert factor.solver == solver
        assert factor.rank == (rank or 7)
        expected = torch.eye(factor.rank, dtype=torch.float64)
        torch.testing.assert_close(
            factor.matrix.T @ gram @ factor.matrix, expected, atol=1e-8, rtol=0
        )
