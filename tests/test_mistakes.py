"""Mistakes of newcomers: what was given, what is allowed and what to do, in words of one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from run_cli import Run, runner
from torch import Tensor, nn

import subprune
from subprune.errors import SubpruneError, closest
from subprune.messages import FLAGS as SPELLED

NET = """
from torch import nn
def build():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))
def sized(width):
    return nn.Linear(width, 2)
def number():
    return 3
def fails():
    return [][1]
"""


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """The command line in a folder with a network, weights and inputs, good ones and bad ones."""
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(NET)
    Path("broken.py").write_text("import no_such_library\n")
    Path("syntax.py").write_text("def build(:\n")
    for name in ("junk.pt", "junk.safetensors", "junk.npz"):
        Path(name).write_text("this is not what it seems\n" * 10)
    Path("empty.pt").touch()
    torch.save([1, 2], "list.pt")
    torch.save(network(), "whole.pt")
    torch.save({**nn.Linear(2, 2).state_dict(), "epoch": 3}, "mixed.pt")
    torch.save(nn.Linear(2, 2).state_dict(), "other.pt")
    images = np.zeros((8, 3, 8, 8), np.float32)
    np.savez("x.npz", x=images)
    np.savez("last.npz", x=images.transpose(0, 2, 3, 1))
    np.savez("named.npz", first=images, second=images)
    np.save("objects.npy", np.array([{"a": 1}], dtype=object))
    np.savez("texts.npz", x=images, y=np.array(["cat"] * 8))
    np.save("number.npy", np.float32(3))
    Path("empty").mkdir()
    Path("text.txt").write_text("a line\n" * 10)
    return runner(monkeypatch, capsys)


WEIGHTS = {
    "junk.pt": ["is damaged or not a checkpoint of PyTorch", "torch.save"],
    "junk.safetensors": ["not a safetensors file", "save_file"],
    "empty.pt": ["is empty (0 bytes)", "again"],
    "list.pt": ["an object of type list", "save model.state_dict()"],
    "mixed.pt": ["other things in it (epoch)", "save model.state_dict()"],
    "whole.pt": ["holds a pickled torch.nn", "would run code", "save model.state_dict()"],
    "other.pt": ["not in the file: 0.weight", "not in the model: weight, bias", "build the model"],
    "none.pt": ["is not a file", "check the path, which starts at"],
    "x.npz": ["ends in '.npz'", ".safetensors, .pt, .pth or .bin"],
    ".": ["is a folder", ".safetensors, .pt, .pth or .bin"],
}


@pytest.mark.parametrize("file", WEIGHTS)
def test_files_that_are_no_weights(run: Run, file: str) -> None:
    done = run("inspect", "--model", "net.py:build", "--weights", file, "--data", "x.npz")
    assert done.code == 2
    assert f"--weights {file}" in done.err
    assert "KeyError" not in done.err
    for words in WEIGHTS[file]:
        assert words in done.err


MODELS = {
    "none.py:build": ["there is no file 'none.py'", "check the path, which starts at"],
    "none:build": ["there is no module 'none'", "check the name"],
    "net.py": ["is a Python file", "net.py:NAME"],
    "other.pt": ["is a file of weights", "--model file.py:callable --weights other.pt"],
    ".": ["is a folder without config.json", "save_pretrained"],
    "timm:": ["lacks a name after the colon", "timm:resnet50"],
    "net.py:biuld": ["there is no 'biuld' in net.py; did you mean 'build'?"],
    "broken.py:f": ["importing broken.py failed", "'no_such_library'", "broken.py, line 1"],
    "syntax.py:f": ["importing syntax.py failed: SyntaxError", "syntax.py, line 1"],
    "net.py:number": ["must give a torch.nn.Module", "an object of type int"],
    "net.py:sized": ["needs arguments (width)", "a function without arguments"],
    "net.py:fails": ["failed in net.py, line 10, in fails: IndexError", "--debug"],
    "resnet560": ["is not known", "did you mean 'resnet56'?", "file.py:callable"],
}


@pytest.mark.parametrize("model", MODELS)
def test_models_that_are_none(run: Run, model: str) -> None:
    done = run("inspect", "--model", model, "--data", "x.npz")
    assert done.code == 2
    for words in [f"--model {model}" if ":" in model[:-1] else "--model", *MODELS[model]]:
        assert words in done.err


DATA = {
    "none.npz": ["is not a file", "check the path, which starts at"],
    "junk.npz": ["is damaged or not what its name says", "save or download it again"],
    "net.py": ["is a Python file", "net.py:NAME"],
    "last.npz": ["channels, height, width", "permute(0, 3, 1, 2)"],
    "named.npz": [
        "passed by their names, here first, second",
        "its forward takes input",
        "forward=",
    ],
    "objects.npy": ["holds Python objects", "allowed are numbers"],
    "texts.npz": ["texts.npz holds texts in 'y'", "allowed are numbers; classes are numbered"],
    "number.npy": ["number.npy holds a single number", "each array needs one row per input"],
    "empty": ["--data empty is a folder without images", "save_to_disk"],
    "list.pt": ["looks like a file of torch.save", "numpy.savez("],
    "text.txt": ["a model that takes tokens", "tokenizer: give its folder as --tokenizer"],
}


@pytest.mark.parametrize("data", DATA)
def test_data_that_does_not_fit(run: Run, data: str) -> None:
    done = run("inspect", "--model", "net.py:build", "--data", data)
    assert done.code == 2
    for words in DATA[data]:
        assert words in done.err


FLAGS = {
    "--keep 50": "got 50.0; if per cent are meant, give '50%'",
    "--compression 2 --context 1": "--context must be a whole number from 2, got 1",
    "--compression 2 --threads 0": "--threads must be a whole number from 1 to 1024 (in Python",
    "--compression two": "--compression must be a number, got 'two'",
    "--compression=two": "--compression must be a number, got 'two'",
    "--seed 1.5": "--seed must be a whole number, got '1.5'",
    "--params 0.5": '--params must be a whole number, or a share such as "50%"',
    "--compression 1e9": "it allows 0 parameters",
    "--keep 0.5 --method asym": "did you mean 'asym-in-change'?",
}


@pytest.mark.parametrize("flags", FLAGS)
def test_flags_with_wrong_values(run: Run, flags: str) -> None:
    done = run("prune", "--model", "net.py:build", "--data", "x.npz", *flags.split())
    assert done.code == 2
    assert FLAGS[flags] in done.err


@pytest.mark.parametrize("flag", ["--tokenizer", "--column", "--mean"])
def test_built_in_data_is_read_in_one_way(run: Run, flag: str) -> None:
    words = ("--model", "lenet-mnist", "--data", "mnist-sample", "--compression", 2, flag, "0.5")
    done = run("prune", *words)
    assert done.code == 2
    assert f"{flag} cannot be applied to --data mnist-sample, which comes prepared" in done.err


def test_commands_that_are_called_as_others_are(run: Run) -> None:
    done = run("eval", "--model", "net.py:build", "--data", "x.npz")
    assert (done.code, "subprune eval MODEL DATA" in done.err) == (2, True)
    done = run("export", ".", "--model", "net.py:build", "--onnx")
    assert (done.code, "the folder has no model.safetensors" in done.err) == (2, True)
    done = run("demo", "--output", "net.py")
    assert (done.code, "--output 'net.py' is a file; give a folder" in done.err) == (2, True)
    done = run("report", "other.pt")
    assert (done.code, "is not a report, which is JSON" in done.err) == (2, True)


# ---- in Python -----------------------------------------------------------------------------------

PYTHON: dict[str, tuple[Callable[[nn.Module, Tensor], object], str]] = {
    "a path": (lambda m, x: subprune.prune("net.pt", x, keep=0.5), "model.load_state_dict"),
    "a state": (lambda m, x: subprune.prune(m.state_dict(), x, keep=0.5), "model.load_state_dict"),
    "a class": (lambda m, x: subprune.prune(nn.Linear, x, keep=0.5), "the class Linear; make one"),
    "in another order": (lambda m, x: subprune.prune(x, m, keep=0.5), "the model comes first"),
    "one input": (lambda m, x: subprune.prune(m, x[0], keep=0.5), "inputs have the batch first"),
    "whole numbers": (lambda m, x: subprune.prune(m, x.long(), keep=0.5), r"x\.float\(\)"),
    "a fraction": (lambda m, x: subprune.prune(m, x, params=0.5), 'a share such as "50%"'),
    "no ranking": (
        lambda m, x: subprune.prune(m, x, keep=0.5, method=lambda view: 3),
        "must be the numbers of its units, best first, got an object of type int",
    ),
    "no such group": (
        lambda m, x: subprune.prune(m, x, keep=0.5, only="nope"),
        "neither a group nor a module; the groups are 0; allowed",
    ),
    "all of it ignored": (
        lambda m, x: subprune.prune(m, x, keep=0.5, ignore="*"),
        "ignore= leaves nothing to prune: ignore fits all of 0; omit some of it",
    ),
    "a percentage without its sign": (
        lambda m, x: subprune.prune(m, x, params=10),
        "params=10 cannot be reached.*; for a share, give params='10%'$",
    ),
    "wider than any layer": (
        lambda m, x: subprune.prune(m, x, compression=2, round_to=64),
        "the smallest width of every group that round_to=64 allows 212 are left",
    ),
    "words that it does not know": (
        lambda m, x: subprune.prune(
            nn.Sequential(nn.Embedding(4, 8), m), torch.full((16, 2), 9), keep=0.5
        ),
        "tokens have to be those of the model's own tokenizer",
    ),
    "fractions instead of words": (
        lambda m, x: subprune.prune(nn.Sequential(nn.Embedding(4, 8), m), x, keep=0.5),
        "looks its inputs up in a table.*; give whole numbers",
    ),
    "nothing to prune": (lambda m, x: subprune.prune(m[0], x, keep=0.5), "the model itself: "),
    "a model to recover": (lambda m, x: subprune.recover(m, x), "result, not result.model"),
    "inputs where groups belong": (
        lambda m, x: subprune.cut(m, x, {"0": [1]}),  # type: ignore[arg-type]
        r"subprune\.find_groups\(model, inputs\) returns, or one of its groups; got .* type Tensor",
    ),
    "and of a mask": (
        lambda m, x: subprune.mask(m, x, {"0": [1]}),  # type: ignore[arg-type]
        r"must be what subprune\.find_groups\(model, inputs\) returns; got .* Tensor",
    ),
    "no file": (lambda m, x: subprune.load(m, "none.safetensors"), "is not a file"),
    "a folder": (lambda m, x: subprune.load(m, "."), "is a folder; give a file"),
}


@pytest.mark.parametrize("case", PYTHON)
def test_mistakes_in_python(case: str) -> None:
    call, words = PYTHON[case]
    with pytest.raises(SubpruneError, match=words):
        call(network().eval(), torch.randn(16, 8))


def test_a_vector_of_inputs_is_data() -> None:
    class Scalar(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 1))

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x[:, None])

    result = subprune.prune(Scalar().eval(), torch.randn(64), keep=0.5)
    assert result.plan.counts == {"net.0": 4}


def test_the_folder_of_a_pruned_model_names_its_file(tmp_path: Path) -> None:
    result = subprune.prune(network().eval(), torch.randn(64, 8), keep=0.5)
    subprune.save(result, tmp_path / "model.safetensors")
    with pytest.raises(SubpruneError, match=r"give '.*model\.safetensors'"):
        subprune.load(network(), tmp_path)


def test_the_nearest_name() -> None:
    known = ["asym-in-change", "auto", "weight-norm"]
    assert closest("weightnorm", known) == "did you mean 'weight-norm'? "
    assert closest("asym", known) == "did you mean 'asym-in-change'? "
    assert closest("a", known) == ""


def test_labels_that_are_no_classes_are_not_dropped_in_silence() -> None:
    x, labels = torch.randn(64, 8), torch.arange(64) % 7
    report = subprune.prune(network().eval(), (x, labels), keep=0.5, progress=False).report
    assert report.accuracy is None
    assert any("labels of the data, 0 to 6, are not class numbers" in note for note in report.notes)
    report = subprune.prune(network().eval(), (x, labels % 4), keep=0.5, progress=False).report
    assert report.accuracy is not None
    assert not any("labels of the data" in note for note in report.notes)


def test_labels_of_another_length_are_named() -> None:
    x, labels = torch.randn(64, 8), torch.arange(64) % 4
    report = subprune.prune(network().eval(), [(x, labels[:60])], keep=0.5, progress=False).report
    assert report.accuracy is None
    assert any("a batch of 64 inputs has 60 labels" in note for note in report.notes)


def test_nan_is_found_input_by_input() -> None:
    x = torch.randn(64, 8)
    x[5, 2], x[9, 0] = float("nan"), float("inf")
    with pytest.raises(SubpruneError, match=r"in its inputs 5, 9 \(counted from 0\); remove those"):
        subprune.prune(network().eval(), x, keep=0.5, progress=False)


def test_files_that_cannot_be_read(run: Run) -> None:
    image = pytest.importorskip("PIL.Image")
    Path("images").mkdir()
    image.fromarray(np.zeros((8, 8, 3), np.uint8)).save("images/good.png")
    Path("images/oops.png").write_text("not an image")
    np.savez("none.npz", x=np.zeros((0, 3, 8, 8), np.float32))
    for data, words in (
        ("images", ["images/oops.png", "cannot be read as an image", "remove it from the folder"]),
        ("none.npz", ["none.npz holds no inputs"]),
    ):
        done = run("inspect", "--model", "net.py:build", "--data", data)
        assert done.code == 2
        assert all(word in done.err for word in words), done.err


class Meta(nn.Module):
    """A submodule's name that PyTorch's exporter has a use of its own for."""

    def __init__(self) -> None:
        super().__init__()
        self.meta = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.meta(x)


def test_what_an_exporter_trips_over_is_told_without_its_advice(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    result = subprune.prune(Meta().eval(), torch.randn(64, 8), keep=0.5, progress=False)
    try:
        subprune.export(result, tmp_path / "small.onnx")
    except SubpruneError as error:
        said = str(error)
        assert "submodule named 'meta': rename it" in said
        assert "\x1b" not in said
        assert "Next steps" not in said
    else:  # a PyTorch that can
        assert (tmp_path / "small.onnx").is_file()


def test_data_of_the_wrong_kind_says_what_would_be_right() -> None:
    x = torch.randn(64, 8)
    wrong = [
        ((x, torch.arange(50)), {}, "64 inputs and 50 labels; give one label each"),
        (torch.zeros(64, 8, dtype=torch.uint8), {}, r"for bytes of images x.float\(\) / 255"),
        ([x], {"forward": lambda model, item: item}, "forward= takes one item of the data"),
    ]
    for data, options, words in wrong:
        with pytest.raises(SubpruneError, match=words):
            subprune.prune(network().eval(), data, keep=0.5, progress=False, **options)


def test_the_option_whose_data_does_not_fit_is_named() -> None:
    x = torch.randn(64, 8)
    for wrong, words in (
        (torch.randn(64, 7), r"verify_data: the model cannot be called with the data \(shapes"),
        (x / 0, "verify_data: batch 1 of the data contains NaN or infinity"),
        ([], "verify_data: the data is empty; give at least one input"),
    ):
        with pytest.raises(SubpruneError, match=words) as refused:
            subprune.prune(network().eval(), x, keep=0.5, verify_data=wrong, progress=False)
        assert refused.value.spelled(SPELLED).startswith("--verify-data: ")


def test_one_hot_labels_are_named() -> None:
    x, labels = torch.randn(64, 8), nn.functional.one_hot(torch.arange(64) % 4, 4)
    for given in (labels, labels.float()):
        report = subprune.prune(network().eval(), (x, given), keep=0.5, progress=False).report
        assert report.accuracy is None
        assert any("one-hot; give class numbers, labels.argmax(1)" in n for n in report.notes)


NAMED: dict[str, tuple[dict[str, object], str]] = {
    "a share in a dict": ({"keep": {"0": 0}}, r"keep\['0'\] must be a fraction above 0 .*, got 0$"),
    "an output, kept": (
        {"keep": {"2": 0.5}},
        "keep= names '2', which cannot be pruned: is part of",
    ),
    "an output, counted": ({"budgets": {"2": 2}}, "which cannot be pruned: is part of .*; omit it"),
}


@pytest.mark.parametrize("case", NAMED)
def test_goals_say_which_name_is_wrong_and_why(case: str) -> None:
    options, words = NAMED[case]
    with pytest.raises(SubpruneError, match=words):
        subprune.prune(network().eval(), torch.randn(16, 8), **options)


def test_names_that_promise_another_format(tmp_path: Path) -> None:
    result = subprune.prune(network().eval(), torch.randn(64, 8), keep=0.5, progress=False)
    with pytest.raises(SubpruneError, match=r"small\.pt' ends as .*; give '.*small\.safetensors'"):
        subprune.save(result, tmp_path / "small.pt")
    with pytest.raises(SubpruneError, match=r"ending of 'small\.tflite' is not known: allowed are"):
        subprune.export(result, tmp_path / "small.tflite")
    with pytest.raises(SubpruneError, match=r"got the class Linear; give one with any weights"):
        subprune.load(nn.Linear, tmp_path / "small.safetensors")  # type: ignore[arg-type]


def test_options_for_other_data_are_refused(run: Run) -> None:
    np.save("rows.npy", np.zeros((8, 4), np.float32))
    prune = ("prune", "--model", "net.py:build", "--keep", "0.5", "--data")
    done = run("eval", "net.py:build", "x.npz", "--context", "4", "--stride", "2")
    assert (done.code, "--stride and --context are for texts" in done.err) == (2, True)
    done = run(*prune, "rows.npy", "--mean", "1,2")
    assert (done.code, "are for images [number, channels" in done.err) == (2, True)
    done = run(*prune, "x.npz", "--mean", "1,2")
    assert done.code == 2
    assert "--mean has 2 numbers for 3 channels; give one for each, or one for all" in done.err


def test_the_printed_report_names_what_was_left_whole() -> None:
    """The layers left for one reason are on one line, the first six by name."""
    layers = [nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(9)]
    model = nn.Sequential(*layers, nn.Linear(8, 2))
    result = subprune.prune(model, torch.randn(64, 8), budgets={"0.0": 4}, progress=False)
    first = ", ".join(f"{i}.0" for i in range(1, 7))
    printed = " ".join(str(result.report).split())
    assert f"not pruned: {first} and 2 more: not asked for" in printed
    assert "not pruned: 9: is part of the model's output" in printed


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "x.npy", np.zeros((4, 8), np.float32))

    def closed(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", closed)
    with pytest.raises(SubpruneError, match=r"x\.npy may not be read by this user; change its"):
        subprune.read_data(tmp_path / "x.npy")
