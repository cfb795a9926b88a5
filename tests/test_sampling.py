"""Sensitivity sampling: sensitivities one sum at a time, draws by brute force, budgets by scanning."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import slow_methods as slow
import torch
from method_nets import NETS
from torch import nn
from views import setting_of, views

import subprune
from subprune.budget.goal import Limit
from subprune.budget.sampling import by_sampling, sensitivities
from subprune.budget.space import BudgetSpace
from subprune.data.batches import batches
from subprune.errors import BudgetError
from subprune.select.selector import View
from subprune.select.sensitivity import (
    DELTA,
    Sampling,
    Sensitivity,
    distinct,
    draws_for,
    max_shares,
    sampled,
    sensitivity,
)
from subprune.statistics.calibration import Calibration
from subprune.structure.cost import CostModel


def all_views(name: str) -> list[tuple[View, Sensitivity]]:
    net = NETS[name]
    model = net.build()
    calibration = Calibration.of(model, batches(net.data(2, 4), model, None))
    return [
        (view, sensitivity(calibration, view.group, view.dense))
        for view in views(setting_of(calibration))
    ]


@pytest.mark.parametrize("name", NETS)
def test_sensitivities_equal_their_slow_twins(name: str) -> None:
    net = NETS[name]
    for view, found in all_views(name):
        expected = slow.sensitivities(net.build(), net.groups[view.group.name], net.data(2, 4))
        assert found.units.tolist() == pytest.approx(expected, abs=1.1e-6)


def test_patches_and_kernel_positions_are_counted() -> None:
    found = {r.group.name: s.sums for r, s in all_views("plain")}
    assert found == {"conv1": (4 + 1) * 9, "conv2": 1 + 1, "fc1": 1 + 1}


def test_shares_by_hand() -> None:
    rows = torch.tensor([[1.0, 3.0], [0.0, 0.0]])
    weight = torch.tensor([[1.0, 0.0], [1.0, 2.0]])
    assert max_shares(rows, weight).tolist() == [0.25, 1.0]


def test_expected_number_of_different_units_by_simulation() -> None:
    p = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
    g = torch.Generator().manual_seed(0)
    drawn = torch.multinomial(p.expand(20000, 4), 5, replacement=True, generator=g)
    seen = sum(float((drawn == u).any(1).double().mean()) for u in range(4))
    assert distinct(p, 5) == pytest.approx(seen, abs=0.02)
    assert distinct(torch.tensor([1.0, 0.0], dtype=torch.float64), 7) == 1


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_draws_are_the_least_that_do(k: int) -> None:
    p = torch.tensor([0.6, 0.3, 0.099, 0.001], dtype=torch.float64)
    m = draws_for(p, k)
    assert math.ceil(distinct(p, m)) >= k
    assert m == 1 or math.ceil(distinct(p, m - 1) - 1e-9) < k


def test_draws_end_when_units_can_never_be_drawn() -> None:
    assert draws_for(torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64), 3) == draws_for(
        torch.tensor([0.5, 0.5], dtype=torch.float64), 2
    )


def test_nothing_is_scaled_when_nothing_goes_and_factors_are_right_on_average() -> None:
    for view, own in all_views("plain"):
        n, p = view.n_units, own.probabilities
        scale = sampled(replace(view, k=n)).scale
        assert scale is not None
        assert (scale(n) == 1).all()
        nested = sampled(view)
        assert sorted(nested.order) == list(range(n))
        assert nested.scale is not None
        m = draws_for(p, n - 1)
        chance = 1 - (1 - p) ** m
        # dead units stay
        torch.testing.assert_close(nested.scale(n - 1), torch.where(p > 0, 1 / chance, 1.0))


def test_draws_of_an_error_follow_the_formula() -> None:
    own = Sensitivity(torch.tensor([0.5, 0.25], dtype=torch.float64), 45)
    coefficient = 0.75 * 6 * math.log(8 * 45 / DELTA)
    assert own.draws(0.5) == math.ceil(3 * 7 * coefficient / 0.25)
    assert own.draws(1e9) == 1
    assert own.draws(1e-9) > 2**63


def test_a_smaller_delta_takes_more_draws() -> None:
    own = Sensitivity(torch.tensor([0.5, 0.25], dtype=torch.float64), 45)
    coefficient = 0.75 * 6 * math.log(8 * 45 / 1e-16)
    assert own.draws(0.5, 1e-16) == math.ceil(3 * 7 * coefficient / 0.25) > own.draws(0.5)


def test_what_was_measured_is_handed_on() -> None:
    net = NETS["plain"]
    calibration = Calibration.of(net.build(), batches(net.data(2, 4), net.build(), None))
    fresh = Sampling()
    assert fresh.knowing(calibration).known == {}
    for view in views(setting_of(calibration)):
        order = fresh.rank(view).order
        known = fresh.knowing(calibration)
        assert view.group.name in known.known
        assert known == fresh, "it is shown and compared by what it does"
        assert repr(known) == repr(fresh)
        other = Calibration.of(net.build(), batches(net.data(2, 4), net.build(), None))
        generator = torch.Generator().manual_seed(0)
        again = replace(view, setting=setting_of(other), generator=generator)
        expected = replace(view, generator=torch.Generator().manual_seed(0))
        assert known.rank(again).order == fresh.rank(expected).order
        assert other.cache == {}
        assert sorted(order) == list(range(view.n_units))


def test_no_unit_matters_all_are_equal() -> None:
    assert Sensitivity(torch.zeros(4, dtype=torch.float64), 2).probabilities.tolist() == [0.25] * 4


@pytest.mark.parametrize("compression", [1.0, 1.5, 2.0, 3.0, 6.0])
def test_budgets_meet_the_target_and_share_one_error(compression: float) -> None:
    net = NETS["plain"]
    model = net.build()
    calibration = Calibration.of(model, batches(net.data(2, 4), model, None))
    groups = list(calibration.structure.inner())
    cost = CostModel(model, calibration.structure)
    own = sensitivities(setting_of(calibration, groups))
    target = Limit("params", int(cost.params({}) / compression), "test")
    counts = by_sampling(BudgetSpace(groups=groups, cost=cost, limit=target), own)
    assert cost.params(counts) <= target.most
    assert all(
        cost.params({**counts, g.name: counts[g.name] + 1}) > target.most
        for g in groups
        if counts[g.name] < g.n_units
    )

    def at(error: float) -> dict[str, int]:
        return {
            g.name: min(
                g.n_units,
                max(
                    1,
                    math.ceil(distinct(own[g.name].probabilities, own[g.name].draws(error)) - 1e-9),
                ),
            )
            for g in groups
        }

    fitting = [at(10 ** (i / 50)) for i in range(-100, 450)]
    best = next(c for c in fitting if cost.params(c) <= target.most)
    assert all(counts[g] >= best[g] for g in counts)


def test_the_rule_is_its_own_and_an_impossible_target_is_refused() -> None:
    net = NETS["plain"]
    result = subprune.prune(
        net.build(), net.data(2, 9), method="layer-sampling", compression=2, progress=False
    )
    assert result.plan.options["allocate"] == "sampling"
    assert result.report.compression >= 2
    with pytest.raises(BudgetError, match="nearest feasible"):
        subprune.prune(
            net.build(), net.data(2, 9), method="layer-sampling", compression=1e4, progress=False
        )


def test_float32_ties_do_not_depend_on_rounding() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    x = torch.randn(30, 4)
    kept = {
        str(
            subprune.prune(
                m, d, method="layer-sampling", budgets={"0": 3}, progress=False
            ).plan.kept
        )
        for m, d in ((model, x), (copy.deepcopy(model).double(), x.double()))
    }
    assert len(kept) == 1
