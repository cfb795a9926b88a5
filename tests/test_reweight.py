"""New weights equal least squares on the raw activations."""

from __future__ import annotations

import pytest
import reference as slow
import torch
from reference import Problem, random_problem

from subprune.fit.solver import relative_error, solve, unfitted


def true_error(p: Problem, weight: torch.Tensor, shift: torch.Tensor | float = 0.0) -> float:
    return float((p.Y - p.B @ weight - shift).square().sum()) / p.energy


@pytest.mark.parametrize("per_unit", [1, 9])
@pytest.mark.parametrize("asymmetric", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_weights_equal_lstsq(per_unit: int, asymmetric: bool, seed: int) -> None:
    p = random_problem(seed, rows=150, per_unit=per_unit, asymmetric=asymmetric)
    for kept in ([], [2], [0, 3, 5], range(7)):
        found = solve(p.statistics(), kept)
        expected = slow.weights(p, kept)
        torch.testing.assert_close(found.weight, expected, rtol=1e-8, atol=1e-9)
        assert found.error == pytest.approx(true_error(p, expected), rel=1e-8, abs=1e-12)
        assert found.rank == found.columns == len(kept) * per_unit
        assert found.shift is None


@pytest.mark.parametrize("per_unit", [1, 9])
@pytest.mark.parametrize("seed", range(3))
def test_deficient_weights_reach_the_least_error_with_finite_weights(
    per_unit: int, seed: int
) -> None:
    p = random_problem(seed, rows=30, per_unit=per_unit, rank=4, asymmetric=True)
    for kept in ([1], [0, 1, 2, 3, 4, 5], range(7)):
        found = solve(p.statistics(), kept)
        assert true_error(p, found.weight) == pytest.approx(
            slow.residual(p, kept) / p.energy, rel=1e-7
        )
        assert found.rank == min(4, len(kept) * per_unit)
        assert float(found.weight.norm()) < 100 * float(slow.weights(p, kept).norm())


def test_dropped_rows_are_zero_and_unitless_columns_stay() -> None:
    p = random_problem(1)
    marked = Problem(p.B, p.Y, torch.where(p.units == 6, -1, p.units))
    found = solve(marked.statistics(), [0, 2])
    torch.testing.assert_close(found.weight, slow.weights(p, [0, 2, 6]), rtol=1e-8, atol=1e-10)
    assert not found.weight[[1, 3, 4, 5]].any()


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_column_scale_does_not_matter(scale: float) -> None:
    p = random_problem(2, asymmetric=True)
    factors = torch.tensor([1, scale, 1, scale, 1, 1, scale], dtype=torch.float64)
    scaled = Problem(p.B * factors, p.Y, p.units)
    found = solve(scaled.statistics(), range(7))
    torch.testing.assert_close(
        found.weight * factors[:, None], slow.weights(p, range(7)), rtol=1e-7, atol=0
    )


@pytest.mark.parametrize("rank", [None, 3])
def test_intercept_is_least_squares_with_a_constant_column(rank: int | None) -> None:
    p = random_problem(3, rank=rank)
    p = Problem(p.B + 2, p.Y + torch.tensor([1.0, -3, 0, 5]), p.units)
    ones = torch.ones(60, 1, dtype=torch.float64)
    wide = Problem(torch.cat([p.B, ones], 1), p.Y, torch.cat([p.units, torch.tensor([-1])]))
    found = solve(p.statistics(), [0, 1, 5], intercept=True)
    assert found.shift is not None
    assert found.error == pytest.approx(
        slow.residual(wide, [0, 1, 5]) / p.energy, rel=1e-8, abs=1e-12
    )
    assert true_error(p, found.weight, found.shift) == pytest.approx(
        found.error, rel=1e-8, abs=1e-12
    )
    if rank is None:
        expected = slow.weights(wide, [0, 1, 5])
        torch.testing.assert_close(found.weight, expected[:-1], rtol=1e-8, atol=1e-9)
        torch.testing.assert_close(found.shift, expected[-1], rtol=1e-8, atol=1e-9)


def test_none_keeps_the_weights_given() -> None:
    p = random_problem(4)
    weight = torch.linalg.lstsq(p.B, p.Y).solution
    found = unfitted(p.statistics(), [1, 2], weight)
    torch.testing.assert_close(found[[1, 2]], weight[[1, 2]])
    assert not found[[0, 3, 4, 5, 6]].any()
    error = relative_error(p.statistics(), found)
    assert error == pytest.approx(true_error(p, found), rel=1e-9)
    assert error >= solve(p.statistics(), [1, 2]).error


def test_zero_target_and_dead_columns() -> None:
    p = random_problem(5)
    B = p.B.clone()
    B[:, 3] = 0
    found = solve(Problem(B, p.Y, p.units).statistics(), [2, 3])
    assert not found.weight[3].any()
    zero = solve(Problem(B, torch.zeros_like(p.Y), p.units).statistics(), [2, 3])
    assert zero.error == 0
    assert not zero.weight.any()


def test_float32_noise_is_not_fitted() -> None:
    generator = torch.Generator().manual_seed(1)
    B = torch.randn(30, 180, generator=generator)
    p = Problem(
        B, B @ torch.randn(180, 12, generator=generator), torch.arange(20).repeat_interleave(9)
    )
    exact = Problem(B.double(), p.Y.double(), p.units)
    for k in (5, 10, 20):
        found = solve(p.statistics(), range(k))
        assert found.rank == 30
        assert true_error(exact, found.weight) < 1e-6
        assert float(found.weight.norm()) < 2 * float(slow.weights(exact, range(k)).norm())
