"""`subprune.recover`: label-free training of the smaller model."""

from __future__ import annotations

import copy
import time
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import subprune
from subprune.data.batch import Batch
from subprune.distil import training
from subprune.distil.augment import Sampler
from subprune.distil.recover import _JUDGED, _batch_size, _divided
from subprune.distil.training import _may_rearrange, answer_loss, features
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
        return float(answer_loss(dense(x), model(x), 1, match="scores"))


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


def test_minutes_of_the_processor_are_those_of_this_process(pruned: Any) -> None:
    _, result, x = pruned
    spent = time.process_time()
    recovered = subprune.recover(
        result, x, minutes=0.01, clock="processor", steps=10**6, progress=False
    )
    spent = time.process_time() - spent
    assert recovered.recovery is not None
    assert recovered.recovery.steps >= 1
    assert spent >= 0.6  # 0.01 minutes, whatever else the machine does meanwhile


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
        ({"clock": "moon"}, "clock must be one of wall, processor"),
        ({"match": "labels"}, "match must be one of scores, probabilities"),
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


def test_pasted_rectangles_take_every_share_of_an_image() -> None:
    sampler = Sampler.of([((torch.randn(4, 1, 32, 48),), {})], True, 0)
    inside = sampler._rectangles(torch.zeros(4000, 1, 32, 48))
    assert inside.shape == (4000, 1, 32, 48)
    shares = inside.double().mean((1, 2, 3))
    # Uniform between 0 and 1: by mean, and by variance 1/12.
    assert float(shares.mean()) == pytest.approx(0.5, abs=0.02)
    assert float(shares.var()) == pytest.approx(1 / 12, rel=0.1)
    rows, columns = inside.any(3).sum((1, 2)), inside.any(2).sum((1, 2))
    assert torch.equal(inside.sum((1, 2, 3)), rows * columns)  # one rectangle each


class Flattened(nn.Module):
    """A network that insists on how images lie in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)
        self.head = nn.Linear(8 * 4 * 4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.outer(torch.relu(self.inner(x)))
        return self.head(x.view(len(x), -1))


def test_models_that_insist_on_a_memory_layout_are_trained_with_it(pruned: Any) -> None:
    torch.manual_seed(0)
    model, x = Flattened().eval(), torch.randn(64, 3, 8, 8)
    with pytest.raises(RuntimeError):
        model(x.contiguous(memory_format=torch.channels_last))
    assert not _may_rearrange([model], ((x,), {}))
    dense, small, images = pruned[0], pruned[1].model, torch.randn(4, 1, 8, 8)
    assert _may_rearrange([dense, small], ((images,), {}))
    result = subprune.prune(model, x, keep=0.5, fit="keep", **QUIET)
    recovered = subprune.recover(result, x, steps=30, minutes=5, rate=1e-3, progress=False)
    assert recovered.recovery is not None
    assert recovered.recovery.loss[1] < recovered.recovery.loss[0]


def test_products_in_bfloat16_leave_weights_and_figures_in_float32(pruned: Any) -> None:
    model, result, x = pruned
    options: dict[str, Any] = {"steps": 40, "minutes": 5, "rate": 2e-3, "progress": False}
    recovered = subprune.recover(result, x, products="bfloat16", **options)
    plain = subprune.recover(result, x, **options)
    assert {p.dtype for p in recovered.model.parameters()} == {torch.float32}
    assert recovered.recovery is not None
    assert plain.recovery is not None
    before, after = recovered.recovery.loss
    assert before == plain.recovery.loss[0]
    assert after < before
    assert after != plain.recovery.loss[1]
    held_out = x[torch.arange(96) % 8 == 0]
    assert after == pytest.approx(loss(recovered.model, model, held_out), rel=1e-4)
    with pytest.raises(OptionError, match="products"):
        subprune.recover(result, x, products="int8", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(("length", "sizes"), [(64, (5, 40)), (300, (80, 200)), (3000, (1, 33))])
def test_of_long_sequences_no_more_are_held_out_than_are_enough(
    length: int, sizes: tuple[int, int]
) -> None:
    tokens = [torch.randint(0, 99, (n, length)) for n in sizes]
    seen, unseen = _divided([Batch(((x,), {}), None, len(x)) for x in tokens])
    held = torch.cat([b.inputs[0][0] for b in unseen])
    count = sum(sizes)
    assert len(held) == max(1, min(-(-count // 8), _JUDGED // length))
    every = torch.cat([held, *(b.inputs[0][0] for b in seen)])
    assert sorted(map(tuple, every.tolist())) == sorted(map(tuple, torch.cat(tokens).tolist()))


def test_scores_are_compared_as_softmax_sees_them() -> None:
    wanted, given = torch.randn(6, 5).double(), torch.randn(6, 5).double()
    shifted = given + torch.randn(6, 1).double()
    error = answer_loss(wanted, given, 1, match="scores")
    assert float(answer_loss(wanted, shifted, 1, match="scores")) == pytest.approx(float(error))
    a, b = (x.float() - x.float().mean(1, keepdim=True) for x in (wanted, given))
    assert float(error) == pytest.approx(float(((a - b) ** 2).sum() / (a**2).sum()))
    # At a high temperature the KL divergence is the squared distance, to second order.
    hot = answer_loss(wanted / 50, given / 50, 1) * 2500
    assert float(hot) == pytest.approx(float(((a - b) ** 2).sum()) / (2 * 5 * 6), rel=3e-2)


def test_what_is_matched_follows_from_how_many_answers_an_input_has(pruned: Any) -> None:
    model, result, x = pruned
    options: dict[str, Any] = {"steps": 3, "minutes": 5, "progress": False}
    own = subprune.recover(result, x, **options).recovery
    assert own is not None
    assert own.match == "scores"
    asked = subprune.recover(result, x, match="probabilities", **options).recovery
    assert asked is not None
    held_out = x[torch.arange(96) % 8 == 0]
    with torch.no_grad():
        divergence = answer_loss(model(held_out), result.model(held_out), 1)
    assert asked.loss[0] == pytest.approx(float(divergence), rel=1e-4)
    assert "KL divergence" in str(asked)
    words = nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 9))
    tokens = torch.randint(0, 9, (48, 6))
    small = subprune.prune(words, tokens, keep=0.5, fit="keep", **QUIET)
    many = subprune.recover(small, tokens, **options).recovery
    assert many is not None
    assert many.match == "probabilities"


def test_gradients_are_turned_on_images_that_are_augmented_alone(
    pruned: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _model, result, x = pruned
    rules: list[str] = []
    for kind in (training.Preconditioned, torch.optim.Adam):

        def made(*args: Any, kind: Any = kind, **more: Any) -> Any:
            rules.append(kind.__name__)
            return kind(*args, **more)

        place = training if kind is training.Preconditioned else torch.optim
        monkeypatch.setattr(place, kind.__name__, made)
    for augment in (True, False):
        subprune.recover(result, x, steps=2, minutes=5, augment=augment, progress=False)
    assert rules == ["Preconditioned", "Adam"]
