"""What a caller controls: shares by name, several limits, streams, own functions, callbacks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import subprune
from subprune.errors import BudgetError, OptionError
from subprune.options.options import Options
from subprune.plan import GroupPlan


class Net(nn.Module):
    """Two stages of two layers each, and a head: groups of 16, 16, 24, 24 and 20 neurons."""

    def __init__(self) -> None:
        super().__init__()
        self.layer1 = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU())
        self.layer2 = nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU())
        self.fc = nn.Linear(24, 20)
        self.last = nn.Linear(20, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(torch.relu(self.fc(self.layer2(self.layer1(x)))))
        return out


class Residual(nn.Module):
    """A stream of 12 that two blocks of 16 neurons add to."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(6, 12)
        self.up, self.down = nn.Linear(12, 16), nn.Linear(16, 12)
        self.head = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        h = h + self.down(torch.relu(self.up(h)))
        out: Tensor = self.head(h)
        return out


@pytest.fixture
def data() -> Tensor:
    torch.manual_seed(0)
    return torch.randn(128, 6)


def counts(model: nn.Module, data: Tensor, **options: Any) -> dict[str, int]:
    return subprune.prune(model, data, progress=False, time_calls=False, **options).plan.counts


# ---- shares by name ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keep", "wanted"),
    [
        ({"layer1.*": 0.75, "fc": "50%"}, (12, 12, 24, 24, 10)),
        ({"layer1.*": 0.75, "fc": "50%", "*": 0.25}, (12, 12, 6, 6, 10)),
        ({"layer1": "75 %", "layer1.0": 0.5}, (8, 12, 24, 24, 20)),
        ({"neuron": "50%", "layer2.*": 1}, (8, 8, 24, 24, 10)),
        ("50%", (8, 8, 12, 12, 10)),
        (0.5, (8, 8, 12, 12, 10)),
    ],
)
def test_shares_by_name_wildcard_kind_and_default(
    data: Tensor, keep: Any, wanted: tuple[int, ...]
) -> None:
    found = counts(Net(), data, keep=keep)
    names = ("layer1.0", "layer1.2", "layer2.0", "layer2.2", "fc")
    assert found == dict(zip(names, wanted, strict=True))


@pytest.mark.parametrize(
    ("keep", "words"),
    [
        ({}, "must be a fraction, or a dict"),
        ({1: 0.5}, "must be a fraction, or a dict"),
        ({"fc": "half"}, "got 'half'"),
        ({"fc": "0%"}, "above 0"),
        ("150%", "at most 1"),
        ("half", "got 'half'"),
        (True, "got True"),
        ({"fc": [0.5]}, "above 0"),
        ([0], "above 0"),  # a list of goals
        ({"layer1.9": 0.5}, "did you mean"),
    ],
)
def test_shares_that_are_none_are_refused(data: Tensor, keep: Any, words: str) -> None:
    with pytest.raises(BudgetError, match=words):
        subprune.prune(Net(), data, keep=keep)


def test_a_percentage_is_kept_as_the_fraction_that_it_is() -> None:
    options = Options(keep="50%")
    assert options.keep == 0.5
    assert options.call(nn.Identity()) == "subprune.prune(model, data, keep=0.5)"


# ---- several limits ------------------------------------------------------------------------------


@pytest.mark.parametrize("allocate", ["balanced", "uniform", "knapsack", "error", "output"])
def test_several_limits_are_all_met(data: Tensor, allocate: Any) -> None:
    """On a convolution in front, FLOPs and parameters pull at different layers."""
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12 * 16, 24), nn.ReLU(),
        nn.Linear(24, 3),
    )  # fmt: skip
    images = torch.randn(64, 1, 6, 6)
    given = {"allocate": allocate, "progress": False, "time_calls": False}
    full = subprune.prune(model, images, keep=1.0, progress=False, time_calls=False).report
    alone = [
        subprune.prune(model, images, **goal, **given).report
        for goal in ({"params": "60%"}, {"flops": "45%"})
    ]
    both = subprune.prune(model, images, params="60%", flops="45%", **given).report
    assert both.parameters[1] <= 0.6 * full.parameters[0]
    assert both.flops[1] <= 0.45 * full.flops[0]
    # not needlessly small: nearly as large as the smaller of what each limit alone leaves
    assert both.parameters[1] > 0.75 * min(r.parameters[1] for r in alone)
    assert "params='60%', flops='45%'" in both.command


def test_a_limit_that_another_implies_changes_nothing(data: Tensor) -> None:
    model = Net()
    alone = counts(model, data, compression=2.5)
    assert counts(model, data, compression=2.5, params="90%", speedup=1.01) == alone


def test_latency_is_one_limit_among_others(data: Tensor) -> None:
    """A latency that is met anyway leaves what the other limit asks for."""
    model, limits = Net(), {"params": "50%", "round_to": 1}
    loose = subprune.prune(model, data, latency=1000.0, progress=False, **limits)
    assert loose.plan.counts == counts(model, data, **limits)
    assert loose.report.parameters[1] <= 0.5 * loose.report.parameters[0]
    assert any("goal met" in note for note in loose.report.notes)
    with pytest.raises(BudgetError, match=r"params=10 cannot be reached"):
        subprune.prune(Net(), data, params=10, latency=1000.0, progress=False)
    with pytest.raises(BudgetError, match=r"latency=1e-06 cannot be reached"):
        subprune.prune(Net(), data, params="50%", latency=1e-6, progress=False)


def test_a_limit_that_cannot_be_met_is_the_one_that_is_named(data: Tensor) -> None:
    with pytest.raises(BudgetError, match=r"speedup=100000 cannot be reached"):
        subprune.prune(Net(), data, params="50%", speedup=1e5)


@pytest.mark.parametrize("other", [{"keep": 0.5}, {"budgets": {"fc": 3}}])
def test_what_says_all_about_every_group_stands_alone(data: Tensor, other: Any) -> None:
    with pytest.raises(OptionError, match="keep and budgets stand alone; got params and"):
        subprune.prune(Net(), data, params="50%", **other)


# ---- streams -------------------------------------------------------------------------------------


def test_streams_are_pruned_where_asked_for(data: Tensor) -> None:
    torch.manual_seed(0)
    model = Residual()
    assert counts(model, data, keep=0.5) == {"up": 8}
    assert counts(model, data, keep=0.5, streams=True) == {"stem": 6, "up": 8}
    assert counts(model, data, keep=0.5, streams=True, ignore="stem") == {"up": 8}
    assert counts(model, data, keep={"*": 0.5, "stem": 0.75}) == {"stem": 9, "up": 8}
    small = subprune.prune(model, data, compression=2, streams=True, progress=False)
    assert small.model.stem.out_features < 12
    assert small.report.parameters[1] * 2 <= small.report.parameters[0]
    with torch.no_grad():
        assert small.model(data).shape == (128, 3)
    with pytest.raises(BudgetError, match=r"or with streams=True"):
        subprune.prune(model, data, keep=0.5, only="ste*")
    assert counts(model, data, keep=0.5, only="ste*", streams=True) == {"stem": 6}
    with pytest.raises(OptionError, match="streams=True has no effect"):
        subprune.prune(model, data, budgets={"up": 3}, streams=True)


# ---- a function as a method ----------------------------------------------------------------------


def last_first(view: subprune.View) -> list[int]:
    """The units from the last to the first."""
    return list(range(view.n_units))[::-1]


def test_a_function_is_a_method(data: Tensor) -> None:
    torch.manual_seed(0)
    result = subprune.prune(Net(), data, keep=0.5, method=last_first, progress=False)
    assert result.plan.kept["fc"] == tuple(range(10, 20))
    assert result.plan.method == "last_first"
    assert result.report.command == ("subprune.prune(model, data, keep=0.5, method=last_first)")
    assert result.plan.options["method"] == "last_first"
    assert "last_first" not in subprune.METHODS
    limited = subprune.prune(Net(), data, params="50%", method=last_first, progress=False)
    assert limited.report.parameters[1] <= 0.5 * limited.report.parameters[0]


def test_a_function_without_a_name_and_a_method_as_an_object(data: Tensor) -> None:
    model = Net()
    unnamed = subprune.prune(
        model, data, keep=0.5, method=lambda view: list(range(view.n_units)), progress=False
    )
    assert unnamed.plan.kept["fc"] == tuple(range(10))
    assert "method=method" in unnamed.report.command
    row = subprune.METHODS["layer-in-change"]
    named = counts(model, data, keep=0.5, method="layer-in-change")
    assert counts(model, data, keep=0.5, method=row) == named
    assert "method='layer-in-change'" in Options(keep=0.5, method=row).call(model)


@pytest.mark.parametrize("wrong", [3, None, Net, ["auto"]])
def test_what_is_no_method_is_refused(data: Tensor, wrong: Any) -> None:
    with pytest.raises(OptionError, match="a function that ranks units"):
        subprune.prune(Net(), data, keep=0.5, method=wrong)


def test_functions_that_cannot_be_called_are_refused_before_the_work(data: Tensor) -> None:
    for options, words in (
        ({"method": lambda: [0]}, "method must be a function that takes one argument, a subp"),
        ({"method": lambda view, more: [0]}, "method must be a function that takes one argument"),
        ({"callback": lambda: None}, "callback must be a function that takes one argument"),
    ):
        with pytest.raises(OptionError, match=words):
            subprune.forecast(Net(), data, keep=0.5, **options)
    with pytest.raises(OptionError, match="finetune must be a function that takes one argument"):
        subprune.prune_in_rounds(Net(), data, lambda model, epochs: None, compression=2)
    with pytest.raises(OptionError, match="'sided' must be a function of a View"):
        subprune.method("sided")(lambda: [0])  # type: ignore[arg-type,misc]
    callback = print  # built in; takes any number
    assert counts(Net(), data, keep=0.5, callback=callback)["fc"] == 10


def test_a_function_that_does_not_rank_is_refused_and_loses_nothing(data: Tensor) -> None:
    model = Net()
    before = {name: x.clone() for name, x in model.state_dict().items()}
    with pytest.raises(OptionError, match="different numbers from 0 to"):
        subprune.prune(model, data, keep=0.5, method=lambda view: [0, 0, 1])
    for scores in (torch.rand, lambda n: [i / n for i in range(n)], lambda n: [float("inf")] * n):
        with pytest.raises(
            OptionError, match=r"numbers of its units, best first, got (frac|an ob)"
        ):
            subprune.prune(model, data, keep=0.5, method=lambda view, of=scores: of(view.n_units))
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())


# ---- callbacks -----------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["auto", "layer-in-change"])
def test_a_callback_is_told_every_decision_in_order(data: Tensor, method: str) -> None:
    torch.manual_seed(0)
    told: list[GroupPlan] = []
    result = subprune.prune(
        Net(), data, keep=0.5, method=method, callback=told.append, progress=False
    )
    assert tuple(told) == result.plan.groups
    assert "callback" not in result.report.command


class Stop(Exception):
    pass


@pytest.mark.parametrize("method", ["auto", "layer-in-change"])
def test_a_callback_can_stop_the_work(data: Tensor, method: str) -> None:
    """Its own error comes out, nothing more is decided, and the model is as it was."""
    torch.manual_seed(0)
    model = Net()
    model.train()
    before = {name: x.clone() for name, x in model.state_dict().items()}
    told: list[str] = []

    def stop(group: GroupPlan) -> None:
        told.append(group.name)
        if len(told) == 2:
            raise Stop

    with pytest.raises(Stop):
        subprune.prune(model, data, keep=0.5, method=method, callback=stop, progress=False)
    assert told == ["layer1.0", "layer1.2"]
    assert model.training
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    assert counts(model, data, keep=0.5)["fc"] == 10


def test_a_callback_is_a_function(data: Tensor) -> None:
    with pytest.raises(OptionError, match="callback must be a function"):
        subprune.prune(Net(), data, keep=0.5, callback=3)
