"""Models by name: timm and torchvision as far as they are used, transformers itself, and nothing
fetched unasked.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from run_cli import Run, runner
from safetensors.torch import save_file
from torch import Tensor, nn

from subprune.cli.hubs import LIBRARIES, central_view
from subprune.cli.loading import is_code, load
from subprune.errors import DataError, OptionError


def small(classes: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, classes)
    )


CONFIG = {
    "hf_hub_id": "timm/small.test",
    "input_size": (3, 8, 8),
    "crop_pct": 0.8,
    "mean": (0.5, 0.5, 0.5),
    "std": (0.25, 0.25, 0.25),
    "interpolation": "bicubic",
}


class Fetched:
    """A hub that writes down what was asked of it."""

    def __init__(self, cached: Path | None, remote: Path) -> None:
        self.cached, self.remote, self.asked = cached, remote, [""][:0]

    def try_to_load_from_cache(self, repository: str, file: str) -> str | None:
        return None if self.cached is None else str(self.cached)

    def hf_hub_download(self, repository: str, file: str) -> str:
        self.asked.append(f"{repository}/{file}")
        return str(self.remote)


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    state = {k: torch.full_like(x, 0.01) for k, x in small().state_dict().items()}
    save_file(state, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def timm(monkeypatch: pytest.MonkeyPatch, hub: Fetched) -> None:
    def create_model(name: str, pretrained: bool) -> nn.Module:
        assert not pretrained  # which would fetch, and unpickle
        if name != "small":
            raise RuntimeError(f"Unknown model ({name})")
        model = small()
        model.pretrained_cfg = dict(CONFIG)  # type: ignore[assignment]
        return model

    monkeypatch.setitem(sys.modules, "timm", types.SimpleNamespace(create_model=create_model))  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)  # type: ignore[arg-type]


def test_timm_takes_weights_that_are_here(monkeypatch: pytest.MonkeyPatch, weights: Path) -> None:
    hub = Fetched(weights, weights)
    timm(monkeypatch, hub)
    loaded = load("timm:small", None)
    assert not loaded.model.training
    assert all(bool((x == 0.01).all()) for x in loaded.model.parameters())
    assert hub.asked == []
    assert loaded.prepare is not None
    view = loaded.prepare(torch.full((1, 20, 30), 0.75))
    assert view.shape == (3, 8, 8)
    assert torch.allclose(view, torch.ones(3, 8, 8))


def test_nothing_is_fetched_unasked(monkeypatch: pytest.MonkeyPatch, weights: Path) -> None:
    hub = Fetched(None, weights)
    timm(monkeypatch, hub)
    with pytest.raises(OptionError, match="not on this machine, and nothing is fetched unasked"):
        load("timm:small", None)
    assert hub.asked == []
    given = load("timm:small", weights)  # the user's own weights need nothing from anywhere
    assert load("timm:small", None, trained=False).model is not None
    assert hub.asked == []
    fetched = load("timm:small", None, download=True)
    assert hub.asked == ["timm/small.test/model.safetensors"]
    for x, y in zip(fetched.model.parameters(), given.model.parameters(), strict=True):
        assert torch.equal(x, y)


def test_an_unknown_name_is_refused(monkeypatch: pytest.MonkeyPatch, weights: Path) -> None:
    timm(monkeypatch, Fetched(weights, weights))
    with pytest.raises(DataError, match=r"--model timm:none cannot be loaded: .*Unknown model"):
        load("timm:none", None)


class Entry:
    url = "https://example.invalid/small-00000000.pth"

    @staticmethod
    def transforms() -> Any:
        return lambda image: image[:, :4, :4] * 2


def torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    models = types.SimpleNamespace(
        get_model=lambda name, weights: small(),
        get_model_weights=lambda name: types.SimpleNamespace(DEFAULT=Entry),
    )
    monkeypatch.setitem(sys.modules, "torchvision", types.SimpleNamespace(models=models))  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "torchvision.models", models)  # type: ignore[arg-type]


def test_torchvision(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    torchvision(monkeypatch)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    calls: list[dict[str, Any]] = []

    def fetch(url: str, **how: Any) -> dict[str, Tensor]:
        calls.append(how)
        return small().state_dict()

    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", fetch)
    with pytest.raises(OptionError, match=r"its weights \(small-00000000\.pth\) are not on this"):
        load("torchvision:small", None)
    assert not calls
    loaded = load("torchvision:small", None, download=True)
    assert calls[0]["weights_only"] is True
    assert calls[0]["check_hash"] is True
    assert loaded.prepare is not None
    assert loaded.prepare(torch.ones(3, 9, 9)).shape == (3, 4, 4)


@pytest.mark.parametrize(
    ("spec", "module"),
    [("timm:a", "timm"), ("torchvision:a", "torchvision"), ("hf:a", "transformers")],
)
def test_a_library_that_is_not_here_is_named(
    monkeypatch: pytest.MonkeyPatch, spec: str, module: str
) -> None:
    for name in (module, f"{module}.models"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(OptionError, match=f"{spec} is loaded with {module}.*pip install {module}"):
        load(spec, None)


def test_names_of_libraries_are_not_modules_of_python() -> None:
    assert is_code("net.py:build")
    assert is_code("my.nets:build")
    assert not any(is_code(f"{library}:name") for library in LIBRARIES)
    assert not is_code("lenet-mnist")


def test_a_view_keeps_the_middle() -> None:
    image = torch.zeros(3, 10, 20)
    image[:, :, 10:] = 1.0
    view = central_view(size=10, shorter=10, mean=(0.0,) * 3, std=(1.0,) * 3)(image)
    assert view.shape == (3, 10, 10)
    assert torch.equal(view[:, :, :4], torch.zeros(3, 10, 4))
    assert torch.equal(view[:, :, 6:], torch.ones(3, 10, 4))


def test_images_are_prepared_as_the_library_says(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    weights: Path,
) -> None:
    """Pictures of other sizes than the model's, from a folder, without --resize."""
    timm(monkeypatch, Fetched(weights, weights))
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for c in range(3):
        Path(f"images/class{c}").mkdir(parents=True)
        for i in range(6):
            np.save(f"images/class{c}/{i}.npy", rng.random((3, 12 + i, 15), np.float32))
    run: Run = runner(monkeypatch, capsys)
    args = ("prune", "--model", "timm:small", "--data", "images", "--keep", 0.5)
    done = run(*args, "--no-guarantees", "--no-time-calls", "--output", "out")
    assert done.code == 0, done.err
    assert "accuracy on" in done.out


# ---- transformers --------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny image classifier with its preprocessing, as save_pretrained writes it."""
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=24,
        image_size=16,
        patch_size=8,
        num_labels=3,
    )
    torch.manual_seed(0)
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path / "vit")
    (tmp_path / "vit" / "preprocessor_config.json").write_text(
        '{"image_processor_type": "ViTImageProcessor", "do_resize": true, "do_rescale": true, '
        '"do_normalize": true, "rescale_factor": 0.00392156862745098, "resample": 2, '
        '"size": {"height": 16, "width": 16}, '
        '"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}'
    )
    return tmp_path / "vit"


@pytest.mark.parametrize("prefix", ["hf:", ""])
def test_a_local_folder_needs_no_network(
    folder: Path, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*args: Any, **how: Any) -> Any:
        raise AssertionError("the network was asked")

    monkeypatch.setattr("socket.create_connection", refused)
    monkeypatch.setattr("socket.getaddrinfo", refused)
    loaded = load(f"{prefix}{folder}", None)
    assert type(loaded.model).__name__ == "ViTForImageClassification"
    assert loaded.folder == folder


def test_its_own_preprocessing_is_used(folder: Path) -> None:
    loaded = load(f"hf:{folder}", None)
    assert loaded.prepare is not None
    try:
        view = loaded.prepare(torch.full((3, 20, 30), 0.75))
    except DataError as error:
        if "orchvision" in str(error) or "PIL" in str(error):
            pytest.skip(f"the image processors of transformers need more here: {error}")
        raise
    assert view.shape == (3, 16, 16)
    assert torch.allclose(view, torch.full((3, 16, 16), 0.5), atol=0.01)


def test_an_id_that_is_not_here_is_not_fetched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("transformers")
    asked: list[Any] = []

    def refused(*args: Any, **how: Any) -> Any:
        asked.append(args)
        raise OSError("no network")

    monkeypatch.setattr("socket.create_connection", refused)
    monkeypatch.setattr("socket.getaddrinfo", refused)
    with pytest.raises(OptionError, match="nothing is fetched unasked; give --download"):
        load("hf:nobody/nothing", None)
    assert not asked
