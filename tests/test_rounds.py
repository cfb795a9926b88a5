"""Pruning in rounds: the goal is met, training happens in between, and a break costs one step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import subprune
from subprune.errors import DataError, OptionError

QUIET = {"progress": False, "time_calls": False, "fit": "ridge", "method": "layer-in-change"}


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3)
    )


@pytest.fixture
def data() -> Tensor:
    torch.manual_seed(1)
    return torch.randn(96, 6)


class Trainer:
    """Adds one to the last bias, so that it can be seen how often it ran; may break off."""

    def __init__(self, fails_at: int = 0) -> None:
        self.calls, self.fails_at = 0, fails_at

    def __call__(self, model: nn.Module) -> None:
        self.calls += 1
        if self.calls == self.fails_at:
            raise KeyboardInterrupt
        with torch.no_grad():
            model[4].bias += 1.0  # type: ignore[index,operator]


def same(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))


def test_rounds_meet_the_goal_in_equal_steps(data: Tensor) -> None:
    model, train = net(), Trainer()
    before = [x.clone() for x in model.parameters()]
    done = subprune.prune_in_rounds(model, data, train, rounds=3, compression=6, **QUIET)
    assert train.calls == 3
    assert all(r.trained for r in done.rounds)
    assert done.parameters[0] == sum(x.numel() for x in before)
    assert done.parameters[1] == sum(x.numel() for x in done.model.parameters())
    assert done.parameters[1] * 6 <= done.parameters[0] < done.parameters[1] * 7
    ratios = [r.parameters[0] / r.parameters[1] for r in done.rounds]
    assert all(ratio == pytest.approx(6 ** (1 / 3), rel=0.05) for ratio in ratios)
    assert all(torch.equal(x, y) for x, y in zip(before, model.parameters(), strict=True))


def test_rounds_print_as_a_table(data: Tensor) -> None:
    done = subprune.prune_in_rounds(net(), data, Trainer(), rounds=2, compression=4, **QUIET)
    lines = str(done).splitlines()
    first, last = done.parameters
    assert lines[0] == f"{first:,} → {last:,} parameters ({first / last:.2f}×) in 2 rounds"
    for shown, each in zip(lines[-2:], done.rounds, strict=True):
        assert "{:,} → {:,}".format(*each.parameters) in shown
        assert "{:,} → {:,}".format(*each.flops) in shown


def test_several_limits_and_shares(data: Tensor) -> None:
    limits = {"params": "40%", "speedup": 3}
    done = subprune.prune_in_rounds(net(), data, Trainer(), rounds=2, **limits, **QUIET)
    assert done.parameters[1] <= 0.4 * done.parameters[0]
    assert done.flops[1] * 3 <= done.flops[0]


def test_a_break_anywhere_costs_one_step(data: Tensor, tmp_path: Path) -> None:
    """Stopped in the second training, and in the second pruning: both go on to the same model."""
    goal = {"rounds": 3, "compression": 5, **QUIET}
    whole = subprune.prune_in_rounds(net(), data, Trainer(), **goal)
    with pytest.raises(KeyboardInterrupt):
        subprune.prune_in_rounds(net(), data, Trainer(fails_at=2), folder=tmp_path, **goal)
    kept = json.loads((tmp_path / "rounds.json").read_text())["done"]
    assert [r["trained"] for r in kept] == [True, False]
    assert sorted(p.suffix for p in tmp_path.iterdir()) == [".json", *[".safetensors"] * 3]

    def stop(group: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        subprune.prune_in_rounds(net(), data, Trainer(), folder=tmp_path, callback=stop, **goal)
    last = Trainer()
    resumed = subprune.prune_in_rounds(net(), data, last, folder=tmp_path, **goal)
    assert (
        last.calls == 1
    )  # the second training was done before the callback stopped the third pruning
    assert same(resumed.model, whole.model)
    assert [r.parameters for r in resumed.rounds] == [r.parameters for r in whole.rounds]
    again = Trainer()
    finished = subprune.prune_in_rounds(net(), data, again, folder=tmp_path, **goal)
    assert again.calls == 0
    assert same(finished.model, whole.model)
    loaded = subprune.load(net(), tmp_path / "round-3-trained.safetensors")
    assert same(loaded, whole.model)


def test_a_folder_of_another_call_is_refused(data: Tensor, tmp_path: Path) -> None:
    goal = {"rounds": 1, "compression": 2, **QUIET}
    subprune.prune_in_rounds(net(), data, Trainer(), folder=tmp_path, **goal)
    other = net()
    with torch.no_grad():
        other[0].weight += 1  # type: ignore[index,operator]
    for words, model, change in [
        ("another goal", net(), {"compression": 3}),
        ("another rounds", net(), {"rounds": 2}),
        ("another options", net(), {"seed": 3}),
        ("another model", other, {}),
    ]:
        with pytest.raises(DataError, match=words):
            subprune.prune_in_rounds(model, data, Trainer(), folder=tmp_path, **{**goal, **change})
    (tmp_path / "rounds.json").write_text(
        '{"format": "subprune-rounds-1", "call": {}, "done": [3]}'
    )
    with pytest.raises(DataError, match="damaged or not a state"):
        subprune.prune_in_rounds(net(), data, Trainer(), folder=tmp_path, **goal)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rounds": 0, "compression": 2}, "rounds must be a whole number from 1"),
        ({"finetune": 3, "compression": 2}, "finetune must be a function"),
        ({"keep": 0.5}, "keep cannot be divided into steps"),
        ({"params": 100}, "must be a share such as 25%"),
        ({"compression": 2, "latency": 3}, "latency cannot be divided"),
        ({}, "give one goal"),
        ({"compression": 2, "data": iter(())}, "used up after one round"),
    ],
)
def test_what_cannot_be_done_in_rounds_is_refused(
    data: Tensor, change: dict[str, Any], words: str
) -> None:
    given: dict[str, Any] = {"data": data, "finetune": Trainer(), **change}
    with pytest.raises(OptionError, match=words):
        subprune.prune_in_rounds(net(), **given)


def test_a_file_is_no_folder(data: Tensor, tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.touch()
    with pytest.raises(OptionError, match=r"folder must be a folder, and '.*state' is a file"):
        subprune.prune_in_rounds(net(), data, Trainer(), compression=2, folder=folder)


def test_training_may_not_change_shapes(data: Tensor) -> None:
    def widen(model: nn.Module) -> None:
        model[4] = nn.Linear(40, 3)  # type: ignore[index,operator]

    with pytest.raises(DataError, match="it may only change their values"):
        subprune.prune_in_rounds(net(), data, widen, rounds=1, compression=2, **QUIET)


def test_a_model_that_training_gives_back_is_not_passed_over(data: Tensor) -> None:
    """What is given back and is not the model itself would be lost in silence."""
    with pytest.raises(DataError, match=r"another model.*train that one in place"):
        subprune.prune_in_rounds(net(), data, lambda _: net(), rounds=1, compression=2, **QUIET)
    done = subprune.prune_in_rounds(net(), data, lambda m: m, rounds=1, compression=2, **QUIET)
    assert done.parameters[1] * 2 <= done.parameters[0]
