"""`subprune.recover`: label-free training of the smaller model."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import subprune
from subprune.data.batches import Batch
from subprune.distil.augment import Sampler
from subprune.distil.recover import _batch_size
from subprune.distil.training import answer_loss, features
from subprune.errors import DataError, OptionError

QUIET: dict[str, Any] = {"progress": False, "time_calls": False}


class Net(nn.Module):
    """A convolution, a residual block and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 3, padding=1)
        self.inner, self.norm = nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.outer, self.head = nn.Conv2d(16, 8, 3, padding=1), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        x = torch.relu(x + self.outer(torch.relu(self.norm(self.inner(x)))))
        return 5 * self.head(x.mean((2, 3)))


@pytest.fixture
def pruned() -> tuple[nn.Module, subprune.Result, Tensor]:
    torch.manual_seed(0)
    model, x = Net().eval(), torch.randn(96, 1, 8, 8)
    return model, subprune.prune(model, x, keep=0.25, fit="keep", **QUIET), x


def loss(model: nn.Module, dense: nn.Module, x: Tensor) -> float:
    with torch.no_grad():
        return float(answer_loss(dense(x), model(x), 1))


def test_answers_come_nearer_and_neither_model_given_is_changed(pruned: Any) -> None:
    model, result, x = pruned
    result.model.train()
    before = [copy.deepcopy(m.state_dict()) for m in (model, result.model)]
    recovered = subprune.recover(result, x, steps=60, minutes=5, rate=2e-3, progress=False)
    for m, state in zip((model, result.model), before, strict=True):
        for name, value in m.state_dict().items():
            assert torch.equal(value, state[name])
    assert result.model.training
    assert recovered.model.training
    for m in (result.model, recovered.model):
        m.eval()
    assert recovered.recovery is not None
    start, end = recovered.recovery.loss
    assert end < 0.9 * start
    fresh = torch.randn(200, 1, 8, 8)
    assert loss(recovered.model, model, fresh) < loss(result.model, model, fresh)
    assert all(p.grad is None for p in recovered.model.parameters())
    assert str(recovered.recovery) in recovered.report.notes


def test_figures_are_those_of_inputs_that_were_held_out(pruned: Any) -> None:
    model, result, x = pruned
    recovered = subprune.recover(result, x, steps=20, minutes=5, rate=1e-3, progress=False)
    figures = recovered.recovery
    assert figures is not None
    assert figures.agreement is not None
    assert (figures.inputs, figures.held_out) == (84, 12)
    held_out = x[torch.arange(96) % 8 == 0]
    assert figures.loss[0] == pytest.approx(loss(result.model, model, held_out), rel=1e-4)
    assert figures.loss[1] == pytest.approx(loss(recovered.model, model, held_out), rel=1e-4)
    with torch.no_grad():
        same = (model(held_out).argmax(1) == recovered.model(held_out).argmax(1)).double().mean()
    assert figures.agreement[1] == pytest.approx(float(same))


def test_a_training_that_ruins_the_model_leaves_it_as_it_was(pruned: Any) -> None:
    _, result, x = pruned
    recovered = subprune.recover(result, x, steps=10, minutes=5, rate=50.0, progress=False)
    for a, b in zip(result.model.parameters(), recovered.model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert recovered.recovery is not None
    assert recovered.recovery.loss[0] == recovered.recovery.loss[1]


def test_it_can_be_saved_and_loaded(pruned: Any, tmp_path: Any) -> None:
    _, result, x = pruned
    recovered = subprune.recover(result, x, steps=5, minutes=5, progress=False)
    subprune.save(recovered, tmp_path / "small")
    loaded = subprune.load(Net(), tmp_path / "small")
    with torch.no_grad():
        assert torch.equal(loaded.eval()(x), recovered.model(x))


def test_numbers_and_inputs_that_are_no_images() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 1))
    x = torch.randn(80, 6)
    result = subprune.prune(model, x, keep=0.25, fit="keep", **QUIET)
    recovered = subprune.recover(result, x, steps=60, minutes=5, rate=5e-3, progress=False)
    assert recovered.recovery is not None
    assert recovered.recovery.agreement is None
    assert recovered.recovery.loss[1] < recovered.recovery.loss[0]


def test_modules_of_the_same_shape_are_compared(pruned: Any) -> None:
    model, result, x = pruned
    assert features(model, result.model, ((x,), {})) == ["stem", "outer", "head"]


def test_images_are_moved_mirrored_and_mixed_and_other_arguments_are_not() -> None:
    images, numbers = torch.randn(8, 3, 16, 16), torch.arange(8)
    sampler = Sampler.of([((images,), {"n": numbers})], True, 0)
    (args, kwargs) = sampler.draw(torch.arange(4))
    assert args[0].shape == (4, 3, 16, 16)
    assert not torch.equal(args[0], images[:4])
    assert torch.equal(kwargs["n"], numbers[:4])
    plain = Sampler.of([((images,), {"n": numbers})], False, 0)
    assert torch.equal(plain.draw(torch.arange(4))[0][0], images[:4])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"minutes": 0}, "minutes"),
        ({"rate": -1.0}, "rate"),
        ({"steps": 0}, "steps"),
        ({"batch": 1.5}, "batch"),
    ],
)
def test_options_that_make_no_sense_are_refused(pruned: Any, options: Any, words: str) -> None:
    _, result, x = pruned
    with pytest.raises(OptionError, match=words):
        subprune.recover(result, x, progress=False, **options)


def test_what_is_missing_is_named(pruned: Any) -> None:
    _, result, x = pruned
    with pytest.raises(OptionError, match="dense=model"):
        subprune.recover(replace(result, dense=None), x, progress=False)
    with pytest.raises(DataError, match="hold out"):
        subprune.recover(result, x[:1], progress=False)


def test_sequences_count_with_their_tokens() -> None:
    def batch(*shape: int) -> Batch:
        return Batch(((torch.zeros(shape, dtype=torch.int64),), {}), None, shape[0])

    assert [_batch_size(batch(8, n)) for n in (1, 12, 256, 4096)] == [64, 64, 4, 1]
    images = Batch(((torch.zeros(8, 3, 9, 9),), {}), None, 8)
    assert _batch_size(images) == 64
