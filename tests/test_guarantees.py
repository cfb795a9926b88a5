"""Every bound against the definition it bounds, by brute force on small problems."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from itertools import combinations
from pathlib import Path

import pytest
import reference as slow
import torch
from reference import Problem, random_problem
from torch import nn

from subprune import prune
from subprune.errors import OptionError
from subprune.guarantees import bounds, group_guarantee, guarantees
from subprune.select import objective
from subprune.select.greedy import greedy

ROOT = Path(__file__).resolve().parent.parent
SLACK = 1e-9
CASES = [
    pytest.param(
        {"per_unit": r, "asymmetric": a, "rank": q, "outputs": m},
        id=f"r{r}-{'asym' if a else 'sym'}-q{q}-m{m}",
    )
    for r in (1, 2)
    for a in (False, True)
    for q in (None, 4)
    for m in (3, 12)
]


def subsets(items: Iterable[int], most: int) -> list[tuple[int, ...]]:
    items = list(items)
    return [c for size in range(most + 1) for c in combinations(items, size)]


def value_of(problems: list[Problem]) -> slow.SetFunction:
    stats = [p.statistics() for p in problems]
    cache: dict[frozenset[int], float] = {}

    def value(kept: Iterable[int]) -> float:
        key = frozenset(kept)
        if key not in cache:
            cache[key] = objective.value(stats, sorted(key))
        return cache[key]

    return value


def gain_ratio(f: slow.SetFunction, n: int, k: int, nested: bool, tiny: float) -> float:
    """min F(i|S) / F(i|T) over |S|, |T| ≤ k and i outside both; S ⊆ T if nested."""
    least = 1.0
    for T in subsets(range(n), k):
        for S in subsets(T, k) if nested else subsets(range(n), k):
            for i in set(range(n)) - set(T) - set(S):
                below = f([*T, i]) - f(T)
                if below > tiny:
                    least = min(least, (f([*S, i]) - f(S)) / below)
    return least


@pytest.mark.parametrize("options", CASES)
@pytest.mark.parametrize("seed", range(2))
def test_lower_bounds_on_gamma(options: dict, seed: int) -> None:
    p = random_problem(seed, rows=40, units=5, **options)
    stats, f = p.statistics(), value_of([p])
    given = [bounds.spans(stats)]
    order = greedy([stats], 5).order
    for k in (1, 2, 5):
        U = order[: min(k, 4)]
        true = slow.submodularity_ratio(f, 5, U, k, 1e-9 * p.energy)
        proven = bounds.gamma_bound(given, U, k)
        assert 0 <= proven <= true + SLACK
        assert bounds.gamma_bound(given, range(5), 5) <= proven + SLACK
        assert bounds.global_eigenvalue_bound(stats) <= proven + SLACK
        assert bounds.alpha_bound(given, min(2 * k - 1, 5)) <= true + SLACK
        if options["rank"] is None:
            assert proven > 0
    assert (
        slow.submodularity_ratio(f, 5, order, 5, 1e-9 * p.energy)
        <= bounds.gamma_seen([stats], 5, order) + SLACK
    )


@pytest.mark.parametrize("options", CASES)
def test_alpha_and_curvature(options: dict) -> None:
    p = random_problem(3, rows=40, units=4, **options)
    given, f = [bounds.spans(p.statistics())], value_of([p])
    for k in (1, 2, 3):
        true = gain_ratio(f, 4, k, True, 1e-7 * p.energy)
        assert bounds.alpha_bound(given) <= bounds.alpha_bound(given, k) + SLACK <= true + 2 * SLACK
        assert (
            bounds.curvature_bound(given) >= 1 - gain_ratio(f, 4, k, False, 1e-7 * p.energy) - SLACK
        )
    if options["rank"] is None and options["outputs"] == 12:
        assert bounds.alpha_bound(given) > 0
        assert bounds.curvature_bound(given) < 1
    if options["outputs"] == 3 and options["per_unit"] == 1:
        assert bounds.alpha_bound(given) == 0


def test_bounds_hold_for_the_sum_of_two_consumers() -> None:
    problems = [random_problem(seed, units=5, outputs=12, per_unit=seed) for seed in (1, 2)]
    stats, f = [p.statistics() for p in problems], value_of(problems)
    given = [bounds.spans(s) for s in stats]
    tiny = 1e-9 * sum(p.energy for p in problems)
    true = slow.submodularity_ratio(f, 5, range(4), 2, tiny)
    assert 0 < bounds.gamma_bound(given, range(4), 2) <= true + SLACK
    assert 0 < bounds.alpha_bound(given) <= gain_ratio(f, 5, 3, True, tiny) + SLACK


@pytest.mark.parametrize("per_unit", [1, 3])
@pytest.mark.parametrize("rank", [None, 11])
def test_bounds_without_enumeration_stay_below_it(
    per_unit: int, rank: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = False
    for seed in range(3):
        p = random_problem(
            seed, rows=400, units=12, per_unit=per_unit, rank=rank and rank * per_unit
        )
        given = [bounds.spans(p.statistics())]
        for U, k in (((), 1), ((), 2), ((), 6), ((1, 5), 2), ((0, 1, 2, 3), 4)):
            exact = bounds.gamma_bound(given, U, k)
            with monkeypatch.context() as patch:
                patch.setattr(bounds, "_ENUMERATE", 0)
                quick = bounds.gamma_bound(given, U, k)
                assert bounds.certified_units(given) >= 1
            assert quick <= exact + SLACK
            found |= quick > 0
    assert found


@pytest.mark.parametrize("asymmetric", [False, True])
@pytest.mark.parametrize("per_unit", [1, 2])
def test_error_bounds_hold_and_the_sharper_is_sharper(asymmetric: bool, per_unit: int) -> None:
    for seed in range(4):
        p = random_problem(seed, units=6, per_unit=per_unit, asymmetric=asymmetric)
        g = group_guarantee("x", [p.statistics()], 6, range(7))
        assert g.gamma > 0
        for b in g.budgets:
            assert b.error <= b.tight + SLACK <= b.bound + 2 * SLACK
            assert b.error == pytest.approx(
                slow.residual(p, greedy([p.statistics()], 6).order[: b.k]) / p.energy, abs=1e-9
            )
            if b.k:
                best = slow.optimum(value_of([p]), 6, b.k)
                reached = (1 - b.error) * p.energy
                assert reached >= b.share * best - SLACK * p.energy
                assert b.share >= 1 - math.exp(-b.gamma)
        assert (g.floor > 1e-3) == asymmetric


def test_orthogonal_columns_are_submodular() -> None:
    B = torch.diag(torch.arange(1.0, 6.0, dtype=torch.float64))
    p = Problem(B, B @ torch.eye(5, dtype=torch.float64), torch.arange(5))
    g = group_guarantee("x", [p.statistics()], 5, [2])
    assert g.gamma == pytest.approx(1)
    assert g.gamma_seen == pytest.approx(1)
    assert g.gamma_global == pytest.approx(1 / 25)
    assert g.budgets[0].tight <= g.budgets[0].bound == pytest.approx(math.exp(-2 / 5))
    assert g.budgets[0].error == pytest.approx((1 + 4 + 9) / 55)


def test_paper_ratio_is_half_the_rank_or_one() -> None:
    full = random_problem(0, units=6, per_unit=2).statistics()
    low = random_problem(0, units=6, per_unit=2, rank=5).statistics()
    assert (bounds.rank(full), bounds.rank(low)) == (12, 5)
    g = group_guarantee("x", [full], 6, [3])
    assert (g.possible, g.k_possible, g.k_certified) == (1, 6, 6)
    g = group_guarantee("x", [low], 6, [3])
    assert g.possible == pytest.approx(5 / 24)
    assert (g.k_possible, g.k_certified) == (1, 1)  # 2 units are 4 generic columns in 5 dimensions
    assert (g.gamma, g.gamma_global, g.alpha, g.curvature) == (0, 0, 0, 1)
    assert g.budgets[0].bound == 1
    assert g.assumptions[0] == "all columns independent: no, rank 5 of 12"
    assert any("says nothing" in words for words in g.assumptions)


def test_zero_units_and_repeated_columns_do_not_spoil_the_bound() -> None:
    p = random_problem(1, units=6)
    B = torch.cat([p.B, torch.zeros(60, 1, dtype=p.B.dtype), 3 * p.B[:, :1]], 1)
    # unit 6 is zero, unit 0 has the same column twice
    units = torch.tensor([0, 1, 2, 3, 4, 5, 6, 0])
    stats = Problem(B, p.Y, units).statistics()
    plain, spoilt = (
        group_guarantee("x", [p.statistics()], 6, [2]),
        group_guarantee("x", [stats], 7, [2]),
    )
    assert spoilt.zero_units == 1
    assert spoilt.rank == 6 < spoilt.columns == 8
    assert spoilt.gamma == pytest.approx(plain.gamma)
    assert spoilt.budgets[0].tight == pytest.approx(plain.budgets[0].tight)
    assert spoilt.gamma_global == 0
    assert any("no unit is zero: no, 1 of 7" in words for words in spoilt.assumptions)


def test_duplicate_unit_gives_zero() -> None:
    p = random_problem(2, units=5)
    twin = Problem(torch.cat([p.B, -2 * p.B[:, 3:4]], 1), p.Y, torch.arange(6))
    g = group_guarantee("x", [twin.statistics()], 6, [1, 2])
    assert (g.gamma, g.k_certified, g.curvature) == (0, 0, 1)
    # some S of 2 units holds both twins; 1 unit beside greedy's first need not
    assert g.budgets[1].gamma == 0


def test_columns_without_a_unit_are_given() -> None:
    p = random_problem(4, units=6)
    marked = Problem(p.B, p.Y, torch.where(p.units == 5, -1, p.units))
    stats = marked.statistics()
    f = lambda kept: objective.value([stats], kept) - objective.value([stats], [])  # noqa: E731  (a formula)
    true = slow.submodularity_ratio(f, 5, range(3), 2, 1e-9)
    assert 0 < bounds.gamma_bound([bounds.spans(stats)], range(3), 2) <= true + SLACK
    for b in group_guarantee("x", [stats], 5, range(6)).budgets:
        assert b.error <= b.tight + SLACK


def test_rounding_of_float32_products_is_allowed_for() -> None:
    p = random_problem(5, units=6)
    single = Problem(p.B.float(), p.Y.float(), p.units).statistics()
    double = Problem(p.B.float().double(), p.Y.float().double(), p.units).statistics()
    loose, sharp = (bounds.gamma_bound([bounds.spans(s)], (), 6) for s in (single, double))
    assert 0 < loose < sharp


def small_net() -> tuple[nn.Module, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(
        *(
            nn.Conv2d(2, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Conv2d(4, 5, 3, stride=2),
            nn.ReLU(),
        ),
        *(nn.Flatten(), nn.Linear(45, 7), nn.ReLU(), nn.Linear(7, 9)),
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)
    return model.eval(), torch.randn(64, 2, 8, 8, generator=generator)


@pytest.mark.parametrize("patches", ["all", "random"])
@pytest.mark.parametrize("form", ["layer", "sequential", "asymmetric"])
def test_guarantees_of_a_network(form: str, patches: str) -> None:
    model, x = small_net()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    found = guarantees(model, x, target=form, keep=0.5, patches=patches)
    assert [g.name for g in found.groups] == ["0", "3", "6"]
    assert [g.columns for g in found.groups] == [36, 45, 7]
    for g in found.groups:
        (b,) = g.budgets
        assert b.error <= b.tight + SLACK <= b.bound + 2 * SLACK
        assert g.gamma <= g.gamma_seen + SLACK
    assert found["6"].name == "6"
    assert "k/n possible" in str(found)
    json.dumps(found.to_dict())
    assert all(
        torch.equal(v, before[k]) and v.dtype == before[k].dtype
        for k, v in model.state_dict().items()
    )


def test_own_precision_gives_the_same_rank() -> None:
    model, x = small_net()
    double, single = (guarantees(model, x, double=flag) for flag in (True, False))
    assert [g.rank for g in double.groups] == [g.rank for g in single.groups]
    assert all(
        s.gamma <= d.gamma + SLACK for s, d in zip(single.groups, double.groups, strict=True)
    )


def test_options_are_checked() -> None:
    model, x = small_net()
    with pytest.raises(OptionError, match="asymmetric"):
        guarantees(model, x, target="asymetric")
    with pytest.raises(OptionError, match="random"):
        guarantees(model, x, patches="some")
    with pytest.raises(OptionError, match="one share"):
        guarantees(model, x, target="sequential")
    with pytest.raises(KeyError, match="groups are"):
        guarantees(model, x, budgets={"0": 2})["nothing"]


def test_the_example_in_the_docs_runs(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.S)
    exec(compile(code, "docs/guarantees.md", "exec"), {})
    assert "share of the best" in capsys.readouterr().out


def test_float32_rule_of_the_table_script_is_that_of_pytorch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "experiments"))
    import guarantee_tables as script

    assert len(script.read_paper()) == 49
    generator = torch.Generator().manual_seed(0)
    for decay in (0.3, 0.6, 0.9):
        rows = torch.randn(5000, 30, generator=generator) * decay ** torch.arange(30.0)
        gram = script.Gram(nn.Linear(30, 1), None)
        gram.add(rows.double())
        assert gram.float32_ratio()[0] == int(torch.linalg.matrix_rank(rows))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inp, self.a, self.b, self.end = (
            nn.Linear(6, 8),
            nn.Linear(8, 12),
            nn.Linear(12, 8),
            nn.Linear(8, 3),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inp(x)
        return self.end(x + self.b(torch.relu(self.a(x))))


def test_a_pruned_stream_gets_its_guarantees() -> None:
    torch.manual_seed(0)
    model, x = Residual().eval(), torch.randn(40, 6)
    result = prune(model, x, budgets={"inp": 5, "a": 6}, method="asym-in-change")
    for form in ("layer", "sequential", "asymmetric"):
        found = guarantees(model, x, target=form, budgets=result.plan.counts)
        assert {g.name: g.budgets[0].k for g in found.groups} == {"inp": 5, "a": 6}
        for g in found.groups:
            assert g.budgets[0].error <= g.budgets[0].tight + SLACK
    assert "inp" in result.with_guarantees(found).report.to_html()


def test_only_and_ignore_are_those_of_prune() -> None:
    model, x = small_net()
    assert [g.name for g in guarantees(model, x, only=nn.Conv2d).groups] == ["0", "3"]
    assert [g.name for g in guarantees(model, x, only=model[3]).groups] == ["3"], (
        "the module given, not its copy"
    )  # type: ignore[index]
    assert [g.name for g in guarantees(model, x, ignore=["0", model[6]]).groups] == ["3"]  # type: ignore[index]
    with pytest.raises(OptionError, match="ignore= names 'zz'"):
        guarantees(model, x, ignore="zz")
    with pytest.raises(OptionError, match=r"budgets.* '0'"):
        guarantees(model, x, ignore="0", budgets={"0": 2})
