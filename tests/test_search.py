"""Budgets chosen by what pruned models answer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_budget import demand_of
from torch import Tensor, nn

import subprune
from subprune.budget.goal import Goal
from subprune.budget.mean import Shape, by_balance, even_share, usual_shape
from subprune.budget.search import Search, _clearly_less, _WalkTrial, divergences
from subprune.data.batches import batches
from subprune.errors import OptionError
from subprune.loop.looks import curves
from subprune.statistics.calibration import Calibration
from subprune.zoo.datasets import load
from subprune.zoo.models import shipped_lenet

QUIET: dict[str, Any] = {"progress": False, "time_calls": False}


def digits(count: int) -> Tensor:
    return load("mnist-sample", "train").inputs(torch.arange(count))


def test_divergence_is_the_mean_kl_of_the_answers() -> None:
    model = shipped_lenet()[0]
    judged = Calibration.of(model, batches(digits(24), model))
    wanted = judged.start().answers(lambda output: output)
    given = [x + torch.randn(x.shape, generator=torch.Generator().manual_seed(0)) for x in wanted]
    assert float(divergences(judged, wanted, wanted).abs().max()) == 0
    a, b = (torch.cat(list(x)).double().log_softmax(1) for x in (wanted, given))
    expected = F.kl_div(b, a, log_target=True, reduction="batchmean")
    mine = float(divergences(judged, wanted, given).mean())
    assert mine == pytest.approx(float(expected), rel=1e-6)


def test_divergence_of_numbers_is_relative() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1)), torch.randn(20, 6)
    judged = Calibration.of(model, batches(x, model))
    wanted = judged.start().answers(lambda output: output)
    mine = divergences(judged, wanted, [x * 1.5 for x in wanted])
    assert float(mine.mean()) == pytest.approx(0.25)


def test_budgets_that_clearly_answer_better_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[tuple[int, ...], Tensor] = {}
    judge = _WalkTrial.apart

    def watched(self: Any, demand: Any, counts: Any) -> Tensor:
        seen[tuple(counts.values())] = judge(self, demand, counts)
        return seen[tuple(counts.values())]

    monkeypatch.setattr(_WalkTrial, "apart", watched)
    model, images = shipped_lenet()[0], digits(192)
    result = subprune.prune(model, images, compression=8, allocate=Search(inputs=64), **QUIET)
    plain = subprune.prune(model, images, compression=8, allocate="output", **QUIET)
    assert 1 < len(seen) <= Search().walks
    start, chosen = tuple(plain.plan.counts.values()), tuple(result.plan.counts.values())
    assert next(iter(seen)) == start
    assert chosen == start or _clearly_less(seen[chosen], seen[start])
    assert result.report.compression >= 8


def test_chance_is_not_taken_for_better() -> None:
    old = torch.rand(200, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    noise = 0.5 * torch.randn(200, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    assert _clearly_less(old - 0.01, old)
    assert not _clearly_less(old, old)
    assert not _clearly_less(old - 0.01 + noise - noise.mean(), old)


def test_a_walk_sees_other_inputs_than_those_it_is_judged_on() -> None:
    model, images = shipped_lenet()[0], digits(96)
    calibration = Calibration.of(model, batches(images, model))
    trial = _WalkTrial(demand_of(calibration, "search", Goal(compression=2)), 32)
    fitted, judged = (
        {tuple(row.flatten().tolist()) for b in part.batches for row in b.inputs[0][0]}
        for part in (trial.setting.calibration, trial.judged)
    )
    assert len(fitted) == 32
    assert len(judged) == 64
    assert not fitted & judged


@pytest.mark.parametrize("options", [{"uniform": True}, {"round_to": 2}, {}])
def test_it_works_with_rounding_and_few_inputs(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU())
    model.append(nn.Linear(16, 4))
    result = subprune.prune(
        model, torch.randn(12, 8), compression=1.5, allocate=Search(walks=3), **options, **QUIET
    )
    assert result.report.compression >= 1.5


def test_shapes_lean_and_lie_between_the_extremes() -> None:
    model = shipped_lenet()[0]
    calibration = Calibration.of(model, batches(digits(64), model))
    demand = demand_of(calibration, "balanced", Goal(compression=4))
    orders = curves(demand.setting, demand.recipe)
    how = (demand.space, orders)
    even = even_share(demand.space)
    flat = by_balance(*how, Shape(mix=0.0))
    assert all(abs(flat[name] - k) <= max(2, 0.1 * k) for name, k in even.items())
    names = [g.name for g in demand.groups]
    early, late = (by_balance(*how, Shape(tilt=tilt)) for tilt in (-0.3, 0.3))
    assert early[names[0]] >= late[names[0]]
    assert early[names[-1]] <= late[names[-1]]
    assert early != late
    assert usual_shape(demand) == Shape(absolute=0.5)


@pytest.mark.parametrize("wrong", [{"walks": 0}, {"inputs": 1.5}, {"walks": True}])
def test_wrong_numbers_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=next(iter(wrong))):
        Search(**wrong)
