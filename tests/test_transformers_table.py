"""The script that makes the table of transformers, on tiny random models."""

from __future__ import annotations

import csv
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import language_models as tiny
import pytest

pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("default")

SCRIPT = Path(__file__).parents[1] / "experiments" / "transformers_table.py"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location(SCRIPT.stem, SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, SCRIPT.stem, module)
    spec.loader.exec_module(module)
    return module


def test_rows_are_made_once(script: ModuleType, tmp_path: Path) -> None:
    language, encoder = tiny.write_llama(tmp_path / "llama"), tmp_path / "bert"
    tiny.bert().save_pretrained(encoder)
    tiny.write_tokenizer(encoder)
    text = tiny.write_text(tmp_path / "text.txt", lines=60)
    named: list[Any] = [text, "--language", language, "--sentences", encoder]
    sizes = ["--inputs", 8, "--length", 16, "--windows", 2, "--context", 16, "--removed", 0.2]
    words = [str(x) for x in (*named, *sizes, "--results", tmp_path, "--variants")]
    script.main([*words, "flap"])
    first = (tmp_path / "language.csv").read_text()
    script.main([*words, "flap", "random"])
    assert (tmp_path / "language.csv").read_text().startswith(first)
    for name, figure in (("language", "ratio"), ("sentences", "cosine")):
        with (tmp_path / f"{name}.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert [row["variant"] for row in rows] == ["flap", "random"]
        for row in rows:
            assert float(row[figure]) > 0
            assert float(row["removed_measured"]) >= 0.19
            assert row["seconds"]
            assert row["machine"]


def test_training_goes_on_from_what_was_pruned_on_all_text(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    language = tiny.write_llama(tmp_path / "llama")
    text = tiny.write_text(tmp_path / "text.txt", lines=60)
    trained: list[tuple[Any, int]] = []
    recover = script.subprune.recover

    def seen(result: Any, data: Any, **options: Any) -> Any:
        trained.append((result, sum(len(batch["input_ids"]) for batch in data)))
        return recover(result, data, **{**options, "steps": 2})

    monkeypatch.setattr(script.subprune, "recover", seen)
    sizes = ["--inputs", 8, "--length", 16, "--windows", 2, "--context", 16, "--removed", 0.2]
    words = [str(x) for x in (text, "--language", language, *sizes, "--results", tmp_path)]
    script.main([*words, "--variants", "default", "recover on all text"])
    with (tmp_path / "language.csv").open(newline="") as file:
        default, more = csv.DictReader(file)
    ((result, inputs),) = trained
    assert script.DEFAULT.last[1] is result
    assert inputs > 8
    assert default["narrowest"] == more["narrowest"]
    assert float(more["cpu_seconds"]) > script.DEFAULT.last[2]
