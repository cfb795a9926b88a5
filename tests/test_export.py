"""Exported files run, agree with PyTorch, and are not kept otherwise."""

from __future__ import annotations

import copy
import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import subprune
from subprune.errors import DataError, OptionError, StructureError
from subprune.io.export import relative_gap

ONNX = pytest.mark.skipif(
    any(importlib.util.find_spec(m) is None for m in ("onnx", "onnxruntime", "onnxscript")),
    reason="ONNX is not installed: pip install 'subprune[export]'",
)


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 20), nn.Linear(20, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.relu(self.a(x)))


@pytest.fixture(scope="module")
def result() -> subprune.Result:
    torch.manual_seed(0)
    return subprune.prune(Mlp(), torch.randn(50, 6), keep=0.5)


def attention() -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 4, 24, batch_first=True, dropout=0.0)
    return nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)


def test_torch_export(result: subprune.Result, tmp_path: Path) -> None:
    done = subprune.export(result, tmp_path / "small.pt2")
    assert (done.format, done.batch) == ("torch-export", "any")
    assert done.difference <= 1e-4
    assert done.bytes == (tmp_path / "small.pt2").stat().st_size
    module = torch.export.load(tmp_path / "small.pt2").module()
    x = torch.randn(7, 6)
    assert torch.allclose(module(x), result.model(x))
    assert [p.name for p in tmp_path.iterdir()] == ["small.pt2"]


@ONNX
@pytest.mark.parametrize("kind", ["mlp", "heads"])
def test_onnx(result: subprune.Result, tmp_path: Path, kind: str) -> None:
    import onnxruntime

    x = torch.randn(5, 6)
    if kind == "heads":
        torch.manual_seed(0)
        x = torch.randn(5, 3, 16)
        result = subprune.prune(attention(), x, keep=0.5)
    done = subprune.export(result, tmp_path / "small.onnx")
    assert done.batch == "any"
    assert done.difference <= 1e-4
    session = onnxruntime.InferenceSession(
        str(tmp_path / "small.onnx"), providers=["CPUExecutionProvider"]
    )
    found = session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]
    assert torch.allclose(torch.from_numpy(found), result.model.eval()(x), atol=1e-4)


class Fickle(nn.Module):
    """Answers differently in a file: the number is fixed when it is exported."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        Fickle.calls += 1
        return x + Fickle.calls


def test_what_disagrees_is_not_kept(tmp_path: Path) -> None:
    with pytest.raises(StructureError, match="differs from PyTorch"):
        subprune.export(Fickle(), tmp_path / "x.pt2", example=torch.ones(2, 3))
    assert not list(tmp_path.iterdir())


def test_refusals(result: subprune.Result, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="did you mean 'onnx'"):
        subprune.export(result, tmp_path / "x", format="onx")
    with pytest.raises(OptionError, match=r"\.pt2"):
        subprune.export(result, tmp_path / "x.pkl")
    with pytest.raises(DataError, match="pass example="):
        subprune.export(Mlp(), tmp_path / "x.pt2")
    assert subprune.export(Mlp(), tmp_path / "x.pt2", example=torch.zeros(4, 6)).difference <= 1e-4


# ---- how close is close enough -------------------------------------------------------------------

INF = float("inf")
LOWEST = torch.finfo(torch.float32).min
GAPS = {
    "its own scale": ([1e-20, 2e-20], [1e-20, 2.002e-20], 1e-3),
    "a large scale": ([1e20, 2e20], [1e20, 2.002e20], 1e-3),
    "nothing": ([0.0, 0.0], [0.0, 1e-6], 1e-6),
    "masked": ([-INF, 2.0], [-INF, 2.002], 1e-3),
    "masked by the lowest number": ([LOWEST, 2.0], [LOWEST, 2.002], 1e-3),
    "masked here and not there": ([-INF, 2.0], [0.0, 2.0], INF),
    "masked the other way round": ([-INF, 2.0], [INF, 2.0], INF),
    "not a number": ([1.0, 2.0], [1.0, float("nan")], INF),
    "not a number in both": ([float("nan"), 2.0], [float("nan"), 2.0], 0.0),
    "only masks": ([-INF, -INF], [-INF, -INF], 0.0),
    "whole numbers": ([1, 900], [1, 901], 0.5),
    "answers": ([True, False], [True, False], 0.0),
}


@pytest.mark.parametrize("case", GAPS)
def test_gap(case: str) -> None:
    a, b, gap = GAPS[case]
    assert relative_gap(torch.tensor(a), torch.tensor(b)) == pytest.approx(gap, rel=1e-3)


class Cancelling(nn.Module):
    """A small difference of large numbers: float32 itself is off by more than the file may be."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 400), nn.Linear(400, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.b(torch.relu(self.a(x)))
        return y, (y + 4000.0) - 4000.0


def test_rounding_of_pytorch_itself_is_allowed_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model, x = Cancelling().eval(), torch.randn(4, 6)
    with torch.no_grad():
        noise = relative_gap(copy.deepcopy(model).double()(x[:2].double())[1], model(x[:2])[1])
    assert noise > 1e-4

    def export_off_by(*shares: float) -> float:
        def off(file: Path) -> object:
            return lambda inputs: [
                z + s * z.abs().max() for z, s in zip(model(*inputs[0]), shares, strict=True)
            ]

        monkeypatch.setattr(sys.modules["subprune.io.export"], "_run_program", off)
        with torch.no_grad():
            return subprune.export(model, tmp_path / "x.pt2", example=x).difference

    assert export_off_by(0.0, 2 * noise) == pytest.approx(2 * noise, rel=0.2)
    (tmp_path / "x.pt2").unlink()
    for shares in ((3e-4, 0.0), (0.0, 5e-2)):
        with pytest.raises(StructureError, match="differs from PyTorch by"):
            export_off_by(*shares)
    assert not list(tmp_path.iterdir())
