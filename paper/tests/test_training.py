"""Training is reproducible, borrows what it changes, and says in the file how the weights were
made.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from torch import nn

from subprune.errors import DataError, OptionError
from subprune.zoo.correct import count_correct
from subprune.zoo.datasets import Images, load
from subprune.zoo.models import LeNet, build
from subprune.zoo.weights import load_weights
from subprune_paper import train as script
from subprune_paper.training import (
    TrainingRecipe,
    finetune_recipe,
    fit,
    recipe,
    recipe_names,
    train,
)

TINY = dataclasses.replace(
    recipe("lenet"), epochs=1, batch_size=32, optimizer="adam", dataset="mnist-sample"
)


@pytest.fixture(scope="module")
def digits() -> Images:
    return load("mnist-sample", "train").subset(torch.arange(1024))


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([tensor.flatten().double() for tensor in model.state_dict().values()])


def mean_loss(model: nn.Module, images: Images) -> float:
    with torch.no_grad():
        return float(nn.functional.cross_entropy(model(images.inputs()), images.labels))


def test_one_epoch_lowers_the_loss(digits: Images) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = LeNet()
    before = mean_loss(model, digits)
    history = fit(model, digits, TINY, seed=1)
    assert mean_loss(model, digits) < 0.6 * before
    assert [epoch.number for epoch in history] == [1]
    assert history[0].seconds > 0


def test_the_same_seed_gives_the_same_weights_and_another_does_not(digits: Images) -> None:
    state = torch.get_rng_state()
    models = [train(TINY, digits, seed)[0] for seed in (1, 1, 2)]
    first, again, other = (weights(model) for model in models)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(state, torch.get_rng_state())


def test_cifar_recipe_with_augmentation_and_dropout_is_reproducible() -> None:
    noise = torch.randint(
        256, (8, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    images = Images(noise, torch.arange(8), "cifar10", "train")
    first, again = (train(recipe("vgg11").shortened(1), images, seed=5)[0] for _ in range(2))
    assert torch.equal(weights(first), weights(again))
    assert all(parameter.is_contiguous() for parameter in first.parameters())


def test_bfloat16_changes_the_arithmetic_and_not_the_weights_type(digits: Images) -> None:
    few = digits.subset(torch.arange(128))
    plain = train(dataclasses.replace(TINY, compiled=False), few, seed=1)[0]
    model, history = train(dataclasses.replace(TINY, bfloat16=True), few, seed=1)
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())
    assert not torch.equal(weights(model), weights(plain))
    torch.testing.assert_close(weights(model), weights(plain), atol=0.02, rtol=0)
    assert 0 < history[0].loss < 3


def test_modes_are_given_back_module_by_module(digits: Images) -> None:
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(784).eval(), nn.Linear(784, 10))
    modes = [module.training for module in model.modules()]
    few = digits.subset(torch.arange(64))
    fit(model, few, TINY, seed=0)
    count_correct(model, few)
    assert [module.training for module in model.modules()] == modes


def test_the_learning_rate_drops_when_the_recipe_says(digits: Images) -> None:
    plan = dataclasses.replace(TINY, epochs=4, drops=(2, 3))
    history = fit(LeNet(), digits.subset(torch.arange(32)), plan, seed=0)
    assert [epoch.learning_rate for epoch in history] == pytest.approx([1e-3, 1e-3, 1e-4, 1e-5])


def test_counting_does_not_depend_on_the_batch_size(digits: Images) -> None:
    model = LeNet()
    expected = int((model(digits.inputs()).argmax(1) == digits.labels).sum())
    assert {count_correct(model, digits, size) for size in (7, 128, 5000)} == {expected}


def test_recipes_are_those_of_the_appendix() -> None:
    lenet, vgg = recipe("lenet"), recipe("vgg11")
    assert (lenet.epochs, lenet.batch_size, lenet.optimizer, lenet.learning_rate) == (
        200,
        128,
        "sgd",
        1e-3,
    )
    assert (lenet.weight_decay, lenet.drops, lenet.augmented) == (0.0, (), False)
    assert (vgg.epochs, vgg.optimizer, vgg.weight_decay, vgg.drops) == (
        200,
        "adam",
        5e-4,
        (100, 150),
    )
    tuned = finetune_recipe("resnet56")
    assert (tuned.model, tuned.epochs, tuned.drops) == ("resnet56", 20, (10, 15))
    assert (finetune_recipe("lenet").epochs, finetune_recipe("lenet").optimizer) == (10, "adam")


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_names_a_model_that_exists(name: str) -> None:
    assert recipe(name).model == name
    assert isinstance(build(name), nn.Module)


def test_impossible_recipes_are_refused(digits: Images) -> None:
    with pytest.raises(OptionError, match=r"'lenett'; did you mean 'lenet'\?"):
        recipe("lenett")
    for change in (
        {"epochs": 0},
        {"optimizer": "lbfgs"},
        {"learning_rate": 0.0},
        {"weight_decay": -1.0},
    ):
        with pytest.raises(OptionError, match=next(iter(change))):
            dataclasses.replace(TINY, **change)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="no images"):
        fit(LeNet(), digits.subset(torch.arange(0)), TINY, seed=0)


def test_a_loss_that_explodes_is_an_error(digits: Images) -> None:
    plan = dataclasses.replace(TINY, optimizer="sgd", learning_rate=1e12)
    with pytest.raises(DataError, match=r"loss became (nan|inf) in epoch 1; lower learning_rate"):
        fit(LeNet(), digits, plan, seed=0)


# ---- the script


def run(output: Path, *more: str) -> int:
    return script.main(
        ["lenet", "--dataset", "mnist-sample", "--epochs", "1", "--output", str(output), *more]
    )


def test_the_script_writes_weights_that_say_how_they_were_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "new" / "lenet.safetensors"
    assert run(output, "--seed", "9", "--no-channels-last") == 0
    model = LeNet()
    found = load_weights(model, output)
    made = json.loads(found["recipe"])
    assert TrainingRecipe(**{**made, "drops": tuple(made["drops"])}) == dataclasses.replace(
        recipe("lenet").shortened(1), dataset="mnist-sample", channels_last=False
    )
    assert found["seed"] == "9"
    assert found["torch"] == torch.__version__
    assert count_correct(model, load("mnist-sample", "test")) == int(found["test_correct"])
    assert list(output.parent.iterdir()) == [output]
    texts = capsys.readouterr()
    assert "of 10000 test images right" in texts.out
    assert "epoch 1/1" in texts.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["lenett", "--output", "x.safetensors"], "did you mean 'lenet'"),
        (["lenet", "--output", "x.pt"], "must be a file whose name ends in .safetensors"),
        (["lenet", "--output", "x.safetensors", "--epochs", "0"], "epochs is 0"),
        (["lenet", "--output", "x.safetensors", "--data-dir", "nowhere"], "nowhere does not exist"),
        (["lenet", "--output", "file/x.safetensors", "--data-dir", "."], "cannot be made"),
    ],
)
def test_the_script_refuses_before_it_trains(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    assert script.main(arguments) == 2
    assert words in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_an_interrupted_training_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(script, "train", stop)
    assert run(tmp_path / "lenet.safetensors") == 130
    assert "nothing was written" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
