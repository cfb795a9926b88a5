"""LeNet trained by the compiled loop equals PyTorch's own training, and everything else is trained
the ordinary way.
"""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from torch import nn

import subprune
from subprune.errors import DataError
from subprune.zoo.datasets import Images, load
from subprune.zoo.models import LeNet, shipped_lenet
from subprune_paper import compiled
from subprune_paper.training import TrainingRecipe, finetune_recipe, fit

PLAN = dataclasses.replace(finetune_recipe("lenet"), epochs=2, dataset="mnist-sample")
needs_compiler = pytest.mark.skipif(
    not compiled._compiler(), reason="there is no C compiler on this machine"
)


@pytest.fixture(scope="module")
def digits() -> Images:
    return load("mnist-sample", "train").subset(torch.arange(300))


def lenet(conv1: int, conv2: int, fc1: int, fc2: int, seed: int = 0) -> LeNet:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = LeNet()
        model.conv1, model.conv2 = nn.Conv2d(1, conv1, 3), nn.Conv2d(conv1, conv2, 3)
        model.fc1, model.fc2, model.fc3 = (
            nn.Linear(25 * conv2, fc1),
            nn.Linear(fc1, fc2),
            nn.Linear(fc2, 10),
        )
    return model


def both(
    model: LeNet, images: Images, plan: TrainingRecipe
) -> tuple[LeNet, LeNet, list[float], list[float]]:
    """The model trained by PyTorch and by the compiled loop, and their losses."""
    copies, losses = [], []
    for fast in (False, True):
        other = lenet(*(len(p) for p in list(model.parameters())[0:8:2]))
        other.load_state_dict(model.state_dict())
        history = fit(other, images, dataclasses.replace(plan, compiled=fast), seed=3)
        assert {epoch.loop for epoch in history} == {
            "compiled" if fast and compiled.available() else "pytorch"
        }
        copies.append(other)
        losses.append([epoch.loss for epoch in history])
    return copies[0], copies[1], losses[0], losses[1]


@needs_compiler
@pytest.mark.parametrize(
    "widths", [(6, 16, 120, 84), (5, 7, 9, 11), (4, 3, 18, 16), (1, 2, 3, 4), (1, 1, 1, 1)]
)
@pytest.mark.parametrize("change", [{}, {"batch_size": 37}, {"weight_decay": 0.01, "drops": (1,)}])
def test_it_is_the_same_training(
    widths: tuple[int, ...], change: dict[str, object], digits: Images
) -> None:
    plan = dataclasses.replace(PLAN, **change)  # type: ignore[arg-type]
    assert compiled.trainer(lenet(*widths), digits, plan) is not None
    slow, fast, slow_losses, fast_losses = both(lenet(*widths), digits, plan)
    assert fast_losses == pytest.approx(slow_losses, rel=1e-5)
    assert fast_losses[1] < fast_losses[0]
    for a, b in zip(slow.parameters(), fast.parameters(), strict=True):
        torch.testing.assert_close(b, a, rtol=1e-4, atol=2e-5)
        assert b.is_contiguous()


@needs_compiler
def test_where_there_is_a_compiler_it_compiles() -> None:
    assert compiled.available()


@needs_compiler
@pytest.mark.parametrize("widths", [(6, 16, 120, 84), (3, 2, 17, 33), (1, 1, 1, 1)])
def test_the_gradient_is_that_of_the_loss(widths: tuple[int, ...], digits: Images) -> None:
    """After one step Adam's first average is a tenth of the gradient; 21 images fill no whole
    vectors.
    """
    model, few = lenet(*widths), digits.subset(torch.arange(21))
    trainer = compiled.trainer(model, few, PLAN)
    assert trainer is not None
    exact = copy.deepcopy(model).double()
    nn.functional.cross_entropy(exact(few.inputs().double()), few.labels).backward()
    expected = torch.cat([p.grad.flatten() for p in exact.parameters() if p.grad is not None])
    trainer.epoch(torch.arange(21), 1e-3)
    found = 10 * trainer._state[: len(expected)].double()
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-6 * float(expected.abs().max()))


@needs_compiler
def test_weights_that_are_no_numbers_end_the_training(digits: Images) -> None:
    model = lenet(2, 2, 3, 3)
    with torch.no_grad():
        model.fc1.weight[0, 0] = float("nan")
    with pytest.raises(DataError, match="the training loss became nan in epoch 1"):
        fit(model, digits, PLAN, seed=0)


@needs_compiler
def test_a_batch_may_be_larger_than_there_are_images(digits: Images) -> None:
    plan = dataclasses.replace(PLAN, batch_size=10**12)
    *_, slow_losses, fast_losses = both(lenet(2, 3, 4, 5), digits.subset(torch.arange(30)), plan)
    assert fast_losses == pytest.approx(slow_losses, rel=1e-6)


@needs_compiler
def test_the_default_type_of_tensors_does_not_matter(digits: Images) -> None:
    model = lenet(2, 3, 4, 5)
    torch.set_default_dtype(torch.float16)
    try:
        trainer = compiled.trainer(model, digits, PLAN)
    finally:
        torch.set_default_dtype(torch.float32)
    assert trainer is not None
    assert trainer._state.dtype == torch.float32


@needs_compiler
def test_a_pruned_lenet_is_trained_by_it(digits: Images) -> None:
    small = subprune.prune(shipped_lenet()[0], digits.inputs(), compression=8, progress=False).model
    assert compiled.trainer(small, digits, PLAN) is not None
    before = [p.detach().clone() for p in small.parameters()]
    fit(small, digits, PLAN, seed=0)
    assert all(not torch.equal(a, b) for a, b in zip(before, small.parameters(), strict=True))


def test_without_a_compiler_the_ordinary_loop_is_used(
    digits: Images, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled._library.cache_clear()
    monkeypatch.setenv("CC", "no-such-compiler")
    try:
        assert not compiled.available()
        slow, fast, *_ = both(lenet(2, 2, 3, 3), digits, PLAN)
    finally:
        compiled._library.cache_clear()
    assert all(torch.equal(a, b) for a, b in zip(slow.parameters(), fast.parameters(), strict=True))


def test_anything_else_is_trained_the_ordinary_way(digits: Images) -> None:
    frozen, double, hooked, wide, padded, strided, dilated, own = (
        lenet(2, 2, 3, 3) for _ in range(8)
    )
    frozen.conv1.weight.requires_grad_(False)
    hooked.conv1.register_forward_hook(lambda *_: None)
    wide.fc3 = nn.Linear(3, 12)
    padded.conv1 = nn.Conv2d(1, 2, 3, padding=1)
    strided.conv2, strided.fc1 = nn.Conv2d(2, 2, 3, stride=2), nn.Linear(18, 3)
    dilated.conv2.dilation = (2, 2)
    own.forward = lambda x: x  # type: ignore[method-assign, assignment]

    class Own(LeNet):
        """A subclass may compute something else."""

    assert compiled._is_lenet(lenet(2, 2, 3, 3))
    for model in (
        frozen,
        double.double(),
        hooked,
        wide,
        padded,
        strided,
        dilated,
        own,
        Own(),
        nn.Linear(2, 2),
    ):
        assert not compiled._is_lenet(model)
    for change in ({"optimizer": "sgd"}, {"augmented": True}, {"bfloat16": True}):
        assert compiled.trainer(LeNet(), digits, dataclasses.replace(PLAN, **change)) is None  # type: ignore[arg-type]
    strange = Images(digits.images, digits.labels + 1, digits.name, digits.split)
    assert compiled._are_digits(digits)
    assert not compiled._are_digits(strange)
