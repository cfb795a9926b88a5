"""Exported files run, agree with PyTorch, and are not kept otherwise."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import subprune
from subprune.errors import DataError, OptionError, StructureError

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
    session = onnxruntime.InferenceSession(str(tmp_path / "small.onnx"), providers=["CPUExecutionProvider"])
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
