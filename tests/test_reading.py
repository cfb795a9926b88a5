"""Data people have: data sets, generators, class folders, tables, texts, data sets on disk."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from run_cli import Run, runner
from torch import Tensor, nn
from torch.utils.data import Dataset

import subprune
from subprune.errors import DataError, OptionError
from subprune.reading.reader import read_data
from subprune.reading.records import read_dataset

WORDS = [
    "the",
    "cat",
    "sat",
    "on",
    "a",
    "mat",
    "and",
    "saw",
    "how",
    "one",
    "dog",
    "ran",
    "far",
    "away",
    "from",
    "it",
    "all",
    "day",
    "long",
]


def net(inputs: int = 6) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(inputs, 16), nn.ReLU(), nn.Linear(16, 3))


class Words:
    """As a tokenizer of the transformers library, as far as it is used: a number for each word."""

    pad_token: str | None = None
    eos_token, eos_token_id = "<end>", 1

    def __call__(self, text: Any, **how: Any) -> dict[str, Any]:
        if isinstance(text, str):
            return {"input_ids": [2 + WORDS.index(w) % 30 for w in text.split() if w in WORDS]}
        rows = [self(t)["input_ids"][: how["max_length"]] for t in text]
        longest = max(map(len, rows))
        ids = torch.tensor([r + [0] * (longest - len(r)) for r in rows])
        mask = torch.tensor([[1] * len(r) + [0] * (longest - len(r)) for r in rows])
        return {"input_ids": ids, "attention_mask": mask}


class Causal(nn.Module):
    """Each answer depends on its own token and the one before."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(32, 8)
        self.up, self.head = nn.Linear(16, 24), nn.Linear(24, 32)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embed(input_ids)
        before = torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], 1)
        out: Tensor = self.head(torch.relu(self.up(torch.cat([x, before], -1))))
        return out


class Sentiment(nn.Module):
    """One answer for a sentence."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.up, self.head = nn.Embedding(32, 8), nn.Linear(8, 24), nn.Linear(24, 2)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = torch.relu(self.up(self.embed(input_ids))) * attention_mask[..., None]
        out: Tensor = self.head(x.sum(1) / attention_mask.sum(1, keepdim=True))
        return out


def counts(model: nn.Module, data: Any, **options: Any) -> dict[str, int]:
    given = {"keep": 0.5, "progress": False, "time_calls": False, **options}
    return subprune.prune(model, data, **given).plan.counts


# ---- in memory -----------------------------------------------------------------------------------


class Samples(Dataset[Any]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, i: int) -> tuple[np.ndarray, int]:
        return np.full(6, i, np.float32) / 40, i % 3


class Columns:
    """As a data set of the datasets library: lists, and tensors where these are asked for."""

    column_names = ("input",)

    def __init__(self, tensors: bool = False) -> None:
        self.tensors = tensors

    def with_format(self, kind: str) -> Columns:
        assert kind == "torch"
        return Columns(tensors=True)

    def __len__(self) -> int:
        return 40

    def __getitem__(self, i: int) -> dict[str, Any]:
        row = [float(i % 7), 1.0, 2.0, 0.5, -1.0, i / 40]
        return {"input": torch.tensor(row) if self.tensors else row}


def stream() -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        yield torch.randn(16, 6, generator=generator)


@pytest.mark.parametrize(
    "data",
    [Samples(), Columns(), stream(), np.random.default_rng(0).normal(size=(40, 6))],
    ids=["data set", "hugging face", "generator", "numpy"],
)
def test_data_in_memory(data: Any) -> None:
    assert counts(net(), data) == {"0": 8}


# ---- tables --------------------------------------------------------------------------------------


def numbers(path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(50, 6))
    with path.open("w", newline="") as file:
        writer = csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",")
        writer.writerow([*"abcdef", "label"])
        writer.writerows([*row, i % 3] for i, row in enumerate(rows))


@pytest.mark.parametrize("name", ["t.csv", "t.tsv"])
def test_a_table_of_numbers_has_one_input_in_each_row(tmp_path: Path, name: str) -> None:
    numbers(tmp_path / name)
    inputs, labels = read_data(tmp_path / name)
    assert inputs.shape == (50, 6)
    assert inputs.dtype == torch.float32
    assert labels.tolist() == [i % 3 for i in range(50)]
    few, some = read_data(tmp_path / name, n_samples=10, seed=1)
    assert len(few) == len(some) == 10
    assert counts(net(), str(tmp_path / name)) == {"0": 8}
    report = subprune.prune(net(), tmp_path / name, keep=0.5, progress=False).report
    assert report.accuracy is not None


def sentences(count: int = 40) -> list[str]:
    random = np.random.default_rng(0)
    return [" ".join(random.choice(WORDS, 3 + i % 5)) for i in range(count)]


def table(path: Path, columns: dict[str, list[Any]]) -> Path:
    """Columns as a file of the kind that its name says."""
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    if path.suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(columns))
            writer.writeheader()
            writer.writerows(rows)
    elif path.suffix == ".jsonl":
        path.write_text("\n".join(map(json.dumps, rows)))
    else:
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        parquet.write_table(pyarrow.table(columns), path)
    return path


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_texts_of_a_table_with_labels(tmp_path: Path, kind: str) -> None:
    columns: dict[str, list[Any]] = {"sentence": sentences(), "label": [i % 2 for i in range(40)]}
    path = table(tmp_path / f"t.{kind}", columns)
    batches = read_data(path, Sentiment(), tokenizer=Words())
    assert [len(b["labels"]) for b in batches] == [32, 8]
    assert batches[0]["input_ids"].shape == batches[0]["attention_mask"].shape
    report = subprune.prune(Sentiment(), batches, keep=0.5, progress=False).report
    assert report.accuracy is not None


@pytest.mark.parametrize("kind", ["txt", "csv", "parquet"])
def test_texts_for_a_causal_model_are_windows_of_tokens(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"t.{kind}"
    if kind == "txt":
        path.write_text("\n\n".join(sentences()))
    else:
        table(path, {"text": sentences()})
    tokens = read_data(path, Causal(), tokenizer=Words(), context=8)
    total = sum(len(s.split()) + 1 for s in sentences())
    assert tokens.shape == (total // 8, 8)
    assert int((tokens == 1).sum()) >= 35  # an end after every text
    few = read_data(path, Causal(), tokenizer=Words(), context=8, n_samples=5, seed=2)
    assert few.shape == (5, 8)
    assert counts(Causal(), tokens) == {"embed": 4, "up": 12}


def test_which_column_holds_the_texts(tmp_path: Path) -> None:
    two = {"title": sentences(), "body": sentences()}
    path = table(tmp_path / "t.csv", two)
    with pytest.raises(OptionError, match=r"several columns of texts, title, body: .* column="):
        read_data(path, Causal(), tokenizer=Words())
    with pytest.raises(OptionError, match="column='boby': did you mean 'body'"):
        read_data(path, Causal(), tokenizer=Words(), column="boby")
    assert read_data(path, Causal(), tokenizer=Words(), column="body", context=4).shape[1] == 4


# ---- data sets of Hugging Face -------------------------------------------------------------------


def dataset(folder: Path, columns: dict[str, list[Any]]) -> Path:
    """What save_to_disk writes, as far as it is read."""
    pyarrow = pytest.importorskip("pyarrow")
    folder.mkdir(parents=True)
    content = pyarrow.table(columns)
    file = str(folder / "data-00000-of-00001.arrow")
    with (
        pyarrow.OSFile(file, "wb") as sink,
        pyarrow.ipc.new_stream(sink, content.schema) as writer,
    ):
        writer.write_table(content)
    for name in ("dataset_info.json", "state.json"):
        (folder / name).write_text("{}")
    return folder


def test_a_data_set_on_disk(tmp_path: Path) -> None:
    folder = dataset(tmp_path / "d", {"text": sentences(), "label": [0, 1] * 20})
    batches = read_data(folder, Sentiment(), tokenizer=Words(), n_samples=10)
    assert sum(len(b["labels"]) for b in batches) == 10
    splits = tmp_path / "s"
    dataset(splits / "train", {"text": ["the cat"] * 4})
    (splits / "dataset_dict.json").write_text("{}")
    assert read_dataset(splits) == {"text": ["the cat"] * 4}
    (splits / "train").rename(splits / "test")
    with pytest.raises(DataError, match=r"none called 'train'; give the folder of one: test"):
        read_dataset(splits)


def test_images_of_a_data_set_on_disk(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    files = []
    for i in range(6):
        image.fromarray(np.full((5, 4), 40 * i, np.uint8)).save(tmp_path / f"{i}.png")
        files.append({"bytes": (tmp_path / f"{i}.png").read_bytes(), "path": f"{i}.png"})
    folder = dataset(tmp_path / "d", {"image": files, "label": [0, 1, 2] * 2})
    inputs, labels = read_data(folder, resize=8)
    assert inputs.shape == (6, 1, 8, 8)
    assert torch.allclose(inputs[:, 0, 0, 0] * 255, torch.arange(6) * 40.0)
    assert labels.tolist() == [0, 1, 2] * 2


def test_tokens_of_a_data_set_are_arguments(tmp_path: Path) -> None:
    ids = [[2 + (i + j) % 30 for j in range(5)] for i in range(12)]
    columns: dict[str, list[Any]] = {"input_ids": ids, "attention_mask": [[1] * 5] * 12}
    data = read_data(dataset(tmp_path / "d", columns))
    assert counts(Sentiment(), data) == {"embed": 4, "up": 12}


# ---- folders -------------------------------------------------------------------------------------


def test_class_folders_are_labels_and_images_are_prepared(tmp_path: Path) -> None:
    for c in range(3):
        (tmp_path / f"class{c}").mkdir()
        for i in range(4):
            np.save(tmp_path / f"class{c}" / f"{i}.npy", np.full((3, 4, 6), c / 4, np.float32))
    inputs, labels = read_data(tmp_path, resize=5, mean=(0.25, 0.25, 0.25), std=0.5)
    assert inputs.shape == (12, 3, 5, 5)
    assert torch.allclose(inputs[:, 0, 0, 0], (labels / 4 - 0.25) / 0.5, atol=1e-6)
    own, _ = read_data(tmp_path, prepare=lambda image: image[:, :2, :2] + 1)
    assert own.shape == (12, 3, 2, 2)
    assert float(own.min()) == 1.0


# ---- refusals ------------------------------------------------------------------------------------


def wrong(tmp_path: Path) -> dict[str, tuple[str, str]]:
    """Content of a file by its name, and what is said of it."""
    return {
        "a.csv": ("", "is empty; its first line names the columns"),
        "b.csv": ("x,x\n1,2\n", "a different name for every column"),
        "c.csv": (
            "x,y\n1,2\n3\n",
            "line 3 of .* has 1 cells, the first line 2; give every line the same number",
        ),
        "d.csv": ("x,y\n", "holds no record"),
        "e.csv": ("x,z\n1,2\n,3\n", "column 'x' of .* does not hold a number in every row"),
        "f.jsonl": ('{"a": 1}\n{"b": 2}\n', "line 2 of .* with the keys of the first"),
        "g.jsonl": ('{"a": 1}\n{"a": ', "line 2 of .* is not JSON .*at character 6"),
        "h.parquet": ("no", "damaged or not what its name says"),
        "i.txt": (" \n", "has no text in it"),
        "k.csv": ("x;y\n1;2\n3;4\n", "separated by semicolons, its first line is 'x;y'; save it"),
        "l.csv": ("x,day\n1,2020-01-01\n", "column 'day' of .* holds texts, such as '2020-01-01'"),
        "m.npy": ("no", "is not a file that numpy.save wrote; save the array again"),
        "j.xls": ("no", "cannot be read; give a .npy"),
    }


@pytest.mark.parametrize("name", wrong(Path()))
def test_files_that_cannot_be_read_say_why(tmp_path: Path, name: str) -> None:
    content, words = wrong(tmp_path)[name]
    (tmp_path / name).write_text(content)
    tokenizer = Words() if name.endswith(".txt") else None
    with pytest.raises((DataError, OptionError), match=words):
        read_data(tmp_path / name, Sentiment(), tokenizer=tokenizer)


def test_options_that_would_have_no_effect_are_refused(tmp_path: Path) -> None:
    numbers(tmp_path / "t.csv")
    (tmp_path / "t.txt").write_text("the cat")
    with pytest.raises(OptionError, match=r"tokenizer cannot be applied to data .* is not text"):
        read_data(tmp_path / "t.csv", tokenizer=Words())
    with pytest.raises(OptionError, match=r"resize cannot be applied to data .* which is text"):
        read_data(tmp_path / "t.txt", Causal(), tokenizer=Words(), resize=8)
    with pytest.raises(OptionError, match="give its folder as tokenizer="):
        read_data(tmp_path / "t.txt", Causal())
    with pytest.raises(OptionError, match="give model="):
        read_data(tmp_path / "t.txt", tokenizer=Words())
    with pytest.raises(DataError, match=r"data 'no\.csv' is not a file"):
        subprune.prune(net(), "no.csv", keep=0.5)


def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    with pytest.raises(OptionError, match=r"pip install 'subprune\[tables\]'"):
        read_data(tmp_path / "t.parquet")
    monkeypatch.setitem(sys.modules, "transformers", None)
    (tmp_path / "t.txt").write_text("the cat")
    with pytest.raises(OptionError, match=r"pip install 'subprune\[text\]'"):
        read_data(tmp_path / "t.txt", Causal(), tokenizer=tmp_path)


# ---- the command line ----------------------------------------------------------------------------


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    monkeypatch.chdir(tmp_path)
    return runner(monkeypatch, capsys)


def test_a_table_from_the_command_line(run: Run, tmp_path: Path) -> None:
    numbers(Path("t.csv"))
    Path("net.py").write_text(
        "from torch import nn\n"
        "def build():\n    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))\n"
    )
    args = ("prune", "--model", "net.py:build", "--data", "t.csv", "--keep", 0.5)
    done = run(*args, "--no-guarantees", "--output", "small")
    assert done.code == 0, done.err
    assert "accuracy on" in done.out
    assert "time: " in done.out
    assert "loading the data" in done.out
    assert "pruning" in done.out.split("time: ")[1]
    done = run(*args, "--tokenizer", ".")
    assert done.code == 2
    assert "--tokenizer cannot be applied to --data t.csv, which is not text" in done.err


def test_other_data_may_be_a_path_too(tmp_path: Path) -> None:
    path, model = tmp_path / "rows.npz", nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    np.savez(path, x=np.random.default_rng(0).normal(size=(40, 3)), labels=np.arange(40) % 2)
    result = subprune.prune(model, path, keep=0.5, verify_data=str(path), progress=False)
    assert result.report.accuracy_on == "the verification data"
    assert result.report.verified is not None
    assert result.report.verified.inputs == 40
    recovered = subprune.recover(result, path, steps=2, progress=False)
    assert recovered.recovery is not None


def test_what_only_read_data_can_be_told_is_said_so(tmp_path: Path) -> None:
    path = tmp_path / "texts.csv"
    path.write_text("text\nhello there\n")
    with pytest.raises(
        OptionError, match=r"as tokenizer= \(an option of subprune.read_data, whose"
    ):
        subprune.prune(Causal(), path, keep=0.5)
    with pytest.raises(
        DataError, match=r"cannot be read; give .*, or what subprune.read_data\(path, model"
    ):
        subprune.evaluate(Causal(), str(path))
