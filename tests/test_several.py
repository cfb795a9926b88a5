"""Several goals for the same model and inputs: what they share is done once."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rank_jobs import job
from torch import Tensor, nn

import subprune
from subprune.budget.demand import Demand
from subprune.errors import OptionError
from subprune.methods import of_function
from subprune.select.elimination import Elimination
from subprune.select.selector import Ranking, Selector
from subprune.statistics.calibration import Calibration

QUIET: dict[str, Any] = {"progress": False, "time_calls": False}


def model() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 6, 3), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(96, 5)).eval()


def images(count: int = 64) -> Tensor:
    return torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def same(a: subprune.Result, b: subprune.Result) -> bool:
    """Whether two results are the same to the last bit."""
    pairs = zip(a.model.state_dict().items(), b.model.state_dict().items(), strict=True)
    equal = all(n == m and torch.equal(x, y) for (n, x), (m, y) in pairs)
    return equal and a.plan.options == b.plan.options and a.report.notes == b.report.notes


@pytest.mark.parametrize("method", ["auto", "asym-in-change", "layer-in-change", "layer-sampling"])
def test_a_list_of_goals_gives_what_each_goal_gives(method: str) -> None:
    net, x = model(), images()
    each = [subprune.prune(net, x, compression=c, method=method, **QUIET) for c in (1.5, 3)]
    both = subprune.prune(net, x, compression=[1.5, 3], method=method, **QUIET)
    assert [same(a, b) for a, b in zip(each, both, strict=True)] == [True, True]


@pytest.mark.parametrize(
    ("goal", "values"),
    [("keep", [0.5, {"0": 0.25}]), ("params", ["50%", 900.0]), ("budgets", [{"0": 3}, {"3": 2}])],
)
def test_every_goal_may_be_a_list(goal: str, values: list[Any]) -> None:
    net, x = model(), images()
    each = [subprune.prune(net, x, **{goal: v}, **QUIET) for v in values]
    both: Any = subprune.prune(net, x, **{goal: values}, **QUIET)
    assert [same(a, b) for a, b in zip(each, both, strict=True)] == [True, True]


def test_other_options_are_another_call() -> None:
    """What does not depend on them is shared, and nothing else."""
    net, x = model(), images()
    ready = subprune.calibrate(net, x, **QUIET)
    asked: list[dict[str, Any]] = [
        {"compression": 2},
        {"compression": 2, "method": "seq-in-change"},
        {"compression": 2, "only": ["0"]},
        {"compression": 2, "augment": "mirror"},
        {"compression": 2, "folds": 2},
        {"compression": 2, "round_to": 2},
        {"speedup": 2, "allocate": "balanced"},
        {"compression": 2},
    ]
    for options in asked:
        by_itself = subprune.prune(net, x, **options, **QUIET)
        assert same(subprune.prune(net, ready, **options, **QUIET), by_itself), options


def test_a_group_that_is_refused_for_one_goal_is_there_for_the_next() -> None:
    """The structure of a call is its own."""
    net, x = model(), images()
    ready = subprune.calibrate(net, x, **QUIET)
    before = dict(subprune.prune(net, ready, keep=0.5, **QUIET).report.refused)
    subprune.prune(net, ready, keep={"0": 0.5}, **QUIET)
    after = subprune.prune(net, ready, keep=0.5, **QUIET)
    assert dict(after.report.refused) == before
    assert len(after.plan.groups) == 2


def test_a_second_goal_records_and_measures_nothing_again(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = model(), images()
    recorded, eliminated = [], []
    of, init = Calibration.of.__func__, Elimination.__init__  # type: ignore[attr-defined]

    def recording(cls: Any, *args: Any, **more: Any) -> Any:
        recorded.append(1)
        return of(cls, *args, **more)

    def eliminating(self: Any, *args: Any, **more: Any) -> None:
        eliminated.append(1)
        init(self, *args, **more)

    monkeypatch.setattr(Calibration, "of", classmethod(recording))
    monkeypatch.setattr(Elimination, "__init__", eliminating)
    ready = subprune.calibrate(net, x, **QUIET)
    assert len(recorded) == 1
    curves = len(eliminated)
    assert curves >= 2  # of both groups
    subprune.forecast(net, ready, compression=2, **QUIET)
    assert (len(recorded), len(eliminated)) == (1, curves)
    subprune.prune(net, ready, compression=2, **QUIET)
    walk = len(eliminated) - curves
    subprune.prune(net, ready, compression=4, **QUIET)
    assert (len(recorded), len(eliminated)) == (1, curves + 2 * walk)


def test_an_iterator_is_read_once() -> None:
    net = model()

    def stream() -> Iterator[Tensor]:
        yield from images().split(16)

    both = subprune.prune(net, stream(), compression=[1.5, 3], **QUIET)
    by_itself = subprune.prune(net, stream(), compression=3, **QUIET)
    assert same(both[1], by_itself)


def two_goals(rank: int) -> int:
    """The first rank's data ends in an error, when the other has read its own."""

    def broken() -> Iterator[Tensor]:
        time.sleep(1)
        yield from ()
        raise ValueError("no more data")

    data = images() if rank else broken()
    return len(subprune.prune(model(), data, compression=[1.5, 3], **QUIET))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="ranks are forked")
def test_a_rank_that_cannot_read_its_data_ends_the_call_of_all(tmp_path: Path) -> None:
    began = time.monotonic()
    first, other = job(2, two_goals, tmp_path)
    assert "no more data" in str(first.error)
    assert "rank 0 of the job has ended the call" in str(other.error)
    assert time.monotonic() - began < 60  # and not when joining takes too long


def test_what_was_settled_stays() -> None:
    """The inputs were drawn by calibrate; another seed would ask for others."""
    net = model()
    ready = subprune.calibrate(net, images(), n_samples=32, seed=3, **QUIET)
    assert repr(ready) == "32 inputs, calibrated for Sequential"
    made = subprune.prune(net, ready, compression=2, **QUIET)
    assert same(made, subprune.prune(net, images(), compression=2, n_samples=32, seed=3, **QUIET))
    with pytest.raises(OptionError, match="seed was settled by calibrate, 3; got 4"):
        subprune.prune(net, ready, compression=2, seed=4)


def test_another_model_and_other_weights_are_refused() -> None:
    net, x = model(), images()
    ready = subprune.calibrate(net, x, **QUIET)
    with pytest.raises(OptionError, match="calibrated for another Sequential"):
        subprune.prune(model(), ready, compression=2)
    with torch.no_grad():
        next(net.parameters()).mul_(1.5)
    with pytest.raises(OptionError, match="weights have changed since"):
        subprune.prune(net, ready, compression=2)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"compression": []}, "not an empty one; got lists for compression"),
        ({"compression": [2, 3], "speedup": [2]}, "got lists for compression and speedup"),
        ({"compression": [2], "kep": 1}, "unknown option 'kep'"),
        ({"compression": [0.5]}, "ratio of at least 1"),
        ({"compression": [2, 0.5]}, "ratio of at least 1"),
        ({"keep": [0.5, 0.3], "of": "blocks"}, "has no effect with keep"),
    ],
)
def test_bad_lists_are_refused_before_any_work(options: Any, words: str) -> None:
    seen: list[Any] = []
    with pytest.raises(Exception, match=words):
        subprune.prune(model(), images(), **options, callback=seen.append, **QUIET)
    assert not seen


def test_what_can_be_read_once_serves_all_goals() -> None:
    both = subprune.prune(
        model(), images(), compression=[1.5, 1.7], only=(name for name in ["0"]), **QUIET
    )
    assert [list(result.plan.counts) for result in both] == [["0"], ["0"]]


@pytest.mark.parametrize("goal", [{"keep": [0.5]}, {"keep": [{"0": 0.5}]}, {"budgets": [{"0": 5}]}])
def test_a_list_needs_nothing_that_its_goals_do_not_need(goal: dict[str, Any]) -> None:
    """Budgets that the goal says itself are not looked for: there are no labels to do so with."""

    def rank(view: subprune.View) -> list[int]:
        return list(range(view.n_units))

    method = of_function(rank, allocate="equal-accuracy")
    net, x = model(), images()
    [result] = subprune.prune(net, x, method=method, **goal, **QUIET)
    single: Any = {name: values[0] for name, values in goal.items()}
    assert same(result, subprune.prune(net, x, method=method, **single, **QUIET))


class Loud(Selector):
    """By numbers of its own, which its class does not compare."""

    name = "loud"
    needs_statistics = False
    comparable = True
    first: Any

    def __init__(self, first: Any) -> None:
        object.__setattr__(self, "first", first)

    def rank(self, view: subprune.View) -> Ranking:
        height = float(torch.as_tensor(self.first).max()) if view.group.name == "0" else 1.0
        scores = height * torch.arange(1.0, view.n_units + 1, dtype=torch.float64)
        return Ranking(tuple(reversed(range(view.n_units))), scores)


@dataclass(frozen=True)
class Heights(Loud):
    """By a tensor, which cannot be compared with ``==``."""

    first: Tensor


@pytest.mark.parametrize(
    ("one", "other"),
    [(Loud(100), Loud(0.01)), (Heights(torch.ones(2) * 100), Heights(torch.ones(2) / 100))],
)
def test_selectors_of_another_s_class_are_not_taken_for_each_other(one: Loud, other: Loud) -> None:
    net, x = model(), images()
    ready = subprune.calibrate(net, x, selector=one, allocate="score", **QUIET)
    for selector in (one, other, one):
        asked: dict[str, Any] = {"compression": 2, "selector": selector, "allocate": "score"}
        by_itself = subprune.prune(net, x, **asked, **QUIET)
        assert subprune.prune(net, ready, **asked, **QUIET).plan.counts == by_itself.plan.counts


def test_a_function_whose_values_have_changed_is_another() -> None:
    heights = [100.0]

    def rank(view: subprune.View) -> Ranking:
        return Loud(heights[0]).rank(view)

    net, x = model(), images()
    asked: dict[str, Any] = {"method": rank, "allocate": "score", **QUIET}
    ready = subprune.calibrate(net, x, **asked)
    before = subprune.prune(net, ready, compression=2, **asked).plan.counts
    heights[0] = 0.01
    after = subprune.prune(net, ready, compression=2, **asked).plan.counts
    assert before != after == subprune.prune(net, x, compression=2, **asked).plan.counts


def test_keys_are_compared_whatever_is_in_them() -> None:
    net = model()
    ready = subprune.calibrate(net, images(), only=["0", "3"], **QUIET)
    with pytest.raises(OptionError, match="of type ndarray"):
        subprune.prune(net, ready, compression=2, only=[np.array(["0", "3"])] * 2, **QUIET)


def test_a_look_at_fewer_groups_is_not_one_at_all() -> None:
    """As after a checkpoint: budgets come from there, and a group cannot be cut."""
    net, seen = model(), []

    def keep(demand: Demand, *args: Any, **more: Any) -> dict[str, int]:
        seen.append(demand)
        return counts(demand)

    counts, ready = Demand.counts, subprune.calibrate(net, images(), **QUIET)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Demand, "counts", keep)
        subprune.prune(net, ready, compression=2, **QUIET)
    whole = seen[0]
    assert whole.without(["0"]).remember("names", lambda: ["3"]) == ["3"]
    assert whole.remember("names", lambda: ["0", "3"]) == ["0", "3"]


def test_other_data_is_read_once_for_other_options_too() -> None:
    net, x = model(), images()
    verify = iter([(x[:20], torch.arange(20) % 5)])
    ready = subprune.calibrate(net, x, verify_data=verify, **QUIET)
    asked: dict[str, Any] = {"compression": 2, "verify_data": verify, **QUIET}
    every = [subprune.prune(net, ready, folds=folds, **asked) for folds in (4, 2)]
    assert all(result.report.verified is not None for result in every)


class Scaled(nn.Module):
    """Scales its inputs by a buffer that is not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.net = model()
        self.register_buffer("scale", torch.ones(3, 1, 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        scaled: Tensor = self.net(x * self.get_buffer("scale"))
        return scaled


def test_whatever_has_changed_meanwhile_is_refused() -> None:
    """Buffers that are not saved, layers without weights, inputs and labels in place."""
    scaled, net, x = Scaled().eval(), model(), images()
    labels = torch.arange(len(x)) % 5
    of_scaled = subprune.calibrate(scaled, x, **QUIET)
    scaled.get_buffer("scale").mul_(2)
    with pytest.raises(OptionError, match="model or its weights have changed since"):
        subprune.prune(scaled, of_scaled, compression=2)
    ready = subprune.calibrate(net, (x, labels), **QUIET)
    labels[0] = 4
    with pytest.raises(OptionError, match="inputs have changed since"):
        subprune.prune(net, ready, compression=2)
    labels[0] = 0
    x[0, 0, 0, 0] += 1
    with pytest.raises(OptionError, match="inputs have changed since"):
        subprune.prune(net, ready, compression=2)
    x[0, 0, 0, 0] = images()[0, 0, 0, 0]
    subprune.prune(net, ready, compression=2, **QUIET)
    setattr(net, "2", nn.Tanh())
    with pytest.raises(OptionError, match="model or its weights have changed since"):
        subprune.prune(net, ready, compression=2)


def test_calibrate_takes_no_goal() -> None:
    net = model()
    with pytest.raises(OptionError, match="calibrate comes before the goal: give compression to"):
        subprune.calibrate(net, images(), compression=2)
    ready = subprune.calibrate(net, images(), **QUIET)
    with pytest.raises(OptionError, match="calibrated already"):
        subprune.calibrate(net, ready)


def test_calibrated_inputs_are_data_elsewhere_too() -> None:
    net = model()
    ready = subprune.calibrate(net, images(), **QUIET)
    result = subprune.prune(net, ready, compression=2, **QUIET)
    again = subprune.recover(result, ready, steps=2, progress=False)
    assert again.recovery is not None
    assert subprune.evaluate(result.model, ready, dense=net).inputs == 64
    labelled = subprune.calibrate(net, (images(), torch.arange(64) % 5), **QUIET)
    assert subprune.evaluate(model().double(), labelled).inputs == 64  # in its own precision
    with pytest.raises(OptionError, match="every round prunes another"):
        subprune.prune_in_rounds(net, ready, lambda m: None, compression=2)
