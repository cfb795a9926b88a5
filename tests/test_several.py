"""Several goals for the same model and inputs: what they share is done once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import subprune
from subprune.errors import OptionError
from subprune.select.elimination import Elimination
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
    ],
)
def test_bad_lists_are_refused(options: Any, words: str) -> None:
    with pytest.raises(Exception, match=words):
        subprune.prune(model(), images(), **options, **QUIET)


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
