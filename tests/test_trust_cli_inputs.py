"""Inputs people bring to the command line: folders of classes, sizes of images, and code that
fails.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from run_cli import Run, runner
from safetensors.torch import save_file
from torch import Tensor, nn

import subprune
from subprune.cli.arguments import Preparation
from subprune.cli.data import DataChoice, load_data
from subprune.data.batches import take
from subprune.errors import DataError, OptionError
from subprune.messages import FLAGS
from subprune.reading.arrays import read_arrays


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    monkeypatch.chdir(tmp_path)
    return runner(monkeypatch, capsys)


NET = """
import torch
def build(classes=3):
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Conv2d(1, 6, 3), torch.nn.ReLU(), torch.nn.Conv2d(6, 8, 3), torch.nn.ReLU(),
                               torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(8, classes))
def two():
    return build(2)
"""


def pictures(folder: Path, classes: int = 3, each: int = 20) -> None:
    """As many grey images of 6 × 6 pixels for each class; every pixel has the number of its class."""
    for c in range(classes):
        (folder / f"class_{c}").mkdir(parents=True)
        for i in range(each):
            np.save(
                folder / f"class_{c}" / f"{i:03}.npy", np.full((1, 6, 6), c, np.float32) + i / 1000
            )


# ---- rows of files -------------------------------------------------------------------------------


def write(path: Path, arrays: dict[str, Tensor]) -> None:
    if path.suffix == ".npy":
        np.save(path, arrays["x"].numpy())
    elif path.suffix == ".npz":
        np.savez_compressed(path, **{k: x.numpy() for k, x in arrays.items()})
    else:
        save_file(arrays, path)


@pytest.mark.parametrize("name", ["a.npy", "a.npz", "a.safetensors"])
def test_rows_of_a_file_are_drawn_by_seed(tmp_path: Path, name: str) -> None:
    x, y = torch.randn(100, 2, 3), torch.arange(100) // 25
    write(tmp_path / name, {"x": x, "labels": y})
    for seed in (0, 1):
        arrays = read_arrays(tmp_path / name, 20, seed)
        rows = [int((x == row).all((1, 2)).nonzero()) for row in arrays.get("x", arrays.get(""))]
        assert len(set(rows)) == 20
        assert {r // 25 for r in rows} == {0, 1, 2, 3}
        assert "labels" not in arrays or arrays["labels"].tolist() == y[rows].tolist()
    for n in (None, 100, 200):
        arrays = read_arrays(tmp_path / name, n)
        assert torch.equal(arrays.get("x", arrays.get("")), x)


def test_arrays_of_other_lengths_are_never_mixed(tmp_path: Path) -> None:
    write(tmp_path / "a.npz", {"x": torch.randn(100, 2), "labels": torch.arange(90)})
    with pytest.raises(DataError, match=r"arrays of different length: \{'x': 100, 'labels': 90\}"):
        load_data(DataChoice(str(tmp_path / "a.npz"), 20))


# ---- folders -------------------------------------------------------------------------------------


def test_a_folder_is_drawn_from_all_its_classes(tmp_path: Path) -> None:
    pictures(tmp_path / "images")
    inputs, labels = load_data(DataChoice(str(tmp_path / "images"), 12, seed=1))
    assert set(labels.tolist()) == {0, 1, 2}
    assert torch.equal(inputs[:, 0, 0, 0].floor().long(), labels)
    again, other = (load_data(DataChoice(str(tmp_path / "images"), 12, seed=s))[0] for s in (1, 2))
    assert torch.equal(again, inputs)
    assert not torch.equal(other, inputs)
    _, labels = load_data(DataChoice(str(tmp_path / "images"), 60))
    assert labels.tolist() == sorted(labels.tolist())
    np.save(tmp_path / "images" / "loose.npy", np.zeros((1, 6, 6), np.float32))
    # one belongs to no class
    assert isinstance(load_data(DataChoice(str(tmp_path / "images"))), Tensor)


def test_folders_are_labels_where_the_model_has_as_many_outputs(run: Run) -> None:
    pictures(Path("images"))
    Path("net.py").write_text(NET)
    args = (
        "prune",
        "--data",
        "images",
        "--keep",
        0.5,
        "--no-time-calls",
        "--no-guarantees",
        "--json",
    )
    done = run(*args, "--model", "net.py:build")
    assert done.code == 0, done.err
    report = json.loads(done.out)
    assert report["accuracy"] is not None
    done = run(*args, "--model", "net.py:two")
    assert done.code == 0, done.err
    report = json.loads(done.out)
    assert report["accuracy"] is None
    assert any(
        "3 folders in images are not used as labels" in n and "2 outputs" in n
        for n in report["notes"]
    )
    done = run(*args[:-1], "--model", "net.py:two", "--dry-run")
    assert "not used as labels" in done.err
    two = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, 2))
    notes = subprune.prune(two, "images", keep=0.5, progress=False, time_calls=False).report.notes
    assert any("3 folders in images are not used as labels" in note for note in notes)


# ---- sizes ---------------------------------------------------------------------------------------


def test_arrays_of_images_are_resized(tmp_path: Path) -> None:
    x = torch.rand(5, 3, 8, 10)
    np.save(tmp_path / "x.npy", x.numpy())
    found = load_data(DataChoice(str(tmp_path / "x.npy"), preparation=Preparation(resize=4)))
    expected = torch.nn.functional.interpolate(x, (4, 4), mode="bilinear", antialias=True)
    assert torch.allclose(found, expected)
    np.savez(tmp_path / "x.npz", x=(x * 255).byte().numpy(), labels=np.arange(5))
    inputs, labels = load_data(
        DataChoice(str(tmp_path / "x.npz"), preparation=Preparation(resize=4, mean="0.5"))
    )
    assert inputs.shape == (5, 3, 4, 4)
    assert len(labels) == 5


UNFIT: dict[str, tuple[dict[str, np.ndarray], str]] = {
    "rows": (
        {"x": np.zeros((5, 6), np.float32)},
        r"resize is for images .*float32 of shape \(5, 6\)",
    ),
    "channels last": (
        {"x": np.zeros((5, 8, 8, 3), np.float32)},
        r"channels last; .*transpose\(0, 3, 1, 2\)",
    ),
    "several": (
        {"a": np.zeros((5, 3, 8, 8)), "b": np.zeros((5, 2))},
        "arrays a, b are passed on as they are",
    ),
}


@pytest.mark.parametrize("case", UNFIT)
def test_what_cannot_be_resized_is_refused(tmp_path: Path, case: str) -> None:
    arrays, text = UNFIT[case]
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(OptionError, match=text):
        load_data(DataChoice(str(tmp_path / "x.npz"), preparation=Preparation(resize=4)))


def test_prepared_data_is_not_prepared_again(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="cannot be applied to --data mnist-sample") as caught:
        load_data(DataChoice("mnist-sample", preparation=Preparation(resize=4, mean="0.5")))
    assert caught.value.spelled(FLAGS).startswith("--resize and --mean cannot be applied")
    with pytest.raises(OptionError, match="std cannot be applied to --data a:b, which has to do"):
        load_data(DataChoice("a:b", preparation=Preparation(std="2")))


# ---- code that fails -----------------------------------------------------------------------------

BROKEN = """import sys
import torch
def helper():
    return torch.nn.Linear(3, 4)(torch.zeros(5, 7))
def build():
    return helper()
def leaves():
    sys.exit(3)
def batches():
    yield torch.zeros(4, 1, 28, 28)
    raise ValueError("the disk is gone")
"""


def test_a_model_that_cannot_be_built_says_where(run: Run) -> None:
    Path("broken_net.py").write_text(BROKEN)
    args = ("prune", "--data", "mnist-sample", "--keep", 0.5, "--model")
    for spec in ("broken_net.py:build", "broken_net:build"):
        done = run(*args, spec)
        assert done.code == 2
        said = " ".join(done.err.split())
        assert (
            f"--model {spec} failed in broken_net.py, line 4, in helper: RuntimeError: mat1 and mat2"
            in said
        )
        assert "--debug shows the traceback" in said
        assert "Traceback" not in said
    done = run(*args, "broken_net.py:leaves")
    assert "line 8, in leaves: it left Python with exit code 3" in " ".join(done.err.split())
    Path("wrong.py").write_text("import torch\n\ndef build(:\n")
    assert "wrong.py, line 3" in run(*args, "wrong.py:build").err
    Path("early.py").write_text("x = 1\ny = x / 0\n")
    assert (
        "ZeroDivisionError: division by zero (early.py, line 2, in <module>)"
        in run(*args, "early.py:build").err
    )


@pytest.mark.parametrize("where", [0, 6])
def test_debug_shows_the_traceback(run: Run, where: int) -> None:
    Path("broken_net.py").write_text(BROKEN)
    args = ["prune", "--data", "mnist-sample", "--keep", "0.5", "--model=broken_net.py:build"]
    done = run(*args[:where], "--debug", *args[where:])
    assert done.code == 2
    assert "Traceback" in done.err
    assert "in helper" in done.err
    assert "error: --model broken_net.py:build failed" in " ".join(done.err.split())
    assert "--debug" in run("--help").out


def test_data_that_fails_on_the_way_is_not_called_a_bug(run: Run) -> None:
    Path("broken_net.py").write_text(BROKEN)
    done = run("prune", "--model", "lenet-mnist", "--data", "broken_net.py:batches", "--keep", 0.5)
    assert done.code == 2
    said = " ".join(done.err.split())
    assert (
        "your code failed in broken_net.py, line 11, in batches: ValueError: the disk is gone"
        in said
    )
    assert "a bug" not in said


def test_bounds_are_of_the_inputs_that_were_drawn(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both draws from a callable's data use the seed of the command."""
    seeds = []

    def drawn(data: object, model: nn.Module, n_samples: int, **options: Any) -> Any:
        seeds.append((n_samples, options.get("seed")))
        return take(data, model, n_samples, **options)

    monkeypatch.setattr("subprune.ready.take", drawn)
    monkeypatch.setattr(
        "subprune.guarantees.certificates.batches",
        lambda *args, **options: drawn(*args, **options).batches,
    )
    Path("net.py").write_text(NET + "def data():\n    return torch.rand(80, 1, 6, 6)\n")
    done = run(
        "prune",
        "--model",
        "net.py:build",
        "--data",
        "net.py:data",
        "--keep",
        0.5,
        "--method",
        "asym-in-change",
        "--n-samples",
        16,
        "--seed",
        5,
        "--guarantees",
        "--no-time-calls",
    )
    assert done.code == 0, done.err
    assert seeds == [(16, 5), (16, 5)]
