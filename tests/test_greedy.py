"""The keep order: equal to trying everything, bounded as the paper says, safe on degenerate inputs."""

from __future__ import annotations

import math

import pytest
import reference as slow
import torch
from reference import Problem, random_problem

from subprune.errors import BudgetError, OptionError
from subprune.select import blocks, halves, objective
from subprune.select.greedy import greedy, stochastic_greedy
from subprune.select.keep_order import KeepOrder
from subprune.statistics.accumulation import Accumulator
from subprune.statistics.statistics import Statistics


def close(found: torch.Tensor, expected: list[float], rtol: float, atol: float = 0.0) -> None:
    torch.testing.assert_close(
        found, torch.tensor(expected, dtype=torch.float64), rtol=rtol, atol=atol
    )


def check_sound(found: KeepOrder, stats: list[Statistics], n_units: int) -> None:
    """What holds for every keep order, whatever the input."""
    energy = sum(s.energy for s in stats)
    assert len(set(found.order)) == len(found.order)
    assert set(found.order) <= set(range(n_units))
    assert len(found.gains) == len(found.ranks) == len(found.order) == len(found.errors) - 1
    assert bool(torch.isfinite(found.gains).all())
    assert bool((found.gains >= 0).all())
    assert float(found.gains.sum()) <= energy * (1 + 1e-12)
    assert bool((found.errors >= 0).all())
    assert bool((found.errors.diff() <= 0).all())
    assert {u for u, g in zip(found.order, found.gains.tolist(), strict=True) if g == 0} == set(
        found.dependent
    )


@pytest.mark.parametrize("per_unit", [1, 9])
@pytest.mark.parametrize("asymmetric", [False, True])
@pytest.mark.parametrize("panel", [2, 128])
@pytest.mark.parametrize("large", [0, 10**9])  # whether C·Cᵀ is kept whole
@pytest.mark.parametrize("seed", range(3))
def test_equals_trying_every_unit(
    per_unit: int,
    asymmetric: bool,
    panel: int,
    large: int,
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(blocks, "_PANEL", panel)
    monkeypatch.setattr(blocks, "_LARGE", large)
    p = random_problem(seed, rows=100, units=8, per_unit=per_unit, outputs=3, asymmetric=asymmetric)
    found = greedy([p.statistics()], 8)
    order, gains = slow.greedy([p], 8, 8)
    check_sound(found, [p.statistics()], 8)
    assert list(found.order) == order
    close(found.gains, gains, 1e-8, 1e-9)
    expected = [slow.residual(p, order[:k]) / p.energy for k in range(9)]
    torch.testing.assert_close(
        found.errors, torch.tensor(expected, dtype=torch.float64), rtol=1e-7, atol=1e-12
    )
    assert found.ranks == (per_unit,) * 8
    assert found.dependent == ()


@pytest.mark.parametrize(
    ("per_unit", "outputs", "kind"),
    [(1, 200, blocks.Whole), (3, 200, blocks.Whole), (1, 40, blocks.Ahead), (3, 20, blocks.Ahead)],
)
@pytest.mark.parametrize("strip", [1, 64])
def test_keeping_c_times_its_transpose_changes_nothing(
    per_unit: int,
    outputs: int,
    kind: type[blocks.Block],
    strip: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    p = random_problem(5, rows=900, units=360 // per_unit, per_unit=per_unit, outputs=outputs)
    plain = greedy([p.statistics()], p.n_units)
    monkeypatch.setattr(blocks, "_LARGE", 0)
    s = p.statistics()
    assert type(blocks.make_block(s.gram, s.cross, s.units, p.n_units, 1e-10)) is kind
    monkeypatch.setattr(blocks, "_PANEL", 16)
    monkeypatch.setattr(halves, "_STRIP", strip)
    found = greedy([p.statistics()], p.n_units)
    check_sound(found, [p.statistics()], p.n_units)
    assert found.order == plain.order
    torch.testing.assert_close(found.gains, plain.gains, rtol=1e-9, atol=1e-12 * p.energy)


@pytest.mark.parametrize("panel", [1, 2, 16])
def test_targets_are_read_again_where_hardly_anything_is_left_of_them(
    panel: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the columns share a massive row, as language models have them: once it is
    explained, gains are too small to be taken from C·Cᵀ, also right after a flush.
    """
    generator = torch.Generator().manual_seed(3)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    rows, weight = normal(400, 40), normal(40, 60)
    rows[0, :20] = 200.0
    cross = rows.T @ rows @ weight
    stats = Statistics(
        gram=rows.T @ rows,
        cross=cross,
        energy=float((weight * cross).sum()),
        rows=400,
        sums=rows.sum(0),
        target_sums=(rows @ weight).sum(0),
        units=torch.arange(40),
        precision=torch.finfo(torch.float64).eps,
    )
    plain = greedy([stats], 40)
    monkeypatch.setattr(blocks, "_LARGE", 0)
    monkeypatch.setattr(blocks, "_PANEL", panel)
    found = greedy([stats], 40)
    assert found.order == plain.order
    torch.testing.assert_close(found.gains, plain.gains, rtol=1e-6, atol=1e-12 * stats.energy)


@pytest.mark.parametrize("per_unit", [1, 4])
@pytest.mark.parametrize("seed", range(2))
def test_many_units_follow_the_largest_exact_gain_through_flushes(per_unit: int, seed: int) -> None:
    p = random_problem(seed, rows=700, units=280 // per_unit, per_unit=per_unit, outputs=20)
    stats, n = [p.statistics()], p.n_units
    found = greedy(stats, n)
    assert sorted(found.order) == list(range(n))
    for k in range(n // 8, n - 1, n // 3):
        given = found.order[:k]
        exact = [objective.gain(stats, u, given) for u in sorted(set(range(n)) - set(given))]
        assert float(found.gains[k]) == pytest.approx(max(exact), rel=1e-8)
        assert float(found.errors[k]) == pytest.approx(
            objective.residual(stats, given) / p.energy, rel=1e-8
        )


@pytest.mark.parametrize("per_unit", [1, 9])
@pytest.mark.parametrize("rank", [3, 5])
def test_deficient_inputs_reach_what_least_squares_reaches(per_unit: int, rank: int) -> None:
    p = random_problem(11, rows=40, per_unit=per_unit, rank=rank, asymmetric=True)
    found = greedy([p.statistics()], 7)
    check_sound(found, [p.statistics()], 7)
    for k in range(8):
        expected = slow.residual(p, found.order[:k]) / p.energy
        assert float(found.errors[k]) == pytest.approx(expected, rel=1e-7)
    assert sum(found.ranks) == rank
    assert len(found.dependent) == 7 - math.ceil(rank / per_unit)
    assert list(found.dependent) == sorted(found.dependent)


@pytest.mark.parametrize("asymmetric", [False, True])
@pytest.mark.parametrize("per_unit", [1, 2])
@pytest.mark.parametrize("seed", range(5))
def test_guarantees_of_the_paper(asymmetric: bool, per_unit: int, seed: int) -> None:
    n = 6
    p = random_problem(seed, rows=25, units=n, per_unit=per_unit, outputs=2, asymmetric=asymmetric)
    stats = [p.statistics()]

    def f(kept: object) -> float:
        return objective.value(stats, kept)  # type: ignore[arg-type]

    full = greedy(stats, n)
    least = slow.residual(p, range(n))
    for k in (1, 2, 3, 4):
        chosen = full.order[:k]
        ratio = slow.submodularity_ratio(f, n, chosen, k, 1e-9 * p.energy)
        assert f(chosen) >= (1 - math.exp(-ratio)) * slow.optimum(f, n, k) * (1 - 1e-9)
        whole = slow.submodularity_ratio(f, n, chosen, n, 1e-9 * p.energy)
        decay = math.exp(-whole * k / n)
        bound = decay * p.energy + (1 - decay) * least
        assert slow.residual(p, chosen) <= bound * (1 + 1e-9)
        if not asymmetric:
            assert slow.residual(p, chosen) <= decay * p.energy * (1 + 1e-9)


def test_every_prefix_is_the_smaller_budget() -> None:
    stats = [random_problem(s, rows=200, units=40, per_unit=3).statistics() for s in range(2)]
    full = greedy(stats, 40)
    for k in (0, 1, 2, 5, 13, 27, 39, 40):
        part = greedy(stats, 40, k)
        assert part.order == full.order[:k]
        assert torch.equal(part.gains, full.gains[:k])
        assert torch.equal(part.errors, full.errors[: k + 1])
        assert part.ranks == full.ranks[:k]
        assert full.kept(k) == tuple(sorted(part.order))


def test_asymmetric_form_with_equal_inputs_is_the_symmetric_one() -> None:
    p = random_problem(2, per_unit=3)
    weight = torch.linalg.lstsq(p.B, p.Y).solution
    accumulator = Accumulator(21, 0, p.units)
    accumulator.update(p.B)
    symmetric = greedy([accumulator.result_for_weight(weight)], 7)
    asymmetric = greedy([p.statistics()], 7)
    assert symmetric.order == asymmetric.order
    torch.testing.assert_close(symmetric.errors, asymmetric.errors, rtol=1e-8, atol=1e-12)


def test_several_consumers_add_up() -> None:
    problems = [random_problem(seed, per_unit=seed + 1, outputs=3) for seed in range(3)]
    stats = [p.statistics() for p in problems]
    found = greedy(stats, 7)
    order, gains = slow.greedy(problems, 7, 7)
    assert list(found.order) == order
    close(found.gains, gains, 1e-8, 1e-9)
    assert found.ranks == (6,) * 7


def test_consumers_that_stack_targets_equal_consumers_that_add() -> None:
    a = random_problem(1, outputs=6)
    halves = [Problem(a.B, a.Y[:, :2], a.units), Problem(a.B, a.Y[:, 2:], a.units)]
    together, apart = greedy([a.statistics()], 7), greedy([h.statistics() for h in halves], 7)
    assert together.order == apart.order
    torch.testing.assert_close(together.gains, apart.gains, rtol=1e-9, atol=0)


@pytest.mark.parametrize("rank", [None, 6])
def test_always_kept_columns_come_first(rank: int | None) -> None:
    p = random_problem(4, per_unit=2, rank=rank, asymmetric=True)
    marked = Problem(p.B, p.Y, torch.where(p.units >= 5, -1, p.units))
    found = greedy([marked.statistics()], 5)
    order, gains = slow.greedy([marked], 5, 5)
    check_sound(found, [marked.statistics()], 5)
    picks = 5 - len(found.dependent)
    assert list(found.order[:picks]) == order[:picks]
    assert float(found.errors[0]) == pytest.approx(slow.residual(marked, []) / p.energy, rel=1e-8)
    torch.testing.assert_close(
        found.gains[:picks], torch.tensor(gains[:picks], dtype=torch.float64), rtol=1e-6, atol=0
    )


def test_units_of_unequal_width_and_shuffled_columns() -> None:
    p = random_problem(9, units=12, rows=80)
    units = torch.tensor([3, 0, 1, 1, -1, 0, 3, 3, 2, 0, 5, 0])
    shuffled = Problem(p.B, p.Y, units)
    found = greedy([shuffled.statistics()], 6)
    order, _ = slow.greedy([shuffled], 6, 5)
    assert list(found.order[:5]) == order
    assert found.dependent == (4,)
    assert dict(zip(found.order, found.ranks, strict=True)) == {0: 4, 1: 2, 2: 1, 3: 3, 4: 0, 5: 1}


@pytest.mark.parametrize("per_unit", [1, 3])
@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e6])
def test_duplicates_are_picked_once_lowest_first(per_unit: int, scale: float) -> None:
    p = random_problem(8, units=5, per_unit=per_unit, rows=60)
    doubled = Problem(
        torch.cat([p.B, scale * p.B], 1), p.Y, torch.arange(10).repeat_interleave(per_unit)
    )
    found = greedy([doubled.statistics()], 10)
    alone = greedy([p.statistics()], 5)
    check_sound(found, [doubled.statistics()], 10)
    assert found.order[:5] == alone.order
    assert found.order[5:] == found.dependent == (5, 6, 7, 8, 9)
    torch.testing.assert_close(found.gains[:5], alone.gains, rtol=1e-8, atol=0)
    # in the opposite order of columns, the copies have the lower numbers
    flipped = Problem(
        torch.cat([scale * p.B, p.B], 1), p.Y, torch.arange(10).repeat_interleave(per_unit)
    )
    assert greedy([flipped.statistics()], 10).order[:5] == alone.order


def test_dead_units_come_last_without_gain() -> None:
    p = random_problem(7, per_unit=2)
    B = p.B.clone()
    B[:, [2, 3, 8, 9]] = 0
    dead = Problem(B, p.Y, p.units)
    found = greedy([dead.statistics()], 7)
    check_sound(found, [dead.statistics()], 7)
    assert found.order[5:] == found.dependent == (1, 4)
    assert found.ranks[5:] == (0, 0)


def test_fewer_rows_than_columns_in_float32() -> None:
    generator = torch.Generator().manual_seed(1)
    B = torch.randn(30, 180, generator=generator)
    p = Problem(
        B, B @ torch.randn(180, 12, generator=generator), torch.arange(20).repeat_interleave(9)
    )
    found = greedy([p.statistics()], 20)
    check_sound(found, [p.statistics()], 20)
    assert sum(found.ranks[:4]) == 30
    assert float(found.errors[4]) < 1e-6
    check_sound(greedy([p.statistics()], 20, tolerance=1e-10), [p.statistics()], 20)


def test_zero_target_one_unit_no_unit() -> None:
    p = random_problem(0)
    zero = [Problem(p.B, torch.zeros_like(p.Y), p.units).statistics()]
    found = greedy(zero, 7)
    assert found.order == found.dependent == tuple(range(7))
    assert not found.errors.any()
    one = random_problem(0, units=1, per_unit=4)
    assert greedy([one.statistics()], 1).order == (0,)
    assert float(greedy([one.statistics()], 1).errors[1]) < 1e-12
    assert greedy([one.statistics()], 1, 0).order == ()


def test_target_explained_early_leaves_no_gain() -> None:
    p = random_problem(3)
    weight = torch.zeros(7, 4, dtype=torch.float64)
    weight[[1, 5]] = torch.randn(
        2, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    found = greedy([Problem(p.B, p.B @ weight, p.units).statistics()], 7)
    explained = 7 - len(found.dependent)
    assert {1, 5} <= set(found.order[:explained])
    assert float(found.errors[explained]) < 1e-12


def test_same_seed_same_result() -> None:
    stats = [random_problem(1, units=30, rows=90).statistics()]
    runs = [
        stochastic_greedy(stats, 30, 10, 0.3, torch.Generator().manual_seed(5)) for _ in range(2)
    ]
    assert runs[0].order == runs[1].order
    assert torch.equal(runs[0].gains, runs[1].gains)
    orders = {
        stochastic_greedy(stats, 30, 10, 0.3, torch.Generator().manual_seed(s)).order
        for s in range(5)
    }
    assert len(orders) > 1
    assert torch.equal(greedy(stats, 30).gains, greedy(stats, 30).gains)


def test_stochastic_with_small_epsilon_is_greedy() -> None:
    stats = [random_problem(1, units=12, per_unit=2).statistics()]
    found = stochastic_greedy(stats, 12, 6, 1e-9, torch.Generator().manual_seed(0))
    assert found.order == greedy(stats, 12, 6).order
    assert torch.equal(found.errors, greedy(stats, 12, 6).errors)


@pytest.mark.parametrize("epsilon", [0.1, 0.4])
def test_stochastic_mean_keeps_its_guarantee(epsilon: float) -> None:
    n, k = 7, 3
    stats = [random_problem(21, rows=25, units=n, outputs=2).statistics()]

    def f(kept: object) -> float:
        return objective.value(stats, kept)  # type: ignore[arg-type]

    runs = [
        stochastic_greedy(stats, n, k, epsilon, torch.Generator().manual_seed(s)) for s in range(40)
    ]
    mean = sum(f(run.order) for run in runs) / len(runs)
    tiny = 1e-9 * stats[0].energy
    ratio = min(
        slow.submodularity_ratio(f, n, order, k, tiny) for order in {run.order for run in runs}
    )
    assert mean >= (1 - math.exp(-ratio) - epsilon) * slow.optimum(f, n, k)


def test_refusals_say_what_is_allowed() -> None:
    stats = [random_problem(0).statistics()]
    with pytest.raises(OptionError, match="unit 6, but n_units is 5"):
        greedy(stats, 5)
    with pytest.raises(BudgetError, match="between 0 and"):
        greedy(stats, 7, 8)
    with pytest.raises(OptionError, match="relative"):
        greedy(stats, 7, tolerance=0.0)
    with pytest.raises(OptionError, match="strictly between 0 and 1"):
        stochastic_greedy(stats, 7, 3, 1.0, torch.Generator())
    with pytest.raises(BudgetError, match="outside"):
        greedy(stats, 7, 3).kept(4)
