"""The numerical core on many awkward problems: no NaN, no crash, no identity violated.

The tests take the same 300 every time. `make chaos` sets SUBPRUNE_CASES to draw 3,000, and others
each time, and puts them into its tally; a problem that fails is printed, and made again by
`Case(...)`.
"""

from __future__ import annotations

import math
import os

import pytest
import torch
from awkward import CASES, Case, exact, folded, noise, problem
from hypothesis import HealthCheck, assume, event, given, settings
from reference import Problem
from torch import Tensor

from subprune.fit.cross_fit import STRENGTHS, cross_fit
from subprune.fit.solver import relative_error, solve, unfitted
from subprune.select.backward import backward_order
from subprune.select.greedy import follow, greedy
from subprune.select.objective import value
from subprune.select.swap import exchanged
from subprune.statistics.statistics import Statistics

NUMBER = int(os.environ.get("SUBPRUNE_CASES", "300"))
MANY = settings(
    max_examples=NUMBER // 3,
    derandomize="SUBPRUNE_CASES" not in os.environ,
    database=None,
    deadline=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)


def finite(*tensors: Tensor) -> bool:
    return all(bool(torch.isfinite(x).all()) for x in tensors)


def true_error(p: Problem, weight: Tensor, shift: Tensor | None = None) -> float:
    """‖Y − B·weight − shift‖² / ‖Y‖² from the rows themselves."""
    rest = p.Y - p.B @ weight - (0.0 if shift is None else shift)
    return float(rest.square().sum()) / p.energy if p.energy else 0.0


def unit_columns(p: Problem, columns: Tensor, bias: bool = False) -> Tensor:
    """The columns at unit length, a constant one last with a bias; zero ones are left out."""
    rows = p.B[:, columns]
    if bias:
        rows = torch.cat([rows, rows.new_ones(len(rows), 1)], 1)
    length = rows.norm(dim=0)
    return rows[:, length > 0] / length[length > 0]


def least_error(p: Problem, columns: Tensor, bias: bool = False) -> tuple[float, float]:
    """The least relative error of any weights, and how far apart the columns are: the square of
    the smallest singular value at unit length, 0 where one depends on others.
    """
    unit = unit_columns(p, columns, bias)
    if not unit.shape[1]:
        return float(p.energy > 0), 1.0
    left, singular, _ = torch.linalg.svd(unit, full_matrices=False)
    left = left[:, singular > 1e-13 * singular[0]]
    rest = p.Y - left @ (left.T @ p.Y)
    apart = float(singular[-1]) ** 2 if unit.shape[1] <= len(unit) else 0.0
    return (float(rest.square().sum()) / p.energy if p.energy else 0.0), apart


def check_truth(case: Case, s: Statistics, error: float, least: float, apart: float) -> None:
    """An error that was found against the least one there is."""
    slack = noise(case, s)
    assert error >= least - slack - slack / max(apart, s.tolerance)
    if apart > 1e4 * slack:
        assert error == pytest.approx(least, abs=slack + slack / apart)


@given(case=CASES)
@MANY
def test_selection(case: Case) -> None:
    p, n = problem(case), case.units
    s, rows = p.statistics(), exact(p)
    event("float64" if case.double else "float32")
    assert finite(s.gram, s.cross, s.sums, s.target_sums)
    assert torch.equal(s.gram, s.gram.T)
    found = greedy([s], n)
    assert sorted(found.order) == list(range(n))
    assert finite(found.gains, found.errors)
    assert bool((found.gains >= 0).all())
    assert bool((found.errors.diff() <= 0).all())
    assert 0 <= float(found.errors[-1]) <= float(found.errors[0]) <= 1
    # a prefix is the solution for that budget
    some = greedy([s], n, case.k)
    assert some.order == found.order[: case.k]
    assert torch.equal(some.gains, found.gains[: case.k])
    for k in {0, case.k, n}:
        least, apart = least_error(rows, s.columns(found.order[:k]))
        check_truth(case, s, float(found.errors[k]), least, apart)
    # the same order followed has the same curve
    again = follow([s], n, found.order)
    assert torch.allclose(again.errors, found.errors, rtol=0, atol=1e-6)
    for order in (backward_order([s], n), (*exchanged([s], n, found.order[: case.k], 4),)):
        assert len(set(order)) == len(order)
        assert set(order) <= set(range(n))
        explained = value([s], order)
        assert math.isfinite(explained)
        assert explained <= s.energy * (1 + 1e-6)
        if s.energy:
            least, apart = least_error(rows, s.columns(order))
            check_truth(case, s, 1 - explained / s.energy, least, apart)


@given(case=CASES)
@MANY
def test_units_of_measure_do_not_matter(case: Case) -> None:
    """Powers of two change no digit: neither the order nor the error curve may notice."""
    assume(case.double)
    p, n = problem(case), case.units
    other = Problem(p.B * 2.0**-case.targets, p.Y * 2.0**case.inputs, p.units)
    a, b = p.statistics(), other.statistics()
    one, two = greedy([a], n), greedy([b], n)
    assert one.order == two.order
    assert torch.equal(one.errors, two.errors)
    kept = one.order[: case.k]
    toward = torch.zeros_like(a.cross)
    first, second = (solve(s, kept, ridge=case.ridge, toward=toward) for s in (a, b))
    factor = 2.0 ** (case.inputs + case.targets)
    assert torch.allclose(first.weight * factor, second.weight, rtol=1e-12, atol=0)
    assert (first.rank, first.solver) == (second.rank, second.solver)


@given(case=CASES)
@MANY
def test_fits(case: Case) -> None:
    p = problem(case)
    s, rows = p.statistics(), exact(p)
    kept = greedy([s], case.units, case.k).order
    columns = s.columns(kept)
    old = toward(case, s)
    fit = solve(s, kept, intercept=case.bias, ridge=case.ridge, toward=old)
    event(fit.solver)
    event(f"ridge {'on' if case.ridge else 'off'}, bias {'on' if case.bias else 'off'}")
    assert finite(fit.weight)
    assert (fit.shift is not None) == case.bias
    assert fit.shift is None or finite(fit.shift)
    gone = torch.ones(s.width, dtype=torch.bool)
    gone[columns] = False
    assert not bool(fit.weight[gone].any())
    assert 0 <= fit.rank <= fit.columns <= len(columns) + case.bias
    slack = 100 * noise(case, s)
    before = relative_error(s, unfitted(s, kept, old))
    assert math.isfinite(fit.error)
    assert 0 <= fit.error <= before * (1 + slack) + slack, "worse than the weights it starts from"
    # what is said of the error is true
    size = true_size(rows, fit.weight, fit.shift)
    assert fit.error == pytest.approx(
        true_error(rows, fit.weight, fit.shift), abs=slack * (1 + size)
    )
    if case.ridge == 0:
        assert fit.error <= 1 + slack, "worse than no weights at all"
        least, apart = least_error(rows, columns, case.bias)
        check_truth(case, s, fit.error, least, apart)
    check_folds(case, p, kept, old)


def true_size(p: Problem, weight: Tensor, shift: Tensor | None) -> float:
    """What columns give one by one, relative to the target: large where they nearly cancel each
    other, and the rounding of an error is of that size.
    """
    each = p.B.square().sum(0).sqrt() @ weight.abs()  # [m]
    if shift is not None:
        each += math.sqrt(len(p.B)) * shift.abs()
    return float(each.square().sum()) / p.energy if p.energy else 0.0


def toward(case: Case, s: Statistics) -> Tensor:
    """Weights [d, m] such as a layer might have had: they give outputs of the target's size."""
    draw = torch.Generator().manual_seed(case.seed + 1)
    length = s.gram.diagonal().clamp_min(0).sqrt()[:, None]
    size = math.sqrt(s.energy / s.width)
    new = torch.randn(s.cross.shape, generator=draw, dtype=torch.float64)
    return torch.where(length > 0, size * new / length.where(length > 0, 1.0), 0.0)


def check_folds(case: Case, p: Problem, kept: tuple[int, ...], old: Tensor) -> None:
    """Fits judged on what they have not seen."""
    sums = folded(p)
    whole = sums.whole()
    strengths = STRENGTHS if case.ridge == 0 else (case.ridge,)
    fit = cross_fit(sums, whole, kept, old, (*strengths, math.inf), case.bias)
    assert finite(fit.weight, *fit.versions, *fit.shifts)
    assert len(fit.versions) == sums.folds
    assert fit.ridge in (*strengths, math.inf)
    assert math.isfinite(fit.error)
    assert math.isfinite(fit.held_out)
    assert fit.error >= 0
    assert fit.held_out >= 0


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("pairs", [1, 2])
def test_columns_that_are_each_others_negatives(rows: int, pairs: int) -> None:
    """Ones are orthogonal to all that such columns span: no scale can be found from them."""
    draw = torch.Generator().manual_seed(0)
    half = torch.randn(rows, pairs, generator=draw, dtype=torch.float64)
    targets = half.sum(1, keepdim=True)
    p = Problem(torch.cat([half, -half], 1), targets, torch.arange(2 * pairs))
    for ridge in (0.0, 1e-12, 1e-3):
        fit = solve(p.statistics(), range(2 * pairs), ridge=ridge)
        assert finite(fit.weight)
        assert fit.error == pytest.approx(true_error(p, fit.weight), abs=1e-9)
        assert fit.error <= ridge + 1e-9
        assert ridge or fit.rank == min(rows, pairs)


@pytest.mark.parametrize("scale", [1e-30, 1e-18, 1e18, 1e30])
def test_products_beyond_the_range_of_float32(scale: float) -> None:
    draw = torch.Generator().manual_seed(0)
    rows, targets = (torch.randn(50, n, generator=draw) for n in (6, 3))
    plain = Problem(rows, targets, torch.arange(6)).statistics()
    small = Problem(rows * scale, targets / scale, plain.units).statistics()
    assert torch.allclose(small.gram / scale**2, plain.gram, rtol=1e-4, atol=1e-4)
    assert torch.allclose(small.cross, plain.cross, rtol=1e-4, atol=1e-4)
    assert small.energy * scale**2 == pytest.approx(plain.energy, rel=1e-5)
    assert small.precision == plain.precision
    assert greedy([small], 6).order == greedy([plain], 6).order
