"""The command line's data and words: which images it verifies on, what it calls options, what it
refuses.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from run_cli import Run, runner
from torch import Tensor, nn

import subprune
from subprune.cli import data as cli_data
from subprune.cli.data import DataChoice, load_data, load_verification
from subprune.cli.loading import load_model
from subprune.errors import DataError, OptionError
from subprune.methods import METHODS
from subprune.zoo.datasets import Images, load
from subprune.zoo.models import shipped_lenet

LENET = (
    "--model",
    "lenet-mnist",
    "--data",
    "mnist-sample",
    "--method",
    "layer-in-change",
    "--n-samples",
    40,
)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    return runner(monkeypatch, capsys)


# ---- which images accuracy is measured on --------------------------------------------------------


def test_verify_reports_the_test_images(run: Run, tmp_path: Path) -> None:
    done = run(
        "prune",
        *LENET,
        "--compression",
        16,
        "--verify-data",
        "mnist-sample",
        "--output",
        tmp_path,
        "--no-time-calls",
    )
    assert done.code == 0, done.err
    assert "accuracy on mnist-sample's test images: " in done.out
    report = subprune.Report.from_json((tmp_path / "report.json").read_bytes())
    small = subprune.load(shipped_lenet()[0], tmp_path / "model.safetensors").eval()
    test = load("mnist-sample", "test")
    with torch.no_grad():
        right = float((small(test.inputs()).argmax(-1) == test.labels).float().mean())
    assert report.accuracy is not None
    assert report.accuracy[1] == pytest.approx(right, abs=1e-4)


def pixels(inputs: Tensor) -> set[bytes]:
    return {x.numpy().tobytes() for x in inputs}


def larger(name: str, split: str, _: object) -> Images:
    """As `load`; "mnist" is the sample in another order, so that the two share images as they
    really do.
    """
    sample = load("mnist-sample", split)
    return sample if name == "mnist-sample" else sample.subset(torch.arange(len(sample)).flip(0))


@pytest.mark.parametrize("spec", ["mnist-sample", "mnist"])
def test_budgets_see_training_images_that_are_not_calibrated_on(
    monkeypatch: pytest.MonkeyPatch, spec: str
) -> None:
    monkeypatch.setattr(cli_data, "load_dataset", larger)
    choice = DataChoice("mnist-sample", 512, seed=3)
    calibrated = pixels(torch.cat([x for x, _ in load_data(choice)]))
    (inputs, labels), words = load_verification(choice, spec, measured=True)
    train = load("mnist-sample", "train")
    assert len(inputs) == len(labels) == len(train) - 512
    assert pixels(inputs) | calibrated == pixels(train.inputs())
    assert not pixels(inputs) & calibrated
    assert words.startswith(
        f"3,584 of {spec if spec == 'mnist-sample' else 'mnist'}'s training images"
    )
    (reported, _), words = load_verification(choice, spec, measured=False)
    assert len(reported) == 10_000
    assert words == f"{spec}'s test images"
    with pytest.raises(
        OptionError, match=r"--n-samples 4096 calibrates on all 4,096 training images.*give fewer"
    ):
        load_verification(DataChoice("mnist-sample", 4096), spec, measured=True)


def test_equal_accuracy_from_the_command_line(run: Run, tmp_path: Path) -> None:
    args = (
        "prune",
        *LENET,
        "--only",
        "conv1",
        "--compression",
        1.01,
        "--allocate",
        "equal-accuracy",
        "--no-time-calls",
    )
    done = run(*args, "--verify-data", "mnist-sample", "--output", tmp_path / "a", "--json")
    assert done.code == 0, done.err
    report = json.loads(done.out)
    assert report["accuracy_on"].startswith(
        "4,056 of mnist-sample's training images, none calibrated on"
    )
    assert not report["notes"]
    done = run(*args, "--output", tmp_path / "b", "--json")
    assert any(
        "measured on the calibration data" in x and "--verify-data" in x
        for x in json.loads(done.out)["notes"]
    )


def test_files_to_verify_with_are_taken_whole(run: Run, tmp_path: Path) -> None:
    x = torch.randn(700, 6).numpy()
    np.savez(tmp_path / "v.npz", x=x, y=np.arange(700) % 3)
    inputs, labels = load_verification(
        DataChoice("mnist-sample"), str(tmp_path / "v.npz"), measured=False
    )[0]
    assert len(inputs) == len(labels) == 700
    assert len(load_data(DataChoice(str(tmp_path / "v.npz")))[0]) == 512
    with pytest.raises(DataError, match=r"^--verify-data 'no.npz' is not a file; check the path"):
        load_verification(DataChoice("mnist-sample"), "no.npz", measured=False)


# ---- models and weights --------------------------------------------------------------------------


def test_random_weights_are_not_pruned(run: Run, tmp_path: Path) -> None:
    for name in ("lenet", "resnet56", "vgg11"):
        done = run(
            "prune",
            "--model",
            name,
            "--data",
            "mnist-sample",
            "--keep",
            0.5,
            "--output",
            tmp_path / "small",
        )
        assert done.code == 2
        assert "random weights; give trained ones with --weights FILE" in done.err
    assert not (tmp_path / "small").exists()
    assert run("inspect", "--model", "lenet", "--data", "mnist-sample").code == 0


def test_a_pickled_module_is_refused_in_one_plain_line(tmp_path: Path) -> None:
    torch.save(nn.Linear(2, 2), tmp_path / "m.pt")
    with pytest.raises(
        DataError, match=r"holds a pickled torch\.nn\.modules\.linear\.Linear, .*state_dict"
    ) as caught:
        load_model("lenet", tmp_path / "m.pt")
    assert str(caught.value).isprintable()


def test_arrays_called_y_are_labels_everywhere(tmp_path: Path) -> None:
    """In files and in dicts; but not where the model itself takes a `y`."""
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    x, y = torch.randn(30, 6), torch.arange(30) % 3
    np.savez(tmp_path / "a.npz", x=x.numpy(), y=y.numpy())
    from_file = subprune.prune(
        model, load_data(DataChoice(str(tmp_path / "a.npz"))), keep=0.5
    ).report.accuracy
    assert from_file is not None
    assert subprune.prune(model, [{"input": x, "y": y}], keep=0.5).report.accuracy == from_file


# ---- words ---------------------------------------------------------------------------------------

WRONG: dict[str, tuple[tuple[Any, ...], str]] = {
    "no pool": (("--keep", 0.5, "--method", "layer-greedy-fs-fd"), "give --train-data"),
    "a pool for nothing": (
        ("--keep", 0.5, "--train-data", "mnist-sample"),
        "no use of --train-data",
    ),
    "no timing": (("--latency", "50%", "--no-time-calls"), "--no-time-calls forbids it"),
    "no goal": ((), "give one goal, or several limits: --compression, --speedup"),
    "epsilon": (
        ("--keep", 0.5, "--method", "weight-norm", "--epsilon", 0.1),
        "--epsilon 0.1 has no effect with selector",
    ),
    "patches": (("--keep", 0.5, "--patches", "some"), "--patches some: allowed are all, random"),
    "a rule": (("--keep", 0.5, "--allocate", "error"), "so --allocate error has no effect"),
    "verify": (
        ("--keep", 0.5, "--verify-data", "mnist-smaple"),
        "--verify-data 'mnist-smaple' is not a data set by name, a file or a folder: did you mean 'mnist-sample'",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_errors_speak_in_flags(
    run: Run, case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    args, text = WRONG[case]
    done = run("prune", *LENET, *args)
    assert done.code == 2
    assert text in " ".join(done.err.split())


def test_unlabelled_data_for_equal_accuracy(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.random.default_rng(0).normal(size=(20, 1, 28, 28)).astype(np.float32))
    args = (
        "prune",
        *LENET,
        "--compression",
        2,
        "--allocate",
        "equal-accuracy",
        "--verify-data",
        "x.npy",
    )
    assert "give --verify-data with labels, or use --allocate equal-agreement" in " ".join(
        run(*args).err.split()
    )


def test_greedy_on_the_loss_draws_from_train_data(run: Run, tmp_path: Path) -> None:
    np.savez(
        tmp_path / "t.npz",
        x=load("mnist-sample", "train").inputs(torch.arange(200)).numpy(),
        labels=load("mnist-sample", "train").labels[:200].numpy(),
    )
    args = (
        "prune",
        "--model",
        "lenet-mnist",
        "--data",
        "mnist-sample",
        "--n-samples",
        40,
        "--budgets",
        "conv1=4",
    )
    done = run(
        *args,
        "--method",
        "layer-greedy-fs-fd",
        "--train-data",
        tmp_path / "t.npz",
        "--output",
        tmp_path / "a",
    )
    assert done.code == 0, done.err
    done = run(*args, "--epsilon", 0.5, "--patches", "random", "--output", tmp_path / "b", "--json")
    assert done.code == 0, done.err
    options = json.loads(done.out)["plan"]["options"]
    assert (options["epsilon"], options["patches"]) == (0.5, "random")


def test_methods_are_listed_in_order_and_say_what_they_need(run: Run) -> None:
    listed = json.loads(run("methods", "--json").out)["methods"]
    assert [m["name"] for m in listed] == list(METHODS)
    assert {m["name"] for m in listed if m["needs_train_data"]} == {"layer-greedy-fs-fd"}
    assert not [m["name"] for m in listed if m["what"].startswith("The same")]
    assert "--train-data" in run("methods").out
