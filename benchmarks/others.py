"""Torch-Pruning on the same network at the same number of parameters: time, and accuracy before
fine-tuning.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import torch
from machine import timed
from torch import nn
from workloads import IMAGES, Place, paper_layers

import subprune
from subprune.data.batches import batches
from subprune.measure.measurements import count_parameters
from subprune.statistics.batchnorm import recalibrate
from subprune.zoo.correct import count_correct
from subprune.zoo.datasets import load

# what the committed rows named "default" were made with
PLAIN: dict[str, Any] = {"method": "asym-in-change", "ridge": 0, "allocate": "knapsack"}


def compare(place: Place, compression: float = 2.0) -> list[dict[str, Any]]:
    """ResNet56 by both, inside residual branches only; needs the data and the trained network."""
    if place.data is None or place.models is None:
        return []
    test = load("cifar10", "test", place.data)
    train = load("cifar10", "train", place.data)
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(42))[:IMAGES]
    images, labels = train.inputs(order), train.labels[order].long()
    model = place.network("resnet56")
    size = count_parameters(model)
    found = [_row("dense", 0.0, model, test, size)]
    only = paper_layers("resnet56", model)
    for name, options in {
        "subprune, default": {},
        "subprune, plain fit and knapsack": PLAIN,
        "subprune, plain fit and knapsack, BatchNorm re-estimated": {
            **PLAIN,
            "batchnorm": "recalibrate",
        },
        "subprune, layer-weight-norm without reweighting": {
            "method": "layer-weight-norm",
            "fit": "keep",
        },
        "subprune, layer-weight-norm without reweighting, BatchNorm re-estimated": {
            "method": "layer-weight-norm",
            "fit": "keep",
            "batchnorm": "recalibrate",
        },
    }.items():
        run = lambda options=options: subprune.prune(  # noqa: E731  (bound in a loop)
            model,
            images,
            compression=compression,
            only=only,
            progress=False,
            time_calls=False,
            **options,
        )
        seconds, result = timed(run)
        found.append(_row(name, seconds, result.model, test, size))
    for name in ("MagnitudeImportance", "BNScaleImportance", "GroupTaylorImportance"):
        cut = functools.partial(_torch_pruning, model, only, name, images, labels)
        ratio = _ratio(cut, size / compression, name)
        seconds, small = timed(lambda cut=cut, ratio=ratio: cut(ratio))
        found.append(_row(f"Torch-Pruning, {name}", seconds, small, test, size))
        renewal, _ = timed(lambda small=small: recalibrate(small, batches(images, small, None)))
        found.append(
            _row(
                f"Torch-Pruning, {name}, BatchNorm re-estimated",
                seconds + renewal,
                small,
                test,
                size,
            )
        )
    return found


def _row(name: str, seconds: float, model: nn.Module, test: Any, size: int) -> dict[str, Any]:
    correct = count_correct(model, test)
    return {
        "method": name,
        "seconds": seconds,
        "top1": 100 * correct / len(test),
        "compression": size / count_parameters(model),
    }


def _torch_pruning(
    model: nn.Module,
    only: list[str],
    importance: str,
    images: torch.Tensor,
    labels: torch.Tensor,
    ratio: float,
) -> nn.Module:
    """A copy pruned globally at this ratio of channels."""
    import torch_pruning

    small = copy.deepcopy(model).eval()
    ignored = [
        m
        for n, m in small.named_modules()
        if isinstance(m, nn.Conv2d | nn.Linear) and n not in only
    ]
    rule = getattr(torch_pruning.importance, importance)()
    pruner = torch_pruning.pruner.BasePruner(
        small, images[:1], rule, global_pruning=True, pruning_ratio=ratio, ignored_layers=ignored
    )
    if importance == "GroupTaylorImportance":
        _gradients(small, images, labels)
    pruner.step()
    small.zero_grad(set_to_none=True)
    return small


def _ratio(cut: Callable[[float], nn.Module], goal: float, importance: str) -> float:
    """The smallest ratio, found by bisection and not timed, that meets the number of parameters."""
    low, high = 0.0, 1.0
    for _ in range(8):
        middle = (low + high) / 2
        low, high = (low, middle) if count_parameters(cut(middle)) <= goal else (middle, high)
    if high == 1:
        raise RuntimeError(f"Torch-Pruning with {importance} did not reach {goal:.0f} parameters")
    return high


def _gradients(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> None:
    """Gradients of the loss on the calibration images."""
    model.zero_grad()
    for x, y in zip(images.split(64), labels.split(64), strict=True):
        nn.functional.cross_entropy(model(x), y, reduction="sum").backward()
