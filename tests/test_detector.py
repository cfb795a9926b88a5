"""The detector of the experiments: its checkpoint is read without running it, boxes are compared."""

from __future__ import annotations

import os
import sys
import types
from pathlib import Path

import pytest
import torch
from torch import nn

import subprune

HERE = Path(__file__).parents[1] / "experiments" / "detector"
pytestmark = pytest.mark.skipif(not HERE.is_dir(), reason="the experiments are not here")


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))


def stored(model: nn.Module, monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    """The model's modules in a file, under names of a package that is gone when it is read."""
    package = "ultralytics.nn.tasks"
    room = types.ModuleType(package)
    kind = type("DetectionModel", (nn.Module,), {"__module__": package})
    room.DetectionModel = kind  # type: ignore[attr-defined]
    with monkeypatch.context() as here:
        for name in ("ultralytics", "ultralytics.nn"):
            here.setitem(sys.modules, name, types.ModuleType(name))
        here.setitem(sys.modules, package, room)
        outer = kind()
        outer.model = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.SiLU(), nn.Conv2d(4, 2, 1)
        )
        outer.load_state_dict(model.state_dict())
        torch.save({"model": outer.half(), "ema": None, "epoch": -1}, path)


def test_a_checkpoint_gives_its_tensors_and_runs_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from checkpoint import read_tensors

    model = nn.Module()
    model.model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.SiLU(), nn.Conv2d(4, 2, 1)
    )
    stored(model, monkeypatch, tmp_path / "model.pt")
    assert "ultralytics" not in sys.modules
    found = read_tensors(tmp_path / "model.pt")
    expected = model.state_dict()
    assert list(found) == [*expected]
    for name, x in expected.items():
        torch.testing.assert_close(found[name], x, rtol=1e-3, atol=1e-3)
    assert all(x.dtype in (torch.float32, torch.int64) for x in found.values())


class Harmful:
    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, ("harm-was-done",)


@pytest.mark.parametrize("content", [{"model": Harmful()}, {"model": nn.ReLU()}, [1, 2]])
def test_other_files_are_refused_by_name(
    content: object, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from checkpoint import read_tensors

    monkeypatch.chdir(tmp_path)
    torch.save(content, tmp_path / "model.pt")
    with pytest.raises(SystemExit, match=r"model\.pt"):
        read_tensors(tmp_path / "model.pt")
    assert not (tmp_path / "harm-was-done").exists()


def test_the_network_takes_the_tensors_and_can_be_cut() -> None:
    from network import YOLOv8, from_tensors

    torch.manual_seed(0)
    made = YOLOv8()
    tensors = {
        **made.state_dict(),
        "model.22.dfl.conv.weight": torch.arange(16.0).view(1, 16, 1, 1),
    }
    model = from_tensors(tensors)
    x = torch.rand(1, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(model(x), made.eval()(x))
        assert model(x).shape == (1, 84, 64 + 16 + 4)
    structure = subprune.find_groups(model, x)
    inner = {g.name for g in structure if g.inner}
    assert {"model.2.m.0.cv1.conv", "model.9.cv1.conv", "model.22.cv3.0.0.conv"} <= inner
    assert {g.name for g in structure if g.kind == "stream"} == {f"model.{i}" for i in (2, 4, 6, 8)}
    with pytest.raises(SystemExit, match="YOLOv8"):
        from_tensors({})


def test_overlaps_and_matches_on_boxes_worked_out_by_hand() -> None:
    from boxes import Boxes, boxes, matched, mean_precision, shared

    one = torch.tensor([[0.0, 0.0, 2.0, 2.0], [10.0, 10.0, 14.0, 14.0]])
    other = torch.tensor([[1.0, 0.0, 3.0, 2.0], [10.0, 10.0, 14.0, 12.0]])
    expected = torch.tensor([[1 / 3, 0.0], [0.0, 0.5]])
    torch.testing.assert_close(shared(one, other), expected)
    found = Boxes(one, torch.tensor([0.9, 0.8]), torch.tensor([0, 1]))
    wanted = Boxes(other, torch.ones(2), torch.tensor([0, 1]))
    assert matched(found, wanted) == [(1, 1)]
    # Class 0: its box overlaps too little. Class 1: found at once.
    assert mean_precision([found], [wanted]) == pytest.approx(0.5)
    # Places: two overlapping boxes of a class, one of another class, one with too low a score.
    output = torch.tensor(
        [
            [5.0, 5.1, 5.0, 20.0],
            [5.0, 5.0, 5.0, 20.0],
            [4.0, 4.0, 4.0, 4.0],
            [4.0, 4.0, 4.0, 4.0],
            [0.9, 0.8, 0.0, 0.1],
            [0.0, 0.0, 0.7, 0.2],
        ]
    )
    kept = boxes(output)
    assert kept.classes.tolist() == [0, 1]
    torch.testing.assert_close(kept.scores, torch.tensor([0.9, 0.7]))
    torch.testing.assert_close(kept.corners[0], torch.tensor([3.0, 3.0, 7.0, 7.0]))


def test_precision_counts_every_box_by_falling_score() -> None:
    from boxes import Boxes, mean_precision

    box = torch.tensor([[0.0, 0.0, 4.0, 4.0]])
    far = box + 50
    wanted = [Boxes(torch.cat([box, far]), torch.ones(2), torch.tensor([3, 3]))]
    # Hit, miss, hit: precision 1 at recall ½, 2/3 at recall 1.
    found = [
        Boxes(
            torch.cat([box, box + 20, far]),
            torch.tensor([0.9, 0.8, 0.7]),
            torch.tensor([3, 3, 3]),
        )
    ]
    assert mean_precision(found, wanted) == pytest.approx(0.5 * 1 + 0.5 * 2 / 3)
