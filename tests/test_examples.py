"""The examples run, on a tiny random language model."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import language_models as tiny
import pytest
import torch

import subprune

pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("default")

EXAMPLES = Path(__file__).parents[1] / "examples"


def example(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as a module; what it imports from beside itself is found."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """The arguments of a script."""
    folder, text = tiny.write_llama(tmp_path / "llama"), tiny.write_text(tmp_path / "text.txt")
    given: list[Any] = [folder, text, "--output", tmp_path / "out"]
    return [str(x) for x in (*given, "--sequences", 16, "--length", 16)]


def needs(*packages: str) -> pytest.MarkDecorator:
    missing = [p for p in packages if importlib.util.find_spec(p) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


def test_recover(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    example("prune_recover", monkeypatch).main(words, minutes=0.05)
    shown = capsys.readouterr().out
    assert shown.count("perplexity: ") == 2
    loaded = subprune.load(tiny.llama(), tmp_path / "out" / "recovered.safetensors")
    assert loaded.model.layers[0].mlp.up_proj.out_features < 20


@needs("peft")
def test_lora(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    example("prune_lora", monkeypatch).main(words)
    assert capsys.readouterr().out.count("perplexity: ") == 2
    assert (tmp_path / "out" / "adapted.safetensors").is_file()


def test_quantise(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    if not torch.backends.quantized.supported_engines and not importlib.util.find_spec("torchao"):
        pytest.skip("this PyTorch has no quantised layers, and torchao is not installed")
    example("prune_quantise", monkeypatch).main(words)
    first, second = (
        float(line.split(": ")[1].split()[0])
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("perplexity: ")
    )
    assert second == pytest.approx(first, rel=0.1)


def test_torch_export(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    example("prune_export", monkeypatch).main(words, endings=(".pt2",))
    assert "differs from PyTorch by" in capsys.readouterr().out
    assert (tmp_path / "out" / "small.pt2").is_file()


@needs("onnx", "onnxruntime", "onnxscript")
def test_onnx(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    example("prune_export", monkeypatch).main(words, endings=(".onnx",))
    assert (tmp_path / "out" / "small.onnx").is_file()
