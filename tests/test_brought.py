"""What the report says each part brought."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import subprune
from subprune.plan import FITTED, MOVED, REFINED, UNFITTED, GroupPlan, Plan
from subprune.report.brought import errors_by_stage, parts_used
from subprune.report.figures import Report


def network() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 10), nn.ReLU(), nn.Linear(10, 3)]
    return nn.Sequential(*layers).double().eval()


def inputs() -> torch.Tensor:
    return torch.randn(64, 6, generator=torch.Generator().manual_seed(1)).double()


def pruned(**options: object) -> subprune.Result:
    return subprune.prune(
        network(), inputs(), budgets={"0": 5}, progress=False, time_calls=False, **options
    )


@torch.no_grad()
def test_the_first_stage_is_the_error_of_the_old_weights() -> None:
    model, x = network(), inputs()
    result = pruned(method="asym-in-change", ridge=0.0)
    (group,) = result.plan.groups
    hidden, weight, kept = model[:2](x), model[2].weight, list(group.kept)
    wanted = hidden @ weight.T
    rest = wanted - hidden[:, kept] @ weight[:, kept].T
    assert [stage for stage, _ in group.stages] == [UNFITTED, FITTED]
    assert group.stages[0][1] == pytest.approx(float(rest.square().sum() / wanted.square().sum()))
    assert group.stages[1][1] == pytest.approx(group.error)


def test_every_stage_of_the_default_is_named_and_helps() -> None:
    result = pruned(refine=2)
    (group,) = result.plan.groups
    names = [stage for stage, _ in group.stages]
    assert names[:3] == [UNFITTED, FITTED, MOVED]
    assert set(names[3:]) <= {REFINED}
    errors = dict(group.stages)
    assert errors[FITTED] < errors[UNFITTED]
    assert errors[names[-1]] == pytest.approx(group.held_out)
    assert list(result.plan.refitted) == ["4"]  # it lost no input, but reads what changed
    text = str(result.report)
    assert "1 layer that read what was cut" in text
    assert "1 layer that lost no input" in text
    page = result.report.to_html()
    assert "What each part brought" in page
    assert "target residual, selector greedy, fit affine" in page
    assert Report.from_json(result.report.to_json()).plan.refitted.keys() == {"4"}


def test_a_layer_that_a_stage_left_alone_keeps_its_error() -> None:
    def group(name: str, *errors: tuple[str, float]) -> GroupPlan:
        return GroupPlan(
            name=name, kind="neuron", units=4, kept=(0,), consumers=(), stages=errors, steps=1
        )

    moved = group("a", (UNFITTED, 0.4), (FITTED, 0.2), (MOVED, 0.1))
    still = group("b", (UNFITTED, 0.8), (FITTED, 0.4))
    whole = GroupPlan(name="c", kind="neuron", units=4, kept=(0, 1, 2, 3), consumers=())
    plan = Plan(method="auto", options={}, used={"fit": "affine"}, groups=(moved, still, whole))
    (course,) = errors_by_stage(plan)
    assert course.what.startswith("2 layers that")
    assert [error for _, error in course.errors] == pytest.approx([0.6, 0.3, 0.25])
    assert str(course).startswith("60% weights as they were → 30% weights fitted → 25% targets")
    assert parts_used(plan) == "fit affine, 2 steps of refining"
