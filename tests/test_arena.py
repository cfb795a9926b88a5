"""The arena's harness, on a network of a few channels and made-up images."""

from __future__ import annotations

import copy
import csv
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

HERE = Path(__file__).parents[1] / "experiments" / "arena"
pytestmark = pytest.mark.skipif(not HERE.is_dir(), reason="the experiments are not here")
MODULES = ("run", "rivals", "material", "networks", "page", "judging")

FILE = """
network = "small"
[data]
kind = "made up"
calibration = 48
tuning = 16
test = 64
[limits]
minutes = 0.02
[[rows]]
entrant = "subprune"
goals = ["speedup=1.5"]
[[rows]]
entrant = "magnitude"
goals = ["speedup=1.5", "compression=1.5"]
"""


@pytest.fixture
def arena(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The scripts, which are not a package, and nothing left of them afterwards."""
    monkeypatch.syspath_prepend(str(HERE))
    for name in MODULES:
        sys.modules.pop(name, None)
    yield importlib.import_module("run")
    for name in MODULES:
        sys.modules.pop(name, None)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 6),
    ).eval()


def images(arena: Any, count: int, seed: int) -> Any:
    material = sys.modules["material"]
    numbers = np.random.default_rng(seed)
    pixels = numbers.integers(0, 256, (count, 3, 8, 8), dtype=np.uint8)
    labels = torch.from_numpy(numbers.integers(0, 6, count))
    return material.Images(pixels, labels, (128.0,) * 3, (64.0,) * 3)


@pytest.fixture
def table(arena: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Runs the harness on the made-up network; gives the rows back."""
    material = sys.modules["material"]
    made = material.Material(*(images(arena, n, n) for n in (48, 16, 64)), "made up")
    monkeypatch.setattr(arena, "load_network", lambda name, weights: network())
    monkeypatch.setattr(arena, "material", lambda settings, options, seed: made)
    (tmp_path / "small.toml").write_text(FILE)

    def run(*words: str) -> list[dict[str, str]]:
        given = [str(tmp_path / "small.toml"), "--weights", "any", "--results", str(tmp_path)]
        arena.main([*given, *words])
        with (tmp_path / "small.csv").open(newline="") as file:
            return list(csv.DictReader(file))

    return run


def test_rows_are_made_once_and_say_what_they_are(table: Any) -> None:
    rows = table("--rows", "subprune @ speedup=1.5", "magnitude @ speedup=1.5")
    assert [r["entrant"] for r in rows] == ["dense", "subprune", "magnitude"]
    dense, own, _ = rows
    assert float(dense["agreement"]) == 100
    assert float(dense["speedup"]) == 1
    for row in rows[1:]:
        assert float(row["speedup"]) >= 1.5
        assert 0 <= float(row["top1"]) <= float(row["top5"]) <= 100
        assert int(row["parameters"]) < int(dense["parameters"])
        p = float(row["top1"]) / 100
        assert float(row["top1_error"]) == pytest.approx(100 * (p * (1 - p) / 64) ** 0.5, abs=0.02)
        assert row["machine"]
        assert row["calibration"] == "48"
    assert table("--rows", "subprune @ speedup=1.5") == rows
    more = table("--seeds", "0")
    assert more[:3] == rows
    assert [r["goal"] for r in more[3:]] == ["compression=1.5"]
    assert own["seed"] == "0"


def test_unknown_rows_and_entrants_are_refused_by_name(
    arena: Any, table: Any, tmp_path: Path
) -> None:
    with pytest.raises(SystemExit, match=r"magnitude @ compression=1\.5"):
        table("--rows", "subprune @ speedup=7")
    (tmp_path / "small.toml").write_text(FILE.replace('"magnitude"', '"magnitud"'))
    with pytest.raises(SystemExit, match="'magnitud' is not known"):
        table()
    with pytest.raises(SystemExit, match="compression=2 or speedup=2"):
        arena.Goal.of("params=2")


def test_every_file_names_known_entrants_and_goals(arena: Any) -> None:
    files = sorted(HERE.glob("*.toml"))
    assert files
    for file in files:
        settings = arena.tomllib.loads(file.read_text())
        assert settings["network"] in sys.modules["networks"].NETWORKS
        for row in settings["rows"]:
            assert row["entrant"] in arena.ENTRANTS, (file, row)
            assert [str(arena.Goal.of(g)) for g in row["goals"]] == row["goals"]


def test_mimicking_learns_features_and_keeps_the_last_layer(arena: Any) -> None:
    rivals, material = sys.modules["rivals"], sys.modules["material"]
    made = material.Material(*(images(arena, n, n) for n in (48, 16, 64)), "made up")
    dense, x = network(), made.calibration.inputs()
    for norm in (dense[1], dense[4]):
        norm.momentum = None  # one batch says it all
    with torch.no_grad():
        dense.train()(x)
    dense.eval()
    small = copy.deepcopy(dense)
    with torch.no_grad():
        small[3].weight.normal_(std=0.1)
        small[4].bias.fill_(1.0)

    def distance() -> float:
        with torch.no_grad():
            return float((rivals._features(small, x) - rivals._features(dense, x)).square().mean())

    before, last = distance(), small[8].weight.detach().clone()
    assert rivals._mimic(dense, small, made, 0.05, 1.0, 0, most=150) == 150
    assert distance() < 0.5 * before
    assert torch.equal(small[8].weight, last)
    assert not small.training


def test_a_model_that_does_not_run_is_told_from_one_that_does(arena: Any) -> None:
    rivals, example = sys.modules["rivals"], torch.randn(1, 8)
    fitting = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 2))
    rivals._check_runs(fitting, example)
    with pytest.raises(rivals._DoesNotRun):
        rivals._check_runs(nn.Sequential(nn.Linear(8, 4), nn.Linear(5, 2)), example)


@pytest.mark.parametrize("importance", ["MagnitudeImportance", "GroupTaylorImportance"])
def test_torch_pruning_meets_the_goal(arena: Any, importance: str) -> None:
    pytest.importorskip("torch_pruning", reason="Torch-Pruning is part of the extra bench")
    rivals, material = sys.modules["rivals"], sys.modules["material"]
    made = material.Material(*(images(arena, n, n) for n in (48, 16, 64)), "made up")
    dense = network()
    goal = rivals.Goal("speedup", 1.5)
    outcome = rivals.torch_pruning(importance, True)(dense, made, goal, 0, {})
    assert goal.met(dense, outcome.model, made.calibration.inputs(slice(0, 1)))
    assert outcome.model[8].out_features == 6
    assert outcome.spent is not None
    assert "ratio" in outcome.note


def test_image_folders_are_read_in_the_order_of_classes(arena: Any, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow is part of the extra images")
    for i, name in enumerate(("n02_b", "n01_a", "n03_c")):
        (tmp_path / "sample").mkdir(exist_ok=True)
        image.new("RGB", (300, 260), (60 * i, 0, 0)).save(tmp_path / "sample" / f"{name}.png")
    for number in (0, 2, 10):
        (tmp_path / "val" / str(number)).mkdir(parents=True)
        image.new("RGB", (256, 400), (0, number, 0)).save(tmp_path / "val" / str(number) / "x.png")
    how = {
        "calibration": 2,
        "tuning": 1,
        "test": 3,
        "resample": "bilinear",
        "mean": (0.0,) * 3,
        "scale": (1.0,) * 3,
    }
    places = (tmp_path / "sample", tmp_path / "val", tmp_path / "cache")
    made = sys.modules["material"].image_folders(*places, how, 0)
    assert made.test.labels.tolist() == [0, 2, 10]
    assert [float(x[1, 0, 0]) for x in made.test.inputs()] == [0, 2, 10]
    red = {0: 60.0, 1: 0.0, 2: 120.0}  # by class: n01_a, n02_b, n03_c
    for part in (made.calibration, made.tuning):
        assert part.inputs().shape[1:] == (3, 224, 224)
        for x, y in zip(part.inputs(), part.labels.tolist(), strict=True):
            assert float(x[0, 100, 100]) == red[y]
    again = sys.modules["material"].image_folders(*places, how, 0)
    assert torch.equal(again.test.inputs(), made.test.inputs())


def test_quick_answers_are_the_models_own(arena: Any) -> None:
    judging = sys.modules["judging"]
    model, x = network(), torch.randn(10, 3, 8, 8)
    with torch.no_grad():
        expected = model(x)
    given = judging.quick(model, x[:4])(x)
    torch.testing.assert_close(given, expected, rtol=1e-4, atol=1e-5)


def test_a_file_that_answers_otherwise_is_not_used(
    arena: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    judging = sys.modules["judging"]
    model, x = network(), torch.randn(10, 3, 8, 8)
    monkeypatch.setattr(judging, "_session", lambda model, example: lambda x: model(x) + 1)
    with torch.no_grad():
        expected = model(x)
    torch.testing.assert_close(judging.quick(model, x[:4])(x), expected)


def test_rows_that_nobody_made_are_named(arena: Any, monkeypatch: Any, tmp_path: Path) -> None:
    page = importlib.import_module("page")
    (tmp_path / "small.toml").write_text(FILE)
    monkeypatch.setattr(page, "ARENA", tmp_path)
    rows = [
        {"entrant": "subprune", "goal": "speedup=1.5"},
        {"entrant": "magnitude", "goal": "compression=1.5"},
    ]
    words = " ".join(page.missing("small", rows))
    assert words.strip() == "In `small.toml` and not made yet: magnitude at FLOPs ÷ 1.5."
    rows.append({"entrant": "magnitude", "goal": "speedup=1.5"})
    assert page.missing("small", rows) == []


def test_nothing_is_said_of_rivals_without_rows(arena: Any) -> None:
    page = importlib.import_module("page")

    def row(entrant: str, top1: float) -> dict[str, str]:
        return {"entrant": entrant, "top1": str(top1), "top1_error": "0.3"}

    own = row("subprune", 91.0)
    assert page.ahead([own, row("subprune, refined", 92.0)]) == "No rival has a row here yet.\n"
    assert page.ahead([row("FLAP", 80.0)]) == "The default has no row here yet.\n"
    assert page.ahead([own, row("FLAP", 80.0)]).startswith("No rival without training")
    assert "FLAP by 1.0 points" in page.ahead([own, row("FLAP", 92.0)])
