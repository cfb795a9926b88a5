"""``subprune eval``"""

from __future__ import annotations

import json
from pathlib import Path

import language_models as tiny
import numpy as np
import pytest
import torch
from run_cli import Run, runner

import subprune


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    return runner(monkeypatch, capsys)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with a tokenizer, and a text."""
    pytest.importorskip("transformers")
    place = tiny.write_llama(tmp_path_factory.mktemp("llama"))
    tiny.write_text(place / "text.txt")
    return place


def test_a_classifier_on_test_images(run: Run) -> None:
    done = run("eval", "lenet-mnist", "mnist-sample", "--dense", "lenet-mnist")
    assert done.code == 0, done.err
    assert "top-1 per input: 9" in done.out
    assert "top-5 per input: " in done.out
    assert "agreement with the dense model: 100.00% ± 0.00 of inputs" in done.out
    assert "inputs, as given" in done.out


def test_a_text(run: Run, folder: Path) -> None:
    done = run("eval", folder, folder / "text.txt", "--context", 32, "--tokens", 320, "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["tokens"] == 10 * 31
    assert "context 32, stride 32: 10 windows" in found["protocol"]
    from transformers import AutoTokenizer

    ids = AutoTokenizer.from_pretrained(folder)((folder / "text.txt").read_text())["input_ids"]
    own = subprune.evaluate(tiny.llama(), torch.tensor(ids)[:320], context=32, progress=False)
    assert found["perplexity"] == pytest.approx(own.perplexity, rel=1e-5)
    np.save(folder / "tokens.npy", np.array(ids))
    same = run("eval", folder, folder / "tokens.npy", "--context", 32, "--tokens", 320, "--json")
    assert json.loads(same.out)["perplexity"] == found["perplexity"]
    rest = run("eval", folder, folder / "text.txt", "--context", 32, "--skip", len(ids) - 64)
    assert f"from token {len(ids) - 64:,} on: 64 tokens of text" in rest.out


def test_sentences_for_an_encoder(run: Run, folder: Path, tmp_path: Path) -> None:
    tiny.bert().save_pretrained(tmp_path)
    place = ("eval", tmp_path, folder / "text.txt", "--tokenizer", folder, "--dense", tmp_path)
    done = run(*place, "--n-samples", 40)
    assert done.code == 0, done.err
    assert "mean cosine with the dense model: 1.0000" in done.out
    assert "40 inputs, as given" in done.out


def test_what_is_wrong_is_said(run: Run, folder: Path, tmp_path: Path) -> None:
    text = folder / "text.txt"
    cases = {
        "give its folder with --tokenizer": ("lenet-mnist", text),
        "holds no tokenizer that transformers can load": (folder, text, "--tokenizer", tmp_path),
        "--tokenizer is for texts": ("lenet-mnist", "mnist-sample", "--tokenizer", folder),
        "is not a file; check the path": (folder, tmp_path / "none.txt"),
        "--context must be at most 64": (folder, text, "--context", 100),
        "--skip must be from 0 to": (folder, text, "--skip", 10**6),
        "--skip is for texts": ("lenet-mnist", "mnist-sample", "--skip", 3),
        "which is not given; give both": (folder, text, "--dense-weights", text),
    }
    for words, args in cases.items():
        done = run("eval", *args)
        assert done.code == 2, args
        assert words in done.err.replace("\n", " ")


def test_a_folder_that_transformers_cannot_load(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    done = run("eval", tmp_path, "mnist-sample")
    assert done.code == 2
    assert "cannot be loaded by transformers" in done.err.replace("\n", " ")
