"""How many images a network classifies correctly."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from subprune.zoo.datasets import Images

__all__ = ["channels_last", "count_correct", "mode"]


@torch.no_grad()
def count_correct(model: nn.Module, images: Images, batch_size: int = 128) -> int:
    """How many images the model, in eval mode, classifies correctly: a count, so nothing is
    rounded.
    """
    correct = 0
    with mode(model, training=False), channels_last(model):
        for indices in torch.arange(len(images)).split(batch_size):
            correct += int(
                (model(images.inputs(indices)).argmax(1) == images.labels[indices]).sum()
            )
    return correct


@contextmanager
def channels_last(model: nn.Module, wanted: bool = True) -> Iterator[None]:
    """Weights in the memory layout that is faster on most CPUs, then in the usual one."""
    if not wanted:
        yield
        return
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    try:
        yield
    finally:
        model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]


@contextmanager
def mode(model: nn.Module, training: bool) -> Iterator[None]:
    """Train or eval mode; every module gets its own back."""
    before = {module: module.training for module in model.modules()}
    model.train(training)
    try:
        yield
    finally:
        for module, was in before.items():
            module.training = was
