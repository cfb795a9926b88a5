"""Training and fine-tuning as in the paper's appendix: recipes as data, one loop, a seed for
everything.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from subprune.errors import DataError, OptionError, closest
from subprune.zoo.correct import channels_last, mode
from subprune.zoo.datasets import Images
from subprune.zoo.models import build
from subprune_paper import compiled
from subprune_paper.augmentation import augment

__all__ = [
    "Epoch",
    "TrainingRecipe",
    "finetune_recipe",
    "fit",
    "recipe",
    "recipe_names",
    "train",
]


@dataclass(frozen=True)
class TrainingRecipe:
    """How to train a network.

    Attributes:
        model: name of the network, as `models.build` knows it.
        dataset: name of the data set, as `datasets.load` knows it.
        epochs: passes over the training images.
        batch_size: images per step; the last batch of an epoch may be smaller.
        optimizer: "sgd" (Nesterov momentum 0.9) or "adam" (β 0.9 and 0.99).
        learning_rate: at the start.
        weight_decay: added to the gradient, as in the paper's PyTorch optimisers.
        drops: epochs after which the learning rate is multiplied by 0.1.
        augmented: flip and crop at random.
        bfloat16: compute in bfloat16 where PyTorch's autocast deems it safe; weights stay float32.
        channels_last: memory layout that is faster on most CPUs; same mathematics.
        compiled: let a compiled loop train a LeNet with Adam, without augmentation and bfloat16,
            where the machine has a C compiler; same mathematics.
    """

    model: str
    dataset: str
    epochs: int
    batch_size: int = 128
    optimizer: str = "adam"
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    drops: tuple[int, ...] = ()
    augmented: bool = False
    bfloat16: bool = False
    channels_last: bool = False
    compiled: bool = True

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch_size < 1:
            raise OptionError(
                f"epochs is {self.epochs} and batch_size {self.batch_size}; "
                "both must be at least 1."
            )
        if self.optimizer not in ("sgd", "adam"):
            raise OptionError(f'optimizer is {self.optimizer!r}; allowed are "sgd" and "adam".')
        if not (
            math.isfinite(self.learning_rate) and self.learning_rate > 0 and self.weight_decay >= 0
        ):
            raise OptionError(
                f"learning_rate is {self.learning_rate} and weight_decay {self.weight_decay}; "
                "the first must be above 0 and the second at least 0."
            )

    def rate(self, epoch: int) -> float:
        """The learning rate in an epoch, counted from 1."""
        rate = self.learning_rate
        for _ in range(sum(drop < epoch for drop in self.drops)):
            rate *= 0.1
        return rate

    def shortened(self, epochs: int) -> TrainingRecipe:
        """The same recipe for another number of epochs, the drops moved in proportion."""
        drops = tuple(round(drop * epochs / self.epochs) for drop in self.drops)
        return dataclasses.replace(self, epochs=epochs, drops=drops)


@dataclass(frozen=True)
class Epoch:
    """What one epoch did: its number from 1, mean training loss, learning rate, seconds, and the
    loop that ran it.
    """

    number: int
    loss: float
    learning_rate: float
    seconds: float
    loop: str  # "pytorch" or "compiled"


_CIFAR = TrainingRecipe(
    "vgg11",
    "cifar10",
    epochs=200,
    weight_decay=5e-4,
    drops=(100, 150),
    augmented=True,
    channels_last=True,
)
_LENET = TrainingRecipe("lenet", "mnist", epochs=200, optimizer="sgd", channels_last=True)
_RESNETS = tuple(f"resnet{depth}{kind}" for depth in (20, 32, 44, 56, 110) for kind in ("", "-b"))
_RECIPES = {
    "lenet": _LENET,
    "vgg11": _CIFAR,
    **{name: dataclasses.replace(_CIFAR, model=name) for name in _RESNETS},
}


def recipe_names() -> list[str]:
    """The networks there is a recipe for."""
    return sorted(_RECIPES)


def recipe(name: str) -> TrainingRecipe:
    """The paper's recipe for training a network from scratch; its ResNets were given, so they use
    VGG11's.
    """
    if name not in _RECIPES:
        raise OptionError(
            f"there is no recipe for {name!r}; "
            f"{closest(name, _RECIPES)}allowed are {', '.join(recipe_names())}."
        )
    return _RECIPES[name]


def finetune_recipe(name: str) -> TrainingRecipe:
    """The paper's recipe for fine-tuning a pruned network: Adam, 10 epochs for LeNet, 20 for the
    others.
    """
    full = recipe(name)
    return dataclasses.replace(full.shortened(10 if name == "lenet" else 20), optimizer="adam")


def train(
    plan: TrainingRecipe, images: Images, seed: int, on_epoch: Callable[[Epoch], None] | None = None
) -> tuple[nn.Module, list[Epoch]]:
    """Initialise the recipe's network from `seed` and train it; it is returned in eval mode."""
    with _seeded(seed):
        model = build(plan.model)
    return model.eval(), fit(model, images, plan, seed, on_epoch)


def fit(
    model: nn.Module,
    images: Images,
    plan: TrainingRecipe,
    seed: int,
    on_epoch: Callable[[Epoch], None] | None = None,
) -> list[Epoch]:
    """Train `model` in place on all of `images`; modes, memory layout and global RNG are given
    back.

    Args:
        model: the network to train.
        images: the training images; use `Images.subset` for a part of them.
        plan: the recipe.
        seed: order of the images, augmentation and dropout.
        on_epoch: called after every epoch.
    """
    if not len(images):
        raise DataError("there are no images to train on; give at least one.")
    generator = torch.Generator().manual_seed(seed)
    history = []
    fast = compiled.trainer(model, images, plan) if plan.compiled else None
    loop = fast or _Loop(model, images, plan, generator)
    with (
        _seeded(seed + 1),
        mode(model, training=True),
        channels_last(model, plan.channels_last and not fast),
    ):
        for number in range(1, plan.epochs + 1):
            start, rate = time.perf_counter(), plan.rate(number)
            loss = loop.epoch(torch.randperm(len(images), generator=generator), rate)
            if not math.isfinite(loss):
                raise DataError(
                    f"the training loss became {loss} in epoch {number}; "
                    f"lower learning_rate ({rate:g})."
                )
            history.append(Epoch(number, loss, rate, time.perf_counter() - start, loop.name))
            if on_epoch is not None:
                on_epoch(history[-1])
    return history


class _Loop:
    """Training by PyTorch, any model."""

    name = "pytorch"

    def __init__(
        self, model: nn.Module, images: Images, plan: TrainingRecipe, generator: torch.Generator
    ) -> None:
        self.model, self.images, self.plan, self.generator = model, images, plan, generator
        self.optimizer = _optimizer(model, plan)

    def epoch(self, order: Tensor, rate: float) -> float:
        """One pass over the images in this order; returns the mean loss."""
        images, plan = self.images, self.plan
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        total = torch.zeros(())
        for indices in order.split(plan.batch_size):
            pixels = images.images[indices]
            inputs = _layout(
                images.normalise(augment(pixels, self.generator) if plan.augmented else pixels),
                plan,
            )
            self.optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=plan.bfloat16):
                loss = F.cross_entropy(self.model(inputs), images.labels[indices])
            loss.backward()
            self.optimizer.step()
            total += loss.detach().float() * len(indices)
        return float(total) / len(images)


def _layout(inputs: Tensor, plan: TrainingRecipe) -> Tensor:
    return inputs.contiguous(memory_format=torch.channels_last) if plan.channels_last else inputs


def _optimizer(model: nn.Module, plan: TrainingRecipe) -> torch.optim.Optimizer:
    rate, decay = plan.learning_rate, plan.weight_decay
    if plan.optimizer == "adam":
        return torch.optim.Adam(
            model.parameters(), rate, betas=(0.9, 0.99), weight_decay=decay, fused=True
        )
    return torch.optim.SGD(
        model.parameters(), rate, momentum=0.9, nesterov=True, weight_decay=decay, fused=True
    )


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """The global RNG started from `seed`, and given back as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
