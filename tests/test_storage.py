"""Saved models: they load into a fresh instance of the original class, and nothing else does."""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

import subprune
from subprune.errors import DataError
from subprune.files import write_atomic
from subprune.io.storage import read_report
from subprune.zoo.models import LeNet, ResNet


class Wide(nn.Module):
    """Keeps its width as a number, which only an eager cut follows."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 12), nn.Linear(12, 3)
        self.block = Inner()

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(self.block(x))))


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.width = 10
        self.up, self.down = nn.Linear(6, 10), nn.Linear(10, 6)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.up(x))
        return self.down(y.reshape(x.shape[0], self.width))


class Branch(nn.Module):
    """Its path depends on the values, so the model cannot be recorded on fake tensors."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if x.sum() > 0 else x * 3


def branching() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 6), Branch(), nn.Linear(6, 3))


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 4, 24, batch_first=True, dropout=0.0)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def bert() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=24,
    )
    return transformers.BertModel(config)


def llama() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=24,
        max_position_embeddings=32,
        use_cache=False,
    )
    return transformers.LlamaForCausalLM(config)


def tokens() -> dict[str, Tensor]:
    return {"input_ids": torch.randint(0, 50, (8, 6), generator=torch.Generator().manual_seed(0))}


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any]]] = {
    "lenet": (LeNet, lambda: torch.randn(16, 1, 28, 28)),
    "resnet20": (lambda: ResNet(20), lambda: torch.randn(2, 3, 32, 32)),
    "encoder": (encoder, lambda: torch.randn(8, 5, 16)),
    "bert": (bert, tokens),
    "llama": (llama, tokens),
    "branching": (branching, lambda: torch.randn(16, 6)),
    "eager": (Wide, lambda: torch.randn(16, 6)),
}


def outputs(model: nn.Module, x: Any) -> Tensor:
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        y = model.eval()(**x) if isinstance(x, dict) else model.eval()(x)
    return y if isinstance(y, Tensor) else y[0]


@pytest.mark.parametrize("name", MODELS)
def test_round_trip(name: str, tmp_path: Path) -> None:
    """Saved, and loaded into another instance with other weights: the same outputs to the last bit."""
    torch.manual_seed(0)
    build, example = MODELS[name]
    model, x = build().eval(), example()
    result = subprune.prune(model, x, keep=0.5, method="layer-in-change")
    assert result.report.parameters[1] < result.report.parameters[0]
    path = subprune.save(result, tmp_path / "small.safetensors")
    torch.manual_seed(1)
    fresh = build()
    before = copy.deepcopy(fresh.state_dict())
    again = subprune.load(fresh, path)
    assert torch.equal(outputs(again, x), outputs(result.model, x))
    assert all(torch.equal(v, before[k]) for k, v in fresh.state_dict().items())
    assert [type(m) for m in again.modules()] == [type(m) for m in result.model.modules()]
    assert result.plan.eager == (name == "eager")


def test_pruned_twice_and_tuned(tmp_path: Path) -> None:
    """Prune, fine-tune with a loop of one's own, prune again: one file loads into the original
    class.
    """
    torch.manual_seed(0)
    x = torch.randn(32, 1, 28, 28)
    first = subprune.prune(LeNet(), x, keep=0.7).model
    optimiser = torch.optim.SGD(first.parameters(), lr=1e-3)
    for _ in range(2):
        optimiser.zero_grad()
        first(x).square().mean().backward()
        optimiser.step()
    second = subprune.prune(copy.deepcopy(first), x, compression=2)
    assert second.report.parameters[0] == sum(p.numel() for p in first.parameters())
    again = subprune.load(LeNet(), subprune.save(second, tmp_path / "twice.safetensors"))
    assert torch.equal(outputs(again, x), outputs(second.model, x))
    third = subprune.prune(again, x, keep=0.9).model  # a loaded model is pruned on just the same
    with torch.no_grad():
        third.fc3.bias.add_(1)
    last = subprune.load(LeNet(), subprune.save(third, tmp_path / "thrice.safetensors"))
    assert torch.equal(outputs(last, x), outputs(third, x))
    tuned = subprune.load(LeNet(), subprune.save(first, tmp_path / "tuned.safetensors"))
    assert torch.equal(outputs(tuned, x), outputs(first, x))


# ---- what the file says, and what is refused -----------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    result = subprune.prune(LeNet(), torch.randn(32, 1, 28, 28), compression=4)
    return subprune.save(result, tmp_path_factory.mktemp("saved") / "small.safetensors")


def parts(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    with safe_open(str(path), framework="pt") as file:
        return dict(file.metadata()), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a dict)


def test_the_file_describes_itself(saved: Path) -> None:
    metadata, state = parts(saved)
    plan = json.loads(metadata["plan"])
    assert metadata["format"] == "subprune-2"
    assert plan["versions"]["torch"] == torch.__version__
    step = plan["steps"][0]
    assert step["groups"]["conv1"]["units"] == 6
    assert step["groups"]["conv1"]["shapes"]["conv1.weight"] == [6, 1, 3, 3]
    assert len(step["data"]) == 32
    assert plan["tensors"]["fc3.bias"] == ["float32", 10]
    report = subprune.Report.from_json(read_report(saved))
    assert report.parameters[1] == sum(x.numel() for x in state.values())
    assert report.flops[1] < report.flops[0]


class Narrow(LeNet):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 5, 3), nn.Conv2d(5, 16, 3)


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (lambda: nn.Linear(3, 3), "not in the model"),
        (Narrow, "of shape"),
        (lambda: ResNet(20), "not in the model"),
        (lambda: "LeNet", "instance of the original"),
    ],
)
def test_wrong_models_are_refused(saved: Path, model: Callable[[], Any], text: str) -> None:
    with pytest.raises(DataError, match=text):
        subprune.load(model(), saved)


def change_plan(**entries: Any) -> Callable[[dict[str, str], dict[str, Tensor]], None]:
    """Alter the plan and, as an attacker would, write a fitting checksum."""

    def change(metadata: dict[str, str], state: dict[str, Tensor]) -> None:
        from subprune.io.storage import _digest

        plan = json.loads(metadata["plan"])
        for place, value in entries.items():
            target, keys = plan, place.split("__")
            for key in keys[:-1]:
                target = target[int(key) if key.isdigit() else key]
            target[keys[-1]] = value
        metadata["plan"] = json.dumps(plan)
        metadata["sha256"] = _digest({k: metadata[k] for k in ("plan", "report")})

    return change


def bump(metadata: dict[str, str], state: dict[str, Tensor]) -> None:
    state["fc1.weight"][0, 0] += 1


ALTERED: dict[str, Callable[[dict[str, str], dict[str, Tensor]], Any]] = {
    "a byte of the plan": lambda m, s: m.update(plan=m["plan"].replace("conv1", "conv2", 1)),
    "no checksum": lambda m, s: m.pop("sha256"),
    "no plan": lambda m, s: m.pop("plan"),
    "another format": lambda m, s: m.update(format="subprune-99"),
    "no metadata": lambda m, s: m.clear(),
    "a weight": bump,
    "a lost tensor": lambda m, s: s.pop("fc2.bias"),
    "steps are text": change_plan(steps="all"),
    "no steps": change_plan(steps=[]),
    "units out of range": change_plan(steps__0__groups__conv1__kept=[0, 99]),
    "units twice": change_plan(steps__0__groups__conv1__kept=[1, 1]),
    "negative units": change_plan(steps__0__groups__conv1__kept=[-1]),
    "units as text": change_plan(steps__0__groups__conv1__kept="all"),
    "fractions of units": change_plan(steps__0__groups__conv1__kept=[0.5]),
    "other numbers kept": change_plan(steps__0__groups__conv1__kept=[0]),
    "another width": change_plan(steps__0__groups__conv1__units=7),
    "a path as group": change_plan(
        **{"steps__0__groups__../../etc/passwd": {"units": 1, "kept": [0], "shapes": {}}}
    ),
    "a huge input": change_plan(
        steps__0__inputs={"args": [{"shape": [10**15], "dtype": "float32"}], "kwargs": {}}
    ),
    "an input that is not a tensor": change_plan(
        steps__0__inputs={"args": [{"object": "Cache"}], "kwargs": {}}
    ),
    "an unknown type": change_plan(
        steps__0__inputs={"args": [{"shape": [1], "dtype": "object"}], "kwargs": {}}
    ),
    "inputs of another shape": change_plan(
        steps__0__inputs={"args": [{"shape": [1, 3, 9, 9], "dtype": "float32"}], "kwargs": {}}
    ),
    "no inputs": change_plan(steps__0__inputs=None),
    "tensors declared otherwise": change_plan(tensors={}),
}


@pytest.mark.parametrize("case", ALTERED)
def test_altered_files_are_refused(saved: Path, tmp_path: Path, case: str) -> None:
    metadata, state = parts(saved)
    ALTERED[case](metadata, state)
    path = tmp_path / "altered.safetensors"
    save_file(state, path, metadata)
    model = LeNet()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(DataError, match=r"altered\.safetensors"):
        subprune.load(model, path)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert model.conv1.out_channels == 6


@pytest.mark.parametrize("size", [0, 4, 8, 100, 5000, -1])
def test_truncated_files_are_refused(saved: Path, tmp_path: Path, size: int) -> None:
    path = tmp_path / "cut.safetensors"
    path.write_bytes(saved.read_bytes()[:size])
    with pytest.raises(DataError, match=r"cut\.safetensors"):
        subprune.load(LeNet(), path)


def test_pickles_are_never_read(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.save(LeNet().state_dict(), path)
    with pytest.raises(DataError, match="not a safetensors file"):
        subprune.load(LeNet(), path)


def test_only_pruned_models_are_saved(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"not made by subprune\.prune"):
        subprune.save(LeNet(), tmp_path / "x.safetensors")
    assert not list(tmp_path.iterdir())


def test_writing_is_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_atomic(path, b"old")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_atomic(path, b"new")
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    with pytest.raises(DataError, match="folder"):
        write_atomic(tmp_path, b"x")
    with pytest.raises(DataError, match="cannot be written"):
        write_atomic(path / "below a file", b"x")
