"""The paper's networks, and weights files that fit or are refused in words."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from subprune.errors import DataError, OptionError
from subprune.zoo.correct import count_correct
from subprune.zoo.datasets import load
from subprune.zoo.models import (
    LeNet,
    PadShortcut,
    ResNet,
    build,
    model_names,
    register,
    shipped_lenet,
)
from subprune.zoo.weights import load_weights, save_weights
from tests.shared import SHARED, needs_shared

# Parameters counted by hand or from the papers: LeNet layer by layer, He et al. (2016) table 6 in
# millions.
LENET = (6 * 9 + 6) + (16 * 54 + 16) + (400 * 120 + 120) + (120 * 84 + 84) + (84 * 10 + 10)


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("name", model_names())
def test_every_registered_model_gives_ten_logits(name: str) -> None:
    shape = (2, 1, 28, 28) if name == "lenet" else (2, 3, 32, 32)
    with torch.no_grad():
        assert build(name).eval()(torch.zeros(shape)).shape == (2, 10)


@pytest.mark.parametrize(
    ("name", "millions"),
    [("resnet20", 0.27), ("resnet32", 0.46), ("resnet56", 0.85), ("resnet110", 1.7)],
)
def test_resnet_sizes_are_those_of_the_original_paper(name: str, millions: float) -> None:
    assert parameters(build(name)) / 1e6 == pytest.approx(millions, abs=0.05)


def test_lenet_layers() -> None:
    model = LeNet()
    assert [name for name, _ in model.named_children()] == ["conv1", "conv2", "fc1", "fc2", "fc3"]
    assert parameters(model) == LENET


def test_option_a_shortcut_has_no_weights_and_option_b_a_projection() -> None:
    a, b = ResNet(20, "A"), ResNet(20, "B")
    assert isinstance(a.layer2[0].shortcut, PadShortcut)
    assert not [name for name, _ in a.named_parameters() if "shortcut" in name]
    names = {name for name, _ in b.named_parameters() if "shortcut" in name}
    assert "layer2.0.shortcut.0.weight" in names
    assert not any(name.startswith("layer1") for name in names)


def test_pad_shortcut_keeps_every_second_pixel_between_zero_channels() -> None:
    x = torch.arange(2 * 4 * 6 * 6, dtype=torch.float32).reshape(2, 4, 6, 6)
    y = PadShortcut(4)(x)
    assert torch.equal(y[:, 2:6], x[:, :, ::2, ::2])
    assert not y[:, :2].any()
    assert not y[:, 6:].any()


def test_unknown_and_duplicate_names_are_refused_with_help() -> None:
    with pytest.raises(
        OptionError, match=r"'resnet65'.*did you mean 'resnet5?6?.*allowed are lenet"
    ):
        build("resnet65")
    with pytest.raises(OptionError, match="'lenet' is registered already"):
        register("lenet", LeNet)


@pytest.mark.parametrize(("depth", "shortcut"), [(21, "A"), (14, "A"), (116, "A"), (20, "C")])
def test_impossible_resnets_are_refused(depth: int, shortcut: str) -> None:
    with pytest.raises(OptionError, match="allowed"):
        ResNet(depth, shortcut)  # type: ignore[arg-type]


def test_saved_weights_come_back_with_metadata(tmp_path: Path) -> None:
    path = tmp_path / "lenet.safetensors"
    model, copy = LeNet().to(memory_format=torch.channels_last), LeNet()
    save_weights(model, path, {"seed": "7"})
    assert load_weights(copy, path) == {"seed": "7"}
    for ours, theirs in zip(model.state_dict().values(), copy.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs)


def test_weights_that_do_not_fit_change_nothing_and_are_listed(tmp_path: Path) -> None:
    path = tmp_path / "lenet.safetensors"
    other = LeNet()
    other.fc3 = nn.Linear(84, 7)
    other.extra = nn.Linear(1, 1)
    del other.conv1
    save_weights(other, path, {})
    model = LeNet()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(DataError) as caught:
        load_weights(model, path)
    message = str(caught.value)
    assert "not in the file: conv1.weight, conv1.bias" in message
    assert "not in the model: extra.bias, extra.weight" in message
    assert "fc3.weight (file [7, 84], model [10, 84])" in message
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("content", [b"", b"not safetensors", b"\xff" * 64])
def test_damaged_weights_are_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.safetensors"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"bad\.safetensors cannot be read as safetensors"):
        load_weights(LeNet(), path)


def test_truncated_and_missing_weights_are_named(tmp_path: Path) -> None:
    path = tmp_path / "cut.safetensors"
    save_weights(LeNet(), path, {})
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError, match=r"cut\.safetensors"):
        load_weights(LeNet(), path)
    with pytest.raises(DataError, match=r"absent\.safetensors is not a file"):
        load_weights(LeNet(), tmp_path / "absent.safetensors")


def test_a_failed_write_leaves_the_old_file_and_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lenet.safetensors"
    save_weights(LeNet(), path, {})
    before = path.read_bytes()

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(DataError, match="disk full"):
        save_weights(LeNet(), path, {})
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_shipped_lenet_is_as_good_as_its_file_says() -> None:
    model, metadata = shipped_lenet()
    test = load("mnist-sample", "test")
    assert not model.training
    assert len(test) == int(metadata["test_images"])
    correct = count_correct(model, test)
    assert correct == int(metadata["test_correct"])
    assert metadata["test_accuracy"] == f"{100 * correct / len(test):.2f}"


@needs_shared
@pytest.mark.parametrize(
    ("name", "count", "least"), [("resnet56", 500, 0.88), ("vgg11", 250, 0.82)]
)
def test_public_weights_load_strictly_and_classify(name: str, count: int, least: float) -> None:
    path = SHARED / "models" / f"{name}-cifar10.safetensors"
    model = build(name)
    load_weights(model, path)
    state = model.state_dict()
    assert all(torch.equal(state[key], tensor) for key, tensor in load_file(path).items())
    first = load("cifar10", "test", SHARED / "data").subset(torch.arange(count))
    assert count_correct(model, first, batch_size=125) > least * len(first)
