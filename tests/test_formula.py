"""Costs as data: the formula of a report says what the cut model has, and savings add up."""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn

import subprune
from subprune.report.figures import Report
from subprune.structure.analysis import find_groups
from subprune.structure.cost import CostModel
from subprune.zoo.models import LeNet, ResNet


def networks() -> dict[str, tuple[nn.Module, torch.Tensor]]:
    return {
        "lenet": (LeNet().eval(), torch.randn(3, 1, 28, 28)),
        "resnet": (ResNet(20).eval(), torch.randn(2, 3, 32, 32)),
        "attention": (
            nn.TransformerEncoderLayer(16, 4, 24, batch_first=True).eval(),
            torch.randn(2, 5, 16),
        ),
    }


@pytest.mark.parametrize("name", networks())
def test_formula_and_savings_agree_with_the_exact_costs(name: str) -> None:
    model, x = networks()[name]
    structure = find_groups(model, x)
    cost, rng = CostModel(model, structure), random.Random(0)
    groups = [g for g in structure.groups if cost.uniform(g.name)]
    formula = cost.formula([g.name for g in groups], inputs=len(x))
    assert formula.exact
    for _ in range(20):
        counts = {g.name: rng.randint(1, g.n_units) for g in groups}
        assert formula.total("params", counts) == cost.params(counts)
        assert formula.total("flops", counts) * len(x) == pytest.approx(cost.flops(counts))
        kept = {g.name: rng.sample(range(g.n_units), counts[g.name]) for g in groups}
        saved = cost.savings(kept)
        slack = len(groups)  # each is rounded to whole numbers
        params = cost.params({}) - cost.params(counts)
        assert sum(p for p, _ in saved.values()) == pytest.approx(params, abs=slack)
        flops = cost.flops({}) - cost.flops(counts)
        assert sum(f for _, f in saved.values()) == pytest.approx(flops, abs=slack)


def test_two_groups_that_cut_one_weight_share_what_both_save() -> None:
    model = nn.Sequential(nn.Linear(2, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU())
    model.append(nn.Linear(12, 2)).eval()
    cost = CostModel(model, find_groups(model, torch.randn(4, 2)))
    saved = cost.savings({"0": range(6), "2": range(6)})
    # Of the weight of 12 × 12, 108 go: 36 are the first group's alone, 36 the second's, and 36 both
    # would take, of which each has half. Weights on either side and biases are 18 more for each.
    assert [p for p, _ in saved.values()] == [72, 72]


def test_a_report_carries_both_through_its_file() -> None:
    torch.manual_seed(0)
    model, x = networks()["lenet"]
    report = subprune.prune(model, x, compression=2, progress=False).report
    again = Report.from_json(report.to_json())
    assert again.costs == report.costs
    assert again.savings == report.savings
    assert again.costs is not None
    counts = again.plan.counts
    assert again.costs.total("params", counts) == report.parameters[1]
    assert again.costs.total("flops", counts) == report.flops[1]
    before, after = report.parameters
    assert sum(p for p, _ in again.savings.values()) == pytest.approx(before - after, abs=4)
