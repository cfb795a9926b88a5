"""More than 200 hostile inputs: files and arguments made to confuse, exhaust or escape.

Each must end in a message of ours, with little memory, nothing written outside its folder, nothing
executed.
"""

from __future__ import annotations

import contextlib
import json
import resource
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from run_cli import runner
from safetensors.torch import save_file

import subprune
from subprune.cli.loading import load_model
from subprune.errors import SubpruneError
from subprune.reading.arrays import read_arrays, read_image
from subprune.report.figures import Report
from subprune.zoo.models import LeNet
from subprune.zoo.readers import read_cifar, read_idx
from tests.hostile_files import (
    ARRAYS,
    MARK,
    PICKLES,
    PICTURES,
    TENSORS,
    fuzzed,
    npy,
    npz,
    saved,
)


@pytest.fixture(autouse=True)
def _contained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Every test works in its own folder; no code may run, no memory may swell, nothing may appear
    beside it.
    """
    inside = tmp_path / "inside"
    inside.mkdir()
    monkeypatch.chdir(inside)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 700_000, f"memory grew by {grown} kB"
    assert [p.name for p in tmp_path.iterdir()] == ["inside"]
    assert not list(tmp_path.rglob(MARK))


def refused(call: Callable[[], Any]) -> str:
    with pytest.raises(SubpruneError) as caught:
        call()
    assert str(caught.value).strip()
    return str(caught.value)


# ---- saved models --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small() -> bytes:
    torch.manual_seed(0)
    result = subprune.prune(
        LeNet(), torch.randn(8, 1, 28, 28), keep=0.3, method="layer-weight-norm", fit="keep"
    )
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        return subprune.save(result, Path(folder) / "m.safetensors").read_bytes()


@pytest.mark.parametrize("case", TENSORS)
def test_files_that_are_no_safetensors(case: str) -> None:
    """24 files, each as a saved model, as weights and as data."""
    path = Path("m.safetensors")
    path.write_bytes(TENSORS[case])
    model = LeNet()
    refused(lambda: subprune.load(model, path))
    refused(lambda: load_model("lenet", path))
    if case != "metadata of numbers":
        with contextlib.suppress(SubpruneError):
            found = read_arrays(path, 4)
            assert found, "read without an error, so there are arrays in it"
            assert all(len(x) <= 4 for x in found.values() if x.ndim)


def test_fuzzed_saved_models(small: bytes) -> None:
    """60 damaged copies of a saved model: refused, but for bytes that change nothing."""
    model, path = LeNet(), Path("m.safetensors")
    for content in fuzzed(small, 60, 0):
        path.write_bytes(content)
        refused(lambda: subprune.load(model, path))
    assert model.conv1.out_channels == 6


# ---- checkpoints ---------------------------------------------------------------------------------


@pytest.mark.parametrize("case", PICKLES)
@pytest.mark.filterwarnings("ignore")
def test_checkpoints(case: str) -> None:
    path = Path("w.pt")
    path.write_bytes(PICKLES[case]())
    assert "w.pt" in refused(lambda: load_model("lenet", path))


@pytest.mark.filterwarnings("ignore")
def test_fuzzed_checkpoints() -> None:
    """20 damaged checkpoints: refused, or read as the plain tensors they still are."""
    content, path = (
        saved({k: v for k, v in LeNet().state_dict().items() if k.startswith("conv1")}),
        Path("w.pt"),
    )
    for damaged in fuzzed(content, 20, 1):
        path.write_bytes(damaged)
        refused(lambda: load_model("lenet", path))


# ---- arrays and images ---------------------------------------------------------------------------


@pytest.mark.parametrize("case", ARRAYS)
def test_arrays(case: str) -> None:
    name, content = ARRAYS[case]
    Path(name).write_bytes(content)
    refused(lambda: read_arrays(Path(name), 16))


def test_fuzzed_arrays() -> None:
    """40 damaged arrays: refused, or numbers of the size the file has."""
    plain = npy((2, 3))
    for content, name in [(c, "x.npy") for c in fuzzed(plain, 20, 2)] + [
        (c, "x.npz") for c in fuzzed(npz({"x.npy": plain}), 20, 3)
    ]:
        Path(name).write_bytes(content)
        with contextlib.suppress(SubpruneError):
            assert sum(x.numel() for x in read_arrays(Path(name), 16).values()) < 1000


@pytest.mark.parametrize("case", PICTURES)
def test_pictures(case: str) -> None:
    name, content = PICTURES[case]
    Path(name).write_bytes(content)
    refused(lambda: read_image(Path(name)))


# ---- data sets and reports -----------------------------------------------------------------------


def test_fuzzed_data_sets() -> None:
    """20 damaged idx and CIFAR files."""
    good = struct.pack(">HBBIII", 0, 8, 3, 4, 28, 28) + bytes(4 * 784)
    huge = struct.pack(">HBBIII", 0, 8, 3, 2**32 - 1, 2**32 - 1, 2**32 - 1)
    for content in [huge, b"", b"\x1f\x8b" + bytes(40), good + b"x", *fuzzed(good[:15], 12, 4)]:
        for name in ("x-ubyte", "x-ubyte.gz"):
            Path(name).write_bytes(content)
            refused(lambda name=name: read_idx(Path(name), (4, 28, 28)))  # type: ignore[misc]
    for content in (b"", bytes(3073), bytes([11]) * 30_730_000, bytes(30_730_001)):
        Path("data_batch_1.bin").write_bytes(content)
        refused(lambda: read_cifar(Path("data_batch_1.bin")))


REPORTS: dict[str, Any] = {
    "nothing": "",
    "null": "null",
    "a list": "[]",
    "an empty object": "{}",
    "deep": "[" * 100_000,
    "a huge number": '{"samples": 1' + "0" * 5000 + "}",
    "nan": '{"seconds": NaN}',
    "wrong types": '{"plan": 3}',
    "unknown entries": '{"__class__": "os.system"}',
    "no bytes of text": b"\xff\xfe\x00",
    "options too deep": None,
}


@pytest.mark.parametrize("case", REPORTS)
def test_reports(
    case: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    content = REPORTS[case]
    if content is None:
        nested: Any = 1
        for _ in range(60):
            nested = {"a": nested}
        plan = {"method": "m", "options": nested}
        content = json.dumps(
            {"plan": plan, "parameters": [2, 1], "flops": [2, 1], "samples": 1, "seconds": 1}
        )
    Path("report.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    done = runner(monkeypatch, capsys)("report", "report.json", "--html", "page.html")
    assert done.code == 2
    assert "Traceback" not in done.err
    assert not Path("page.html").exists()


def test_names_cannot_break_the_page() -> None:
    """Scripts and markup in the names of a report stay text."""
    evil = "</title><script>alert(1)</script><img src=x onerror=alert(1)>[red]"
    group = {
        "name": evil,
        "kind": evil,
        "units": 3,
        "kept": [0],
        "consumers": [evil],
        "errors": [1.0, 0.5, 0.2, 0.0],
    }
    costs: dict[str, Any] = {
        "groups": [evil],
        "lengths": [{"fixed": 1, "groups": [0], "each": [1.0]}],
        "params": [{"factor": 1, "lengths": [0]}],
        "flops": [{"factor": 1, "lengths": [0]}],
    }
    content = {
        "plan": {"method": evil, "options": {"keep": evil}, "groups": [group], "data": evil},
        "parameters": [2, 1],
        "flops": [0, 0],
        "samples": 1,
        "seconds": None,
        "refused": {evil: evil},
        "notes": [evil],
        "model": evil,
        "command": evil,
        "versions": {evil: evil},
        "accuracy": [0.5, None],
        "accuracy_on": evil,
        "layers": [{"name": evil, "kind": evil, "before": 3, "after": 1}],
        "savings": {evil: [1, 0]},
        "costs": costs,
    }
    report = Report.from_json(json.dumps(content))
    page = report.to_html()
    assert "<script>alert" not in page
    assert "<img" not in page
    assert "What other sizes would cost" in page
    assert evil.split("[")[0][:8] not in report._repr_html_()
    for wrong in ({"groups": ["other"]}, {"params": [{"factor": 1, "lengths": [7]}]}):
        content["costs"] = {**costs, **wrong}  # a slider that cannot work is not shown
        assert "What other sizes" not in Report.from_json(json.dumps(content)).to_html()
    assert str(report)


# ---- the command line ----------------------------------------------------------------------------

BASE = ("prune", "--model", "lenet-mnist", "--data", "mnist-sample")
MISUSE: dict[str, tuple[Any, ...]] = {
    "keep of nan": (*BASE, "--keep", "nan"),
    "keep of infinity": (*BASE, "--keep", "inf"),
    "keep of nothing": (*BASE, "--keep", ""),
    "compression of nan": (*BASE, "--compression", "nan"),
    "negative compression": (*BASE, "--compression", "-2"),
    "huge params": (*BASE, "--params", "1e999"),
    "params of code": (*BASE, "--params", "__import__('os')"),
    "flops of percent": (*BASE, "--flops", "%"),
    "latency of text": (*BASE, "--latency", "fast"),
    "seed of text": (*BASE, "--keep", "0.5", "--seed", "x"),
    "huge seed": (*BASE, "--keep", "0.5", "--seed", "9" * 40),
    "round to zero": (*BASE, "--keep", "0.5", "--round-to", "0"),
    "round to minus": (*BASE, "--keep", "0.5", "--round-to", "-8"),
    "negative samples": (*BASE, "--keep", "0.5", "--n-samples", "-1"),
    "a pattern that is none": (*BASE, "--keep", "0.5", "--only", "re:("),
    "no such layer": (*BASE, "--keep", "0.5", "--ignore", "../../etc"),
    "a budget of zero": (*BASE, "--budgets", "conv1=0"),
    "a huge budget": (*BASE, "--budgets", "conv1=" + "9" * 60),
    "a budget of text": (*BASE, "--budgets", "=;rm -rf"),
    "a file for a folder": (*BASE, "--keep", "0.5", "--output", "/dev/null"),
    "a folder under a file": (*BASE, "--keep", "0.5", "--output", "/dev/null/x"),
    "a zero byte": (*BASE, "--keep", "0.5", "--output", "a\0b"),
    "a name too long": (*BASE, "--keep", "0.5", "--output", "x" * 5000),
    "a model of dots": ("prune", "--model", "..:x", "--data", "mnist-sample", "--keep", "0.5"),
    "a model of a path": (
        "prune",
        "--model",
        "../../etc/passwd:x",
        "--data",
        "mnist-sample",
        "--keep",
        "0.5",
    ),
    "a model of a file": (
        "prune",
        "--model",
        "/dev/null.py:x",
        "--data",
        "mnist-sample",
        "--keep",
        "0.5",
    ),
    "a model of a lambda": (
        "prune",
        "--model",
        "os:(lambda: 1)",
        "--data",
        "mnist-sample",
        "--keep",
        "0.5",
    ),
    "an empty model": ("prune", "--model", "", "--data", "mnist-sample", "--keep", "0.5"),
    "empty data": ("prune", "--model", "lenet-mnist", "--data", "", "--keep", "0.5"),
    "data of a device": ("prune", "--model", "lenet-mnist", "--data", "/dev/zero", "--keep", "0.5"),
    "data of a device with a name": (
        "prune",
        "--model",
        "lenet-mnist",
        "--data",
        "/dev/zero.npy",
        "--keep",
        "0.5",
    ),
    "data that is a number": (
        "prune",
        "--model",
        "lenet-mnist",
        "--data",
        "math:pi",
        "--keep",
        "0.5",
    ),
    "data that exits": (
        "prune",
        "--model",
        "lenet-mnist",
        "--data",
        "os:abort_not",
        "--keep",
        "0.5",
    ),
    "random weights": ("prune", "--model", "resnet56", "--data", "mnist-sample", "--keep", "0.5"),
    "weights that are a folder": (*BASE, "--keep", "0.5", "--weights", "."),
    "weights of another kind": (*BASE, "--keep", "0.5", "--weights", "/etc/passwd"),
    "no weights": (*BASE, "--keep", "0.5", "--weights", ""),
    "markup in a name": (
        "prune",
        "--model",
        "[red]x[/bold]",
        "--data",
        "mnist-sample",
        "--keep",
        "0.5",
    ),
    "export of a pickle": ("export", "x.pt", "--model", "lenet", "--onnx"),
    "a report of a device": ("report", "/dev/null"),
    "a report of nothing": ("report", ""),
    "an argument of nothing": ("",),
    "a thousand options": ("prune", *["--keep"] * 999),
}


@pytest.mark.parametrize("case", MISUSE)
def test_misuse(
    case: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done = runner(monkeypatch, capsys)(*MISUSE[case])
    assert done.code == 2, done.err
    assert done.err.strip()
    assert "Traceback" not in done.err
    assert not list(Path().rglob("*.safetensors"))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("kind", ["npy", "npz", "safetensors"])
def test_not_numbers(
    value: float, kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    x = torch.zeros(4, 1, 28, 28)
    x[2, 0, 3, 3] = value
    {
        "npy": lambda: np.save("x.npy", x.numpy()),
        "npz": lambda: np.savez("x.npz", x=x.numpy()),
        "safetensors": lambda: save_file({"x": x}, "x.safetensors"),
    }[kind]()
    done = runner(monkeypatch, capsys)(
        "prune", "--model", "lenet-mnist", "--data", f"x.{kind}", "--keep", "0.5"
    )
    assert done.code == 2
    assert "NaN or infinity" in done.err


def test_enough_of_them() -> None:
    """What this file throws at the package, counted."""
    many = (
        3 * len(TENSORS)
        + 60
        + len(PICKLES)
        + 20
        + len(ARRAYS)
        + 40
        + len(PICTURES)
        + 36
        + len(REPORTS)
    )
    assert many + len(MISUSE) + 9 + 1 >= 200
    assert sys.platform != "win32"  # `resource` above is for Unix
