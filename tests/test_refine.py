"""Gauss–Newton steps on the layers that make the units."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from zoo import ZOO

import subprune
from subprune.data.batches import batches
from subprune.errors import OptionError
from subprune.loop import refine as module
from subprune.loop.tour import Tour
from subprune.select.selector import Setting
from subprune.statistics.calibration import Calibration
from subprune.statistics.residual import Residual

QUIET: dict[str, Any] = {"progress": False, "time_calls": False}


class Block(nn.Module):
    """A residual branch between a stem and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.first, self.norm1 = nn.Conv2d(6, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12)
        self.second, self.norm2 = nn.Conv2d(12, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)
        self.head = nn.Linear(6, 4)
        for norm in (self.norm1, self.norm2):
            norm.running_mean.uniform_(-0.2, 0.2)
            norm.running_var.uniform_(0.5, 1.5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        x = torch.relu(x + self.norm2(self.second(torch.relu(self.norm1(self.first(x))))))
        return self.head(x.mean((2, 3)))


def block() -> nn.Module:
    torch.manual_seed(0)
    return Block().double().eval()


def images(count: int, seed: int = 1) -> Tensor:
    """Neighbouring pixels alike, as in pictures: then there is something to learn."""
    made = torch.randn(count, 3, 4, 4, generator=torch.Generator().manual_seed(seed))
    return F.interpolate(made.double(), scale_factor=2, mode="bilinear")


def change(before: nn.Module, after: nn.Module, x: Tensor) -> float:
    with torch.no_grad():
        y = before(x)
        return float((y - after(x)).square().sum() / y.var(0, unbiased=False).sum() / len(y))


def test_steps_lessen_the_error_on_inputs_that_nothing_saw() -> None:
    model, x, fresh = block(), images(256), images(500, seed=7)
    plain, refined = (
        subprune.prune(model, x, budgets={"first": 4}, refine=steps, folds=8, **QUIET)
        for steps in (0, 4)
    )
    assert plain.plan.kept == refined.plan.kept
    assert change(model, refined.model, fresh) < 0.9 * change(model, plain.model, fresh)
    small: Any = refined.model
    assert not torch.equal(small.first.weight, model.first.weight[list(refined.plan.kept["first"])])


def test_the_report_speaks_of_the_fold_that_had_no_say() -> None:
    result = subprune.prune(block(), images(256), budgets={"first": 4}, refine=2, **QUIET)
    assert result.report.held_out is not None
    assert result.report.held_out.inputs == 256 // 8
    assert result.report.fitted.inputs == 256
    steps = result.plan.groups[0].steps
    assert 1 <= steps <= 2
    assert f"refined: {steps} steps were kept, in 1 of 1 groups" in result.report.notes


@pytest.mark.parametrize("folds", [2, 3])
def test_with_few_folds_too_the_first_has_no_say(
    folds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[int] = set()
    batches = module._Block.batches

    def watched(self: Any, wanted: Any) -> list[int]:
        seen.update(wanted)
        return batches(self, wanted)

    monkeypatch.setattr(module._Block, "batches", watched)
    subprune.prune(block(), images(64), budgets={"first": 4}, refine=2, folds=folds, **QUIET)
    assert seen == set(range(1, folds))


def test_a_target_without_the_metric_is_refined_without_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    metrics: list[Any] = []
    refine = module.refine

    def watched(place: Any, *args: Any) -> int:
        metrics.append(place.metric)
        return refine(place, *args)

    monkeypatch.setattr("subprune.loop.walk.refine", watched)
    for metric in (True, False):
        how = {"target": Residual(metric=metric), "allocate": "output"}
        subprune.prune(block(), images(64), compression=1.2, refine=1, **how, **QUIET)
    assert metrics[0]
    assert metrics[-1] is None


def test_a_fold_that_has_no_say_changes_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The batches that steps are made from and judged on are those of other folds."""
    seen: set[int] = set()
    landed = module._Block.landed

    def watched(self: Any, batch: int, *args: Any, **kwargs: Any) -> Any:
        seen.add(self.folds[batch])
        return landed(self, batch, *args, **kwargs)

    monkeypatch.setattr(module._Block, "landed", watched)
    subprune.prune(block(), images(64), budgets={"first": 4}, refine=3, folds=4, **QUIET)
    assert seen == {1, 2, 3}


def test_a_step_is_the_damped_product_of_three_matrices() -> None:
    """Two linear layers, nothing between them: against explicit matrices."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3)).double()
    x = torch.randn(60, 5, dtype=torch.float64)
    calibration = Calibration.of(model, batches(x, model))
    group = calibration.structure["0"]
    tour = Tour(Setting(calibration, (group,)), [group], pruned=True, mark_all=True)
    place = tour.go_to(group)
    assert place.start is not None
    gathered = Residual(metric=False).gather(place)
    shape = model[1].weight.shape
    tensors = {**place.current.tensors, "1.weight": model[1].weight.detach() + torch.ones(shape)}
    layers = module.makers(calibration.structure, group)
    inner = module._Block(place, place.start, gathered.aims)
    inverses = [module._inverse(layer, place.start, range(len(inner.folds))) for layer in layers]
    steps = module._steps(inner, tensors, layers, inverses, range(7), range(len(inner.folds)))
    wide = np.concatenate([x.numpy(), np.ones((60, 1))], 1)
    second = tensors["1.weight"].numpy()
    hidden = model[0](x).detach().numpy()
    wrong = (model(x).detach().numpy() - model[1].bias.detach().numpy()) - hidden @ second.T
    gram = wide.T @ wide
    gram += module._INPUT_DAMPING * np.diag(np.diag(gram))
    pull = second.T @ second
    pull += module._UNIT_DAMPING * np.diag(pull).mean() * np.eye(7)
    expected = np.linalg.solve(pull, (wrong @ second).T @ wide @ np.linalg.inv(gram))
    np.testing.assert_allclose(steps["0.weight"], expected[:, :-1], rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(steps["0.bias"], expected[:, -1], rtol=1e-6, atol=1e-9)


def makers(model: nn.Module, x: Tensor) -> dict[str, list[str]]:
    """By group: the layers that steps are taken on."""
    structure = subprune.find_groups(model.eval(), x)
    return {g.name: [m.name for m in module.makers(structure, g)] for g in structure.groups}


class Chain(nn.Module):
    """Both `second` and `last` read the units of `first`; so does `last` what `second` gave."""

    def __init__(self, joined: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 5, 3, padding=1)
        self.last, self.joined = nn.Conv2d(11 if joined else 6, 4, 3, padding=1), joined

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        y = torch.relu(self.second(x))
        if self.joined:
            return self.last(torch.cat([x, y], 1))
        return torch.cat([self.last(x), y], 1)


def test_units_whose_readers_read_one_another_are_left() -> None:
    """What is wrong at the later reader is the earlier one's doing as well."""
    x = torch.zeros(2, 3, 8, 8)
    assert makers(Chain(joined=True), x)["first"] == []
    assert makers(Chain(joined=True), x)["second"] == ["second"]
    assert makers(Chain(joined=False), x)["first"] == ["first"]


@pytest.mark.parametrize(
    "name", ["resnet20-B", "bottleneck", "resnext", "mobilenet-v3", "densenet", "convnext", "lenet"]
)
def test_networks_of_all_kinds_are_refined_or_left(name: str) -> None:
    """Cut equals mask is checked inside."""
    model, example = ZOO[name].build()
    result = subprune.prune(model, [example] * 4, keep=0.5, refine=2, **QUIET)
    assert result.plan.groups


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"refine": -1}, "refine"),
        ({"refine": 2, "method": "asym-in-change"}, "residual"),
        ({"refine": 2, "fit": "keep"}, "fits nothing"),
    ],
)
def test_what_cannot_be_refined_is_refused(options: Any, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        subprune.prune(block(), images(16), keep=0.5, **options, **QUIET)
