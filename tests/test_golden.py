"""Keep orders of LeNet and ResNet56, as they were before the four choices became objects.

golden_orders.json was made by the code of commit e56713b, in float64, by the calls below: for every
group the units that stay, in the order they were picked. Nothing may change them by accident.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
from shared import SHARED
from torch import Tensor, nn

import subprune
from subprune.methods import METHODS
from subprune.zoo.datasets import load
from subprune.zoo.models import build, shipped_lenet
from subprune.zoo.weights import load_weights

GOLDEN: dict[str, dict[str, list[int]]] = json.loads(
    (Path(__file__).parent / "golden_orders.json").read_text()
)
RULES = ("uniform", "error", "knapsack", "equal-accuracy", "equal-agreement")
YOUNGER = ("auto", "wanda-sp", "flap", "thinet", "chip")  # than the file
QUIET: dict[str, Any] = {"progress": False, "time_calls": False, "n_samples": None}


def lenet_calls() -> dict[str, dict[str, Any]]:
    """The options of every call, by its name in the file."""
    calls: dict[str, dict[str, Any]] = {}
    for name, method in METHODS.items():
        if name in YOUNGER:
            continue
        pool = {"train_data": digits(256, 512)} if method.selector.needs_pool else {}
        for fit in ("ridge", "keep"):
            calls[f"lenet {name} {fit}"] = {"method": name, "fit": fit, **pool}
    calls["lenet epsilon"] = {"epsilon": 0.2}
    calls["lenet least squares"] = {"ridge": 0}
    return {**calls, **{f"lenet {rule}": {"allocate": rule} for rule in RULES}}


@functools.cache
def digits(first: int, last: int) -> tuple[Tensor, Tensor]:
    train = load("mnist-sample", "train")
    return train.inputs()[first:last].double(), train.labels[first:last]


@functools.cache
def lenet() -> nn.Module:
    return shipped_lenet()[0].double()


@functools.cache
def resnet56() -> tuple[nn.Module, Tensor]:
    net = build("resnet56")
    load_weights(net, SHARED / "models" / "resnet56-cifar10.safetensors")
    images = load("cifar10", "train", SHARED / "data").inputs()[:24]
    return net.eval().double(), images.double()


def orders(result: subprune.Result) -> dict[str, list[int]]:
    return {g.name: list(g.order[: len(g.kept)]) for g in result.plan.groups}


@pytest.mark.parametrize("name", [name for name in GOLDEN if name.startswith("lenet")])
def test_lenet(name: str) -> None:
    options = lenet_calls()[name]
    how = {"method": "asym-in-change", **options}
    found = subprune.prune(lenet(), digits(0, 256), compression=4, **how, **QUIET)
    assert orders(found) == GOLDEN[name]


@pytest.mark.skipif(
    not (SHARED / "models" / "resnet56-cifar10.safetensors").exists(),
    reason="the weights of ResNet56 are not beside this repository",
)
@pytest.mark.parametrize("name", [name for name in GOLDEN if name.startswith("resnet56")])
def test_resnet56(name: str) -> None:
    model, images = resnet56()
    found = subprune.prune(model, images, compression=4, method=name.split()[1], **QUIET)
    assert orders(found) == GOLDEN[name]


def test_every_order_is_tested() -> None:
    own = {name for name in GOLDEN if name.startswith("lenet")}
    assert own == set(lenet_calls())
    assert len(GOLDEN) - len(own) == 3
