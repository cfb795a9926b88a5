"""The command line: what it writes, what it prints, how it ends."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from run_cli import Run, runner
from safetensors.torch import save_file
from torch import Tensor

import subprune
from subprune.budget.cache import Cache
from subprune.cli.app import app
from subprune.errors import StructureError
from subprune.zoo.models import LeNet

FAST = ("--method", "layer-in-change", "--n-samples", 40)
LENET = ("--model", "lenet-mnist", "--data", "mnist-sample", *FAST)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    return runner(monkeypatch, capsys)


def test_prune_report_export(run: Run, tmp_path: Path) -> None:
    small = tmp_path / "small"
    done = run(
        "prune", *LENET, "--compression", 4, "--output", small, "--time-calls", "--guarantees"
    )
    assert done.code == 0, done.err
    assert "conv1" in done.out
    assert sorted(p.name for p in small.iterdir()) == [
        "model.safetensors",
        "report.html",
        "report.json",
    ]
    again = subprune.load(LeNet(), small / "model.safetensors")
    report = subprune.Report.from_json((small / "report.json").read_bytes())
    assert sum(p.numel() for p in again.parameters()) == report.parameters[1]
    assert report.command.startswith("subprune prune --model lenet-mnist")
    assert report.guarantees
    assert report.latency is not None
    exported = run(
        "export", small / "model.safetensors", "--model", "lenet", "--torch-export", "--json"
    )
    assert exported.code == 0, exported.err
    assert json.loads(exported.out)[0]["difference"] <= 1e-4
    shown = run("report", small)
    assert "conv2" in shown.out
    page = run("report", small / "model.safetensors", "--html", tmp_path / "page.html")
    assert page.code == 0
    assert "model.pt2" in (small / "report.html").read_text()
    assert "<svg" in (tmp_path / "page.html").read_text()


def test_bounds_speak_of_what_was_done(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default where it is quick, never for a method they are not about, and not at the cost of
    the result.
    """
    args = ("prune", *LENET, "--keep", 0.5, "--output")

    def bounds(name: str, *more: object) -> list[Any]:
        done = run(*args, tmp_path / name, *more)
        assert done.code == 0, done.err
        assert "Guarantees" in (tmp_path / name / "report.html").read_text()
        return json.loads((tmp_path / name / "report.json").read_text())["guarantees"]

    assert len(bounds("default")) == 4
    assert not bounds("none", "--no-guarantees")
    assert not bounds("norm", "--method", "layer-weight-norm")
    assert len(bounds("patches", "--patches", "random", "--seed", 3, "--guarantees")) == 4
    seconds = json.loads((tmp_path / "patches" / "report.json").read_text())
    assert seconds["parts"]["guarantees"] > 0
    assert sum(seconds["parts"].values()) == pytest.approx(seconds["seconds"], rel=0.01)
    assert not bounds("recalibrated", "--batchnorm", "recalibrate")
    others = (("--batchnorm", "recalibrate"), ("--batchnorm", "sequential"), ("--epsilon", 0.5))
    for more in (("--method", "layer-weight-norm"), ("--fit", "keep"), *others):
        refused = run(*args, tmp_path / "refused", "--guarantees", *more)
        assert refused.code == 2
        assert "bounds are proven for" in refused.err
    assert not (tmp_path / "refused").exists()

    def fails(*_: object, **__: object) -> None:
        raise StructureError("no bounds today")

    monkeypatch.setattr("subprune.guarantees.certificates.guarantees", fails)
    assert not bounds("failed")


def test_json_is_all_that_is_printed(run: Run, tmp_path: Path) -> None:
    for args in (
        ("prune", *LENET, "--keep", 0.5, "--output", tmp_path / "a", "--json"),
        ("prune", *LENET, "--params", "50%", "--dry-run", "--json"),
        ("inspect", "--model", "lenet", "--data", "mnist-sample", "--json"),
        ("methods", "--json"),
    ):
        done = run(*args)
        assert done.code == 0, done.err
        json.loads(done.out)
    assert not (tmp_path / "pruned").exists()


def test_help_has_examples(run: Run) -> None:
    for command in typer.main.get_command(app).list_commands(None):  # type: ignore[attr-defined]
        done = run(command, "--help")
        assert done.code == 0
        assert "Example" in done.out, command
        assert f"subprune {command}" in " ".join(done.out.split()), command
    assert "completion" in run("--help").out
    assert run("--version").out.startswith("subprune ")
    assert "asym-in-change" in run("methods").out


def test_switches_are_shown_without_a_value(run: Run) -> None:
    for command in ([], ["prune"], ["experiment", "run"]):
        shown = run(*command, "--help").out
        assert "--help" in shown
        assert "bool" not in shown.lower()


# ---- models, weights and data --------------------------------------------------------------------


def mlp() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.ReLU(), torch.nn.Linear(12, 3))


SOURCE = """
import torch
def build():
    return torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.ReLU(), torch.nn.Linear(12, 3))
def batches():
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(20, 6, generator=generator)]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model, its weights in three files, and the same inputs in several."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nets_of_mine.py").write_text(SOURCE)
    state = mlp().state_dict()
    save_file(state, tmp_path / "w.safetensors")
    torch.save(state, tmp_path / "w.pt")
    torch.save(
        {"state_dict": {f"module.{k}": v for k, v in state.items()}, "epoch": 3}, tmp_path / "w.pth"
    )
    x = torch.randn(20, 6, generator=torch.Generator().manual_seed(1))
    np.save(tmp_path / "x.npy", x.numpy())
    np.savez(tmp_path / "x.npz", x=x.numpy().astype(np.float64), labels=np.arange(20) % 3)
    np.savez_compressed(tmp_path / "z.npz", inputs=x.numpy())
    save_file({"x": x, "labels": torch.arange(20) % 3}, tmp_path / "x.safetensors")
    return tmp_path


def kept(out: str) -> Any:
    return [g["kept"] for g in json.loads(out)["plan"]["groups"]]


def test_sources_agree(run: Run, folder: Path) -> None:
    seen = set()
    for model in ("nets_of_mine:build", "nets_of_mine.py:build"):
        for weights in ("w.safetensors", "w.pt", "w.pth"):
            for data in ("x.npy", "x.npz", "z.npz", "x.safetensors", "nets_of_mine:batches"):
                if model.endswith("py:build") and data != "x.npy":
                    continue
                done = run(
                    "prune",
                    "--model",
                    model,
                    "--weights",
                    weights,
                    "--data",
                    data,
                    "--keep",
                    0.5,
                    "--json",
                )
                assert done.code == 0, done.err
                seen.add(json.dumps(kept(done.out)))
    assert len(seen) == 1


def test_saved_small_models_are_weights_too(run: Run, folder: Path) -> None:
    first = ("prune", "--model", "nets_of_mine:build", "--data", "x.npy", "--keep", 0.5)
    assert run(*first, "--weights", "w.pt", "--output", "once").code == 0
    assert run(*first, "--weights", "once/model.safetensors", "--output", "twice").code == 0
    again = subprune.load(mlp(), "twice/model.safetensors")
    assert again[0].out_features == 3


def image(x: Tensor, path: Path) -> None:
    pixels = (x * 255).round().to(torch.uint8).numpy()
    header = (
        f"P{6 if pixels.shape[0] == 3 else 5}\n# drawn\n{pixels.shape[2]} {pixels.shape[1]}\n255\n"
    )
    path.write_bytes(header.encode() + pixels.transpose(1, 2, 0).tobytes())


def test_a_folder_of_images(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shown = torch.rand(12, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    (tmp_path / "images" / "more").mkdir(parents=True)
    for i, x in enumerate(shown):
        if i % 3 == 0:
            image(x, tmp_path / "images" / f"{i:02}.pgm")
        elif i % 3 == 1:
            np.save(tmp_path / "images" / f"{i:02}.npy", (x * 255).round().byte().numpy())
        else:
            image(x, tmp_path / "images" / "more" / f"{i:02}.pgm")
    (tmp_path / "images" / "notes.txt").write_text("not an image")
    args = (
        "prune",
        "--model",
        "lenet-mnist",
        "--data",
        "images",
        "--mean",
        "0.1307",
        "--std",
        "0.3081",
        "--keep",
        0.5,
    )
    done = run(*args, "--output", "small")
    assert done.code == 0, done.err
    assert subprune.Report.from_json(Path("small/report.json").read_bytes()).samples == 12
    image(torch.rand(1, 30, 30), tmp_path / "images" / "odd.pgm")
    assert "--resize" in run(*args).err
    assert run(*args, "--resize", 28).code == 0
    image(torch.rand(3, 28, 28), tmp_path / "images" / "odd.pgm")
    assert "differ in size or colour" in run(*args).err


def test_pillow_reads_what_it_knows(tmp_path: Path) -> None:
    pil = pytest.importorskip(
        "PIL.Image", reason="Pillow is not installed: pip install 'subprune[images]'"
    )
    from subprune.reading.arrays import read_image

    pixels = np.random.default_rng(0).integers(0, 256, (9, 7, 3), dtype=np.uint8)
    pil.fromarray(pixels).save(tmp_path / "a.png")
    assert torch.equal(
        read_image(tmp_path / "a.png"), torch.from_numpy(pixels.transpose(2, 0, 1)).float() / 255
    )


# ---- stopping and going on -----------------------------------------------------------------------


def interrupting() -> Iterator[Tensor]:
    yield torch.randn(4, 1, 28, 28)
    os.kill(os.getpid(), signal.SIGINT)
    yield torch.randn(4, 1, 28, 28)


def test_ctrl_c_leaves_nothing_half_written(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = ("--data", f"{__name__}:interrupting")
    heeded = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may ignore it
    done = run(
        "prune", "--model", "lenet-mnist", *data, "--keep", 0.5, "--output", tmp_path / "small"
    )
    signal.signal(signal.SIGINT, heeded)
    assert done.code == 130
    assert "stopped" in done.err
    assert not list((tmp_path / "small").iterdir()) if (tmp_path / "small").exists() else True

    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", stopped)
        assert run("prune", *LENET, "--keep", 0.5, "--output", tmp_path / "late").code == 130
    assert not list((tmp_path / "late").iterdir())


def test_long_work_goes_on(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped after two of four accuracy curves, the same command measures only the other two."""
    args = (
        "prune",
        *LENET,
        "--allocate",
        "equal-agreement",
        "--compression",
        3,
        "--output",
        tmp_path / "small",
    )
    write, written = Cache.write, []

    def counted(self: Cache, name: str, entry: Any) -> None:
        if len(written) == 2:
            raise KeyboardInterrupt
        write(self, name, entry)
        written.append(name)

    with monkeypatch.context() as patch:
        patch.setattr(Cache, "write", counted)
        assert run(*args).code == 130
    seen: list[str] = []
    monkeypatch.setattr(
        Cache, "write", lambda self, name, entry: (seen.append(name), write(self, name, entry))
    )
    assert run(*args).code == 0
    assert sorted(seen + written) == ["conv1", "conv2", "fc1", "fc2"]


# ---- bad input -----------------------------------------------------------------------------------

WRONG: dict[str, tuple[tuple[object, ...], str]] = {
    "no goal": (("prune", *LENET), "give one goal"),
    "two goals": (("prune", *LENET, "--keep", 0.5, "--speedup", 2), "give one goal"),
    "too much": (("prune", *LENET, "--compression", 1e9), "nearest feasible"),
    "too much, dry": (("prune", *LENET, "--compression", 1e9, "--dry-run"), "nearest feasible"),
    "a model's name": (
        ("prune", "--model", "lenett", "--data", "mnist-sample", "--keep", 0.5),
        "did you mean 'lenet'",
    ),
    "no such module": (
        ("prune", "--model", "nowhere:f", "--data", "mnist-sample", "--keep", 0.5),
        "there is no module",
    ),
    "no such name": (
        ("prune", "--model", "json:dumpz", "--data", "mnist-sample", "--keep", 0.5),
        "did you mean 'dump",
    ),
    "not a model": (
        ("prune", "--model", "os:getcwd", "--data", "mnist-sample", "--keep", 0.5),
        "an object of type str",
    ),
    "a failing callable": (
        ("prune", "--model", "json:loads", "--data", "mnist-sample", "--keep", 0.5),
        "needs arguments (s)",
    ),
    "data": (
        ("prune", "--model", "lenet-mnist", "--data", "mnist-smaple", "--keep", 0.5),
        "did you mean 'mnist-sample'",
    ),
    "no data file": (
        ("prune", "--model", "lenet-mnist", "--data", "no.npy", "--keep", 0.5),
        "not a file",
    ),
    "no weights": (("prune", *LENET, "--weights", "no.pt", "--keep", 0.5), "not a file"),
    "budgets": (("prune", *LENET, "--budgets", "conv1"), "GROUP=UNITS"),
    "a group": (("prune", *LENET, "--budgets", "conv9=1"), "did you mean"),
    "a method": (("prune", *LENET, "--keep", 0.5, "--method", "asym"), "asym-in-change"),
    "a rule": (("prune", *LENET, "--compression", 2, "--allocate", "eror"), "'error'"),
    "an option": (("prune", *LENET, "--kep", 0.5), "--keep"),
    "a number": (("prune", *LENET, "--keep", "half"), "a fraction above 0"),
    "samples": (("prune", *LENET, "--keep", 0.5, "--n-samples", 0), "at least 1"),
    "mean": (
        ("prune", "--model", "lenet-mnist", "--data", ".", "--mean", "a", "--keep", 0.5),
        "without images",
    ),
    "nothing to export": (("export", "x.safetensors", "--model", "lenet"), "--onnx"),
    "export of nothing": (
        ("export", "x.safetensors", "--model", "lenet", "--onnx"),
        "no such file",
    ),
    "no report": (("report", "nowhere"), "no report"),
    "a command": (("prun",), "prun"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_use_is_explained(
    run: Run, case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    args, text = WRONG[case]
    done = run(*args)
    assert done.code == 2, done.err
    assert text in " ".join(done.err.split())
    assert "Traceback" not in done.err
    assert not list(tmp_path.rglob("*.safetensors"))
