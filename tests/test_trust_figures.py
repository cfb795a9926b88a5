"""Figures are what they say: what outputs answer, FLOPs per input, latencies with their spread, and
whole seconds.
"""

from __future__ import annotations

import html
import json
import math
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from run_cli import Run, runner
from torch import Tensor, nn
from views import recipe_of, setting_of
from zoo import ZOO

import subprune
from subprune.budget.accuracy import accuracy_curves
from subprune.budget.latency import LatencyGoal
from subprune.data.batch import Batch
from subprune.data.batches import batches
from subprune.errors import BudgetError, DataError, OptionError
from subprune.fit.ridge import Ridge
from subprune.guarantees import guarantees
from subprune.measure.answers import read, read_program
from subprune.measure.compare import Comparison, compare
from subprune.measure.measurements import Latency, accuracy, count_flops
from subprune.measure.stopwatch import Stopwatch
from subprune.methods import find_method
from subprune.program.record import record
from subprune.program.recurrent import recurrent_flops
from subprune.progress import Step, progress_bar
from subprune.report.figures import Report
from subprune.statistics.calibration import Calibration
from subprune.statistics.products import Layer

QUIET: dict[str, Any] = {"time_calls": False, "progress": False}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    return runner(monkeypatch, capsys)


def batch(*inputs: Tensor, labels: Tensor | None = None) -> Batch:
    return Batch((inputs, {}), labels, inputs[0].shape[0])


# ---- what outputs answer -------------------------------------------------------------------------


class Then(nn.Module):
    """A model, and a function of its output."""

    def __init__(self, model: nn.Module, function: Any) -> None:
        super().__init__()
        self.model, self.function = model, function

    def forward(self, x: Tensor) -> Any:
        return self.function(self.model(x))


class Residual(nn.Module):
    """What a model says is to be taken off its input."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return x - self.model(x)


image, series, signal = torch.randn(2, 3, 8, 8), torch.randn(2, 6, 5), torch.randn(2, 5, 20)
tokens = torch.randint(0, 11, (2, 6))
conv = nn.Conv2d(3, 7, 3, padding=1)
language = nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 11))
READINGS: dict[str, tuple[nn.Module, Tensor, int | None, str]] = {
    "classes": (nn.Sequential(nn.Flatten(), nn.Linear(192, 5)), image, 1, "input"),
    "one column": (nn.Sequential(nn.Flatten(), nn.Linear(192, 1)), image, None, ""),
    "one number": (
        Then(nn.Sequential(nn.Flatten(), nn.Linear(192, 1)), lambda y: y[:, 0]),
        image,
        None,
        "",
    ),
    "pooled convolution": (
        nn.Sequential(conv, nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        image,
        1,
        "input",
    ),
    "mean of a convolution": (Then(conv, lambda y: y.mean((2, 3))), image, 1, "input"),
    "segmenter": (
        nn.Sequential(conv, nn.Upsample(scale_factor=2), nn.Softmax(1)),
        image,
        1,
        "pixel",
    ),
    "segmenter in a dict": (
        Then(conv, lambda y: {"mask": y.argmax(1), "out": y}),
        image,
        1,
        "pixel",
    ),
    "segmenter, classes last": (
        Then(conv, lambda y: y.permute(0, 2, 3, 1).log_softmax(-1)),
        image,
        3,
        "pixel",
    ),
    "linear on pixels": (Then(nn.Linear(8, 6), lambda y: y.permute(0, 3, 1, 2)), image, 1, "pixel"),
    "places of two maps": (
        Then(conv, lambda y: torch.cat([y.flatten(2), y[..., ::2].flatten(2)], 2)),
        image,
        1,
        "position",
    ),
    "distances beside scores": (
        Then(conv, lambda y: torch.cat([y.exp(), y.sigmoid()], 1).flatten(2)),
        image,
        None,
        "",
    ),
    "denoiser": (Residual(nn.Conv2d(3, 3, 3, padding=1)), image, None, ""),
    "autoencoder": (nn.Conv2d(3, 3, 3, padding=1), image, None, ""),
    "autoencoder of rows": (
        nn.Sequential(nn.Linear(6, 2), nn.Linear(2, 6)),
        torch.randn(3, 6),
        None,
        "",
    ),
    "super-resolution": (
        nn.Sequential(nn.Conv2d(3, 12, 3, padding=1), nn.PixelShuffle(2)),
        image,
        None,
        "",
    ),
    "tokens": (language, tokens, 2, "token"),
    "tokens in one row": (Then(language, lambda y: y.flatten(0, 1)), tokens, 1, "token"),
    "classes of a series": (nn.Linear(5, 4), series, 2, "token"),
    "classes of a signal": (nn.Conv1d(5, 4, 3), signal, 1, "position"),
    "features": (
        nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 16), nn.LayerNorm(16)),
        tokens,
        None,
        "",
    ),
    "embedding": (
        nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.LayerNorm(16)),
        image,
        None,
        "",
    ),
    "direction": (
        Then(nn.Sequential(nn.Flatten(), nn.Linear(192, 16)), nn.functional.normalize),
        image,
        None,
        "",
    ),
    "root mean square": (
        nn.Sequential(
            nn.Embedding(11, 8),
            Then(nn.Linear(8, 8), lambda y: y * y.square().mean(-1, True).rsqrt()),
        ),
        tokens,
        None,
        "",
    ),
    "shares": (
        Then(nn.Linear(5, 4), lambda y: y.exp() / y.exp().sum(-1, True)),
        series,
        2,
        "token",
    ),
    "gated": (Then(conv, lambda y: y * y.mean((2, 3), True).sigmoid()), image, 1, "pixel"),
    "tanh": (nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.Tanh()), image, None, ""),
}


@pytest.mark.parametrize("name", READINGS)
def test_what_an_output_answers(name: str) -> None:
    model, x, dim, kind = READINGS[name]
    program = record(model, ((x,), {}))
    with torch.no_grad():
        output = program.call(((x,), {}), dict(model.named_parameters()))[
            program.outputs.index(program.answer)
        ]
    reading = read(output, batch(x), program)
    assert (reading.dim, reading.kind) == (dim, kind)


ANSWERS = {
    "lenet": "input",
    "lstm": "input",
    "gru": "input",
    "segmenter": "pixel",
    "fused-qkv": "token",
    "gqa-sdpa": "token",
    "denoiser": "",
    "regression": "",
    "autoencoder": "",
    "super-resolution": "",
    "massive": "",
}


@pytest.mark.parametrize("name", ANSWERS)
def test_what_networks_of_the_zoo_answer(name: str) -> None:
    model, example = ZOO[name].build()
    assert read_program(record(model, ((example,), {})), batch(example)).kind == ANSWERS[name]


def test_labels_decide_what_an_output_answers() -> None:
    x = torch.randn(4, 3, 6, 6)
    pixels = torch.randint(0, 3, (4, 6, 6))
    assert read(x, batch(x)).dim is None  # three classes of a colour image, or three colours
    assert read(x, batch(x, labels=pixels)).dim == 1
    assert read(torch.randn(4, 5), batch(x, labels=torch.randn(4, 5))).dim is None
    assert read(torch.randn(4, 9, 5), batch(x, labels=torch.randint(0, 9, (4, 5)))).dim == 1
    assert read(torch.randn(4, 9, 5), batch(x, labels=torch.randint(0, 5, (4, 9)))).dim == 2


def test_targets_beside_the_inputs_are_labels() -> None:
    """(inputs, targets) as data sets have them: several numbers, masks of pixels, tokens to come."""
    torch.manual_seed(0)
    rows, pixels = torch.randn(40, 6), torch.randn(40, 3, 6, 6)
    regression = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 4))
    segmenter = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 3, 1))
    targets = torch.randn(40, 4)
    for data in ((rows, targets), [(rows, targets)], list(zip(rows, targets, strict=True))):
        report = subprune.prune(regression, data, keep=0.5, **QUIET).report
        assert math.isnan(report.agreement)
        assert "relative output error" in str(report)
    report = subprune.prune(
        segmenter, (pixels, torch.randint(0, 3, (40, 6, 6))), keep=0.5, **QUIET
    ).report
    assert (report.fitted.kind, report.fitted.answers) == ("pixel", 1440)
    assert report.accuracy is not None
    with pytest.raises(DataError, match="class numbers as labels, and these are fractions"):
        subprune.prune(
            regression, (rows, targets[:, 0]), keep=0.5, method="layer-act-grad", **QUIET
        )
    # single images, each with three numbers to be met
    images = list(zip(pixels, torch.randn(40, 3), strict=True))
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)
    )
    report = subprune.prune(model, images, keep=0.5, **QUIET).report
    assert (report.samples, report.fitted.kind) == (40, "")


def test_an_argument_that_the_model_has_a_use_for_is_no_label() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.out = nn.Embedding(11, 8), nn.Linear(8, 11)

        def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
            return self.out(self.words(ids))

    ids, mask = torch.randint(0, 11, (4, 6)), torch.ones(4, 6, dtype=torch.int64)
    assert batches((ids, mask), Masked())[0].labels is None
    last = batches((ids, mask, ids), Masked())[0].labels
    assert last is not None
    assert torch.equal(last, ids)


TWO_LAYERS = """
from torch import nn
def build():
    return nn.Sequential(nn.Linear(6, 9), nn.Linear(9, 3))
"""


def test_targets_of_a_file_stay_numbers(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fractions are not cut down to class numbers; class numbers saved as fractions are what they
    are.
    """
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(TWO_LAYERS)
    found = {}
    for name, labels in (
        ("numbers", torch.randn(40, 3).numpy()),
        ("classes", np.arange(40) % 3 + 0.0),
    ):
        np.savez(f"{name}.npz", x=torch.randn(40, 6).numpy(), labels=labels)
        args = (
            "--model",
            "net.py:build",
            "--data",
            f"{name}.npz",
            "--keep",
            0.5,
            "--no-time-calls",
            "--json",
        )
        found[name] = json.loads(run("prune", *args, "--no-guarantees").out)
    assert found["numbers"]["fitted"]["agreement"] is None
    assert found["numbers"]["accuracy"] is None
    assert found["classes"]["fitted"]["agreement"] is not None
    assert found["classes"]["accuracy"] is not None


# ---- comparisons ---------------------------------------------------------------------------------


def test_pixels_are_compared_over_their_classes() -> None:
    x, a = torch.randn(2, 1, 4, 6), torch.randn(2, 5, 4, 6)
    b = a.clone()
    # one pixel has another class; along the width, up to five answers change
    b[0, :, 1, 2] = b[0, :, 1, 2].roll(1)
    labels = a.argmax(1)
    labels[1, 0, :3] = -100
    labels[1, 3, 3] = (labels[1, 3, 3] + 1) % 5
    seen = compare([a], [b], [batch(x, labels=labels)])
    assert (seen.inputs, seen.answers, seen.kind) == (2, 48, "pixel")
    assert seen.agreement == 47 / 48
    assert seen.accuracy == (44 / 45, 43 / 45)
    assert seen.output_change == pytest.approx(
        float((a - b).square().sum() / a.square().sum()), rel=1e-6
    )


def test_tokens_are_compared_one_by_one() -> None:
    ids, a = torch.randint(0, 9, (3, 4)), torch.randn(3, 4, 9)
    b = a.clone()
    b[2, 3] = -b[2, 3]
    seen = compare([a[:2], a[2:]], [b[:2], b[2:]], [batch(ids[:2]), batch(ids[2:])])
    assert (seen.inputs, seen.answers, seen.kind, seen.agreement) == (3, 12, "token", 11 / 12)


def test_numbers_have_an_error_and_no_agreement() -> None:
    x, a = torch.randn(4, 7), torch.randn(4, 1)
    seen = compare([a], [1.1 * a], [batch(x, labels=torch.tensor([0, 1, 0, 1]))])
    assert math.isnan(seen.agreement)
    assert (seen.kind, seen.answers, seen.accuracy) == ("", 0, None)
    assert seen.output_change == pytest.approx(0.01, rel=1e-4)
    assert seen.relative_error == pytest.approx(0.1, rel=1e-4)


def test_masked_logits_give_a_finite_change() -> None:
    x, a = torch.randn(4, 7), torch.randn(4, 3)
    a[:, 1] = -math.inf
    b = a.clone()
    b[0, 0] += 1.0
    finite = a[:, [0, 2]]
    seen = compare([a], [b], [batch(x)])
    assert seen.output_change == pytest.approx(1.0 / float(finite.square().sum()), rel=1e-5)
    b[0, 1] = 0.0
    assert compare([a], [b], [batch(x)]).output_change == math.inf
    assert compare([0 * finite], [0 * finite], [batch(x)]).output_change == 0.0


def test_accuracy_needs_labels_for_every_batch() -> None:
    x, a = torch.randn(4, 7), torch.randn(4, 3)
    labels = a.argmax(1)
    assert compare([a, a], [a, a], [batch(x, labels=labels), batch(x)]).accuracy is None
    assert compare([a], [a], [batch(x, labels=labels + 3)]).accuracy is None
    assert compare([a], [-a], [batch(x, labels=labels)]).accuracy == (1.0, 0.0)


# ---- the report ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def segmented() -> Report:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 5, 1))
    return subprune.prune(model, torch.randn(20, 3, 6, 6), keep=0.5, ridge=0, **QUIET).report


def test_report_on_fitted_inputs_says_so(segmented: Report) -> None:
    assert segmented.held_out is None
    assert (segmented.fitted.inputs, segmented.fitted.answers, segmented.fitted.kind) == (
        20,
        720,
        "pixel",
    )
    assert segmented.agreement == segmented.fitted.agreement < 1
    text, page = " ".join(str(segmented).split()), segmented.to_html()
    assert (
        f"same answer for {segmented.agreement:.2%} of pixels, on the calibration data itself, which flatters"
        in text
    )
    assert (
        f"<b>{segmented.agreement:.1%}</b><span>of pixels: same answer as the dense model, on the calibration data"
        in page
    )


def test_report_on_held_out_inputs_shows_both(segmented: Report) -> None:
    report = replace(
        segmented,
        held_out=Comparison(
            inputs=7,
            answers=252,
            kind="pixel",
            agreement=0.813,
            output_change=0.04,
            accuracy=(0.9, 0.8),
        ),
    )
    assert (report.agreement, report.output_change) == (0.813, 0.04)
    text, page = " ".join(str(report).split()), report.to_html()
    fitted = report.fitted
    assert (
        f"81.30% of pixels, on 7 held-out inputs; on fitted inputs: same answer for {fitted.agreement:.2%}"
        in text
    )
    assert "flatters" not in text + page
    assert f"on 7 held-out inputs; on fitted inputs: {fitted.agreement:.1%}" in page
    again = Report.from_json(report.to_json())
    assert again.held_out == report.held_out
    assert again.to_json() == report.to_json()
    assert Report.from_json(segmented.to_json()).held_out is None


def test_report_of_numbers_has_an_error() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1))
    report = subprune.prune(model, torch.randn(40, 6), keep=0.3, **QUIET).report
    assert math.isnan(report.agreement)
    said = f"relative output error: {math.sqrt(report.output_change):.2%}"
    assert said in str(report)
    assert "agreement" not in str(report)
    assert "relative output error" in report.to_html()
    assert math.isnan(Report.from_json(report.to_json()).agreement)


# ---- FLOPs ---------------------------------------------------------------------------------------


class First(nn.Module):
    """A recurrent layer between two others; its last output, whatever comes with it."""

    def __init__(self, layer: nn.Module, made: int) -> None:
        super().__init__()
        self.fc1, self.layer, self.fc2 = nn.Linear(4, 5), layer, nn.Linear(made, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(self.fc1(x).relu())
        return self.fc2(y[0] if isinstance(y, tuple) else y)


RECURRENT: dict[str, tuple[Any, int, tuple[int, ...]]] = {
    "lstm": (lambda: nn.LSTM(5, 7, batch_first=True), 7, (2, 6, 4)),
    "deep lstm, both directions": (
        lambda: nn.LSTM(5, 7, num_layers=3, bidirectional=True),
        14,
        (2, 6, 4),
    ),
    "gru": (lambda: nn.GRU(5, 7, num_layers=2, batch_first=True), 7, (2, 6, 4)),
    "rnn": (lambda: nn.RNN(5, 7, bidirectional=True), 14, (2, 6, 4)),
    "lstm cell": (lambda: nn.LSTMCell(5, 7), 7, (2, 4)),
    "gru cell": (lambda: nn.GRUCell(5, 7), 7, (2, 4)),
    "rnn cell": (lambda: nn.RNNCell(5, 7), 7, (2, 4)),
}


@pytest.mark.parametrize("name", RECURRENT)
@pytest.mark.parametrize("fake", [True, False])
def test_recurrent_layers_are_counted(name: str, fake: bool) -> None:
    """Every weight of the layer is used once a step; so are those of the linear layers around it."""
    build, made, shape = RECURRENT[name]
    model, x = First(build(), made).eval(), torch.randn(shape)
    matrices = sum(p.numel() for p in model.parameters() if p.ndim == 2)
    expected = 2 * matrices * (x.numel() // 4)
    assert count_flops(model, ((x,), {})) == expected
    assert sum(op.flops for op in record(model, ((x,), {}), fake=fake).ops) == expected
    assert subprune.inspect(model, x).flops == expected // 2


def test_projections_and_packed_sequences_are_counted() -> None:
    layer = nn.LSTM(5, 7, num_layers=2, bidirectional=True, proj_size=3)
    matrices = sum(p.numel() for p in layer.parameters() if p.ndim == 2)
    assert recurrent_flops(layer, (torch.randn(6, 2, 5),), {}) == 2 * 12 * matrices
    packed = nn.utils.rnn.pack_padded_sequence(torch.randn(6, 2, 5), torch.tensor([6, 3]))
    assert recurrent_flops(layer, (), {"input": packed}) == 2 * 9 * matrices
    assert recurrent_flops(nn.Linear(2, 2), (torch.randn(2, 2),), {}) is None


def test_flops_are_for_one_input_everywhere() -> None:
    """Whatever the batches are: in the table, in the forecast, in the report and in the budget's
    message.
    """
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 4)), torch.randn(24, 6)
    whole = 2 * (6 * 10 + 10 * 4)
    for data in (x, x.split(8), [{"input": x}]):
        seen = subprune.forecast(model, data, keep=0.5)
        report = subprune.prune(model, data, keep=0.5, **QUIET).report
        assert seen.flops == report.flops == (whole, whole // 2)
        with pytest.raises(BudgetError, match=r"allows 7 FLOPs per input, .* 20 are left"):
            subprune.prune(model, data, flops=7, **QUIET)
    for count in (1, 3, 24):
        table = subprune.inspect(model, x[:count])
        assert (table.flops, table["0"].flops_per_unit) == (whole, (20, 20))
    assert f"{whole} FLOPs per input" in str(table)


# ---- budgets by answers --------------------------------------------------------------------------


def test_budgets_by_agreement_count_pixels() -> None:
    """Pruned alone to k channels, the curve is the agreement of pixels that the report of that
    model has.
    """
    torch.manual_seed(0)
    model, x = (
        nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 5, 1)),
        torch.randn(30, 3, 6, 4),
    )
    calibration = Calibration.of(model, batches(x, model))
    setting, recipe = setting_of(calibration), recipe_of("layer-in-change")
    found = accuracy_curves(setting, recipe, calibration, labels=False, fractions=(0.25, 0.5, 1.0))
    for k, value in zip(found["0"].counts, found["0"].values, strict=True):
        report = subprune.prune(
            model, x, budgets={"0": k}, method="layer-in-change", **QUIET
        ).report
        assert value == pytest.approx(report.agreement, abs=1.01 / 720)
    labels = torch.randint(0, 5, (30, 6, 4))
    labels[:, 0] = -100
    verification = calibration.on([replace(b, labels=labels) for b in calibration.batches])
    with torch.no_grad():
        right = (model(x).argmax(1) == labels)[:, 1:].float().mean()
    found = accuracy_curves(setting, recipe, verification, fractions=(1.0,))
    assert found["0"].values[-1] == pytest.approx(float(right), abs=1e-6)
    assert accuracy(model, verification.batches) == pytest.approx(float(right), abs=1e-6)


def test_budgets_by_answers_are_refused_for_numbers() -> None:
    model, x = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1)), torch.randn(40, 6)
    with pytest.raises(DataError, match="outputs are numbers; give allocate= another rule"):
        subprune.prune(model, x, compression=2, allocate="equal-agreement", **QUIET)
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3))
    wrong = [{"input": x, "labels": torch.zeros(40, 2, dtype=torch.int64)}]
    with pytest.raises(
        DataError, match=r"of shape \(40,\); verify_data has labels of shape \(40, 2\)"
    ):
        subprune.prune(
            model, x, compression=2, allocate="equal-accuracy", verify_data=wrong, **QUIET
        )


# ---- latency -------------------------------------------------------------------------------------


def timed(
    report: Report, before: tuple[float, float, float], after: tuple[float, float, float]
) -> Report:
    """The report with these medians and quartiles, in milliseconds."""
    medians, spreads = zip(
        *((m / 1e3, (low / 1e3, high / 1e3)) for low, m, high in (before, after)), strict=True
    )
    return replace(
        report,
        latency=medians,
        latency_spread=spreads,
        latency_inputs=1,
        latency_calls=20,
        latency_threads=2,
    )


def test_latency_has_a_spread_and_a_basis(segmented: Report) -> None:
    report = timed(segmented, (3.9, 4.0, 4.2), (1.9, 2.0, 2.1))
    said = (
        "2.00× faster: 4 ms (3.9–4.2) → 2 ms (1.9–2.1) for 1 input, 2 threads, median of 20 calls"
    )
    assert said in " ".join(str(report).split())
    page = report.to_html()
    assert "Latency <b>2.00× faster</b>" in page
    assert "4 ms (3.9–4.2) → 2 ms (1.9–2.1) for 1 input, 2 threads" in page
    spread = '<i style="width:47.62%"></i><em style="left:45.24%;width:4.76%"></em>'
    assert spread in page  # on the scale of the longest, 4.2 ms
    again = Report.from_json(report.to_json())
    assert again.latency_spread is not None
    assert again.latency_spread[0] == pytest.approx((0.0039, 0.0042))
    assert again.latency_threads == 2


@pytest.mark.parametrize("after", [(2.5, 3.0, 3.95), (3.0, 4.1, 5.0), (4.1, 6.0, 7.0)])
def test_no_verdict_where_the_spreads_overlap(
    segmented: Report, after: tuple[float, float, float]
) -> None:
    report = timed(segmented, (3.9, 4.0, 4.2), after)
    text, page = str(report), report.to_html()
    assert "no measurable difference: 4 ms (3.9–4.2) → " in " ".join(text.split())
    assert "no measurable difference" in page
    assert not any(word in text + page for word in ("faster", "slower"))


def test_a_goal_within_the_noise_is_neither_met_nor_missed() -> None:
    goal, dense = LatencyGoal("50%"), Latency(10.0, 9.0, 11.0, 40)
    assert goal.verdict(dense, Latency(4.0, 3.9, 4.5, 40)).startswith(
        "goal met: latency='50%' allows"
    )
    assert goal.verdict(dense, Latency(6.0, 5.6, 6.1, 40)).startswith("goal missed: ")
    for small in (
        Latency(4.9, 4.0, 5.1, 40),
        Latency(5.1, 5.0, 5.2, 40),
        Latency(4.0, 3.0, 4.6, 40),
    ):
        assert goal.verdict(dense, small).startswith("goal within the noise: ")
    assert LatencyGoal(4700.0).verdict(dense, Latency(4.6, 4.5, 4.65, 40)).startswith("goal met")


# ---- seconds and progress ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def deep() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    layers = [
        nn.Linear(6, 16),
        nn.ReLU(),
        nn.Linear(16, 12),
        nn.ReLU(),
        nn.Linear(12, 9),
        nn.ReLU(),
        nn.Linear(9, 4),
    ]
    return nn.Sequential(*layers), torch.randn(60, 6)


def test_a_stopwatch_loses_no_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [10.0]
    monkeypatch.setattr("subprune.measure.stopwatch.time.perf_counter", lambda: now[0])
    watch = Stopwatch()
    for part, seconds in (("a", 1.0), ("b", 2.0), ("a", 4.0)):
        now[0] += seconds
        watch.lap(part)
    assert watch.parts == {"a": 5.0, "b": 2.0}
    assert watch.seconds == 7.0


def test_seconds_are_what_the_user_waited(deep: tuple[nn.Module, Tensor]) -> None:
    """Slow data, checks and measurements included, in parts that add up."""
    model, x = deep

    def slow() -> Any:
        for part in x.split(20):
            time.sleep(0.1)
            yield part

    started = time.perf_counter()
    report = subprune.prune(model, slow(), compression=2, progress=False).report
    waited = time.perf_counter() - started
    assert report.seconds == pytest.approx(waited, rel=0.02, abs=0.02)
    assert sum(report.parts.values()) == pytest.approx(report.seconds, rel=0.01)
    assert set(report.parts) == {
        "reading data",
        "structure",
        "budgets",
        "pruning",
        "check",
        "measuring",
    }
    assert report.parts["reading data"] >= 0.3
    assert f"time: {report.seconds:.2f} s: reading data" in str(report)
    shown = f"reading data {report.parts['reading data']:.2f}"
    assert shown in str(report)
    assert shown in report.to_html()
    assert Report.from_json(report.to_json()).parts.keys() == report.parts.keys()


SLOW_FILE = """
import time, torch
def build():
    time.sleep(0.3)
    return torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
def inputs():
    time.sleep(0.4)
    return torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
"""


@pytest.mark.parametrize("bounds", ["--guarantees", "--no-guarantees"])
def test_a_command_counts_and_shows_what_it_loads(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bounds: str
) -> None:
    """A slow model and slow data, which are read again for the bounds."""
    monkeypatch.chdir(tmp_path)
    Path("slow.py").write_text(SLOW_FILE)
    monkeypatch.setattr(
        "subprune.cli.pruning.progress_bar",
        lambda stages, shown: progress_bar(stages, steps.append),
    )
    steps: list[Step] = []
    args = (
        "--model",
        "slow.py:build",
        "--data",
        "slow.py:inputs",
        "--keep",
        0.5,
        "--no-time-calls",
        "--json",
    )
    done = run("prune", *args, "--method", "asym-in-change", bounds)
    assert done.code == 0, done.err
    report = json.loads(done.out)
    parts = report["parts"]
    assert list(parts)[:3] == ["loading the model", "loading the data", "reading data"]
    assert parts["loading the model"] >= 0.3
    assert parts["loading the data"] >= 0.4
    assert parts.get("guarantees", 1) >= 0.4
    assert report["seconds"] == pytest.approx(sum(parts.values()), rel=1e-3)
    assert [s.text for s in steps] == ["loading the model", "done", "loading the data", "done"]


PROGRESS: dict[str, dict[str, Any]] = {
    "curves": {"compression": 2},
    "equal fractions": {"compression": 2, "allocate": "uniform"},
    "a fraction": {"keep": 0.5},
    "given": {"budgets": {"2": 3}},
    "agreement": {"compression": 2, "allocate": "equal-agreement"},
    "one ranking": {"compression": 2, "allocate": "score", "method": "weight-norm"},
    "latency": {"latency": 1e4},
    "latency, many looks": {
        "latency": 1e4,
        "allocate": "score",
        "method": "weight-norm",
        "round_to": 1,
    },
    "forecast": {"compression": 2},
    "verified": {"keep": 0.5, "verify_data": torch.randn(9, 6)},
}


@pytest.mark.parametrize("name", PROGRESS)
def test_progress_is_never_beyond_its_end_and_complete_at_it(
    deep: tuple[nn.Module, Tensor], name: str
) -> None:
    steps: list[Step] = []
    call = subprune.forecast if name == "forecast" else subprune.prune
    call(*deep, progress=steps.append, **PROGRESS[name])
    done = [s.done for s in steps]
    assert done == sorted(done)
    assert all(s.done < s.total for s in steps[:-1])
    assert steps[-1] == Step(steps[-1].total, steps[-1].total, "done")
    more = "verify_data" in PROGRESS[name]
    texts = [s.text for s in steps]
    setup = ["reading data", "recording the model", "trying the cuts"]
    setup += ["reading the other data"] if more else []
    assert texts[: len(setup)] == setup
    assert len({s.total for s in steps[len(setup) :]}) == 1  # the groups are known by then
    if name != "forecast":
        accuracy = ["accuracy on the verification data"] if more else []
        end = [
            "cutting and checking",
            "comparing outputs",
            *accuracy,
            "counting and timing",
            "done",
        ]
        assert texts[-len(end) :] == end


# ---- guarantees ----------------------------------------------------------------------------------

METHODS = ("layer-in-change", "seq-in-change", "asym-in-change")


@pytest.fixture(scope="module")
def pictures() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 6, 3),
        nn.ReLU(),
        nn.Conv2d(6, 8, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32, 12),
        nn.ReLU(),
        nn.Linear(12, 4),
    )
    return model, torch.randn(200, 1, 8, 8)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("patches", ["all", "random"])
def test_guarantees_are_about_the_selection_made(
    pictures: tuple[nn.Module, Tensor], method: str, patches: str
) -> None:
    result = subprune.prune(*pictures, keep=0.5, method=method, patches=patches, seed=3, **QUIET)
    counts, form = result.plan.counts, find_method(method).target.name
    same = {"target": form, "budgets": counts, "seed": 3, "patches": patches, "progress": False}
    steps: list[Step] = []
    proven = guarantees(*pictures, **{**same, "progress": steps.append})
    assert [s.done for s in steps] == [0, 1, 2, 3, 4]
    assert (steps[-1].total, steps[-1].text) == (4, "done")
    lines = result.with_guarantees(proven).report.guarantees
    assert len(lines) == len(counts) == 3
    for line, group in zip(lines, result.plan.groups, strict=True):
        assert line.error == pytest.approx(group.errors[line.k], rel=1e-3)
        assert line.error <= line.bound
        assert ("at random patches of each image" in line.assumptions) == (patches == "random")
    if patches == "random":
        for other in ({"patches": "all"}, {"seed": 4}):
            with pytest.raises(OptionError, match="are about another selection"):
                result.with_guarantees(guarantees(*pictures, **{**same, **other}))
    with pytest.raises(OptionError, match="are about another selection"):
        result.with_guarantees(guarantees(pictures[0], pictures[1][:60], **same))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"batchnorm": "recalibrate"}, "batchnorm='recalibrate'"),
        ({"batchnorm": "sequential"}, "batchnorm='sequential'"),
        ({"epsilon": 0.3}, "units are chosen by Greedy(epsilon=0.3)"),
        ({"fit": "keep"}, "weights are left to Keep()"),
        ({"method": "layer-weight-norm"}, "units are chosen by WeightNorm(mean=False)"),
        ({"method": "auto"}, "target 'residual'); ask for method='asym-in-change' to have them"),
    ],
    ids=str,
)
def test_bounds_are_refused_for_what_was_not_selected_that_way(
    pictures: tuple[nn.Module, Tensor], options: dict[str, Any], why: str
) -> None:
    how = {"method": "asym-in-change", **options}
    result = subprune.prune(*pictures, keep=0.5, **how, **QUIET)
    proven = guarantees(*pictures, target="asymmetric", budgets=result.plan.counts, progress=False)
    with pytest.raises(OptionError, match=f"bounds are proven for plain greedy .*{re.escape(why)}"):
        result.with_guarantees(proven)
    assert html.escape(why) in result.report.to_html()


@pytest.mark.parametrize(
    "options",
    [
        {"fit": "affine"},
        {"fit": Ridge(ridge=0.01, folds=2)},
        {"target": Layer(clip=2.0)},
        {"target": Layer(patches="random")},
    ],
    ids=str,
)
def test_guarantees_know_parts_from_others_of_their_name(
    pictures: tuple[nn.Module, Tensor], options: dict[str, Any]
) -> None:
    result = subprune.prune(*pictures, keep=0.5, method="asym-in-change", **options, **QUIET)
    same = {"target": result.plan.target, "budgets": result.plan.counts, "progress": False}
    with pytest.raises(OptionError, match="are about another selection"):
        result.with_guarantees(guarantees(*pictures, **same))
    if "fit" in options:
        proven = guarantees(*pictures, **same, **options)
        for line, group in zip(
            result.with_guarantees(proven).report.guarantees, result.plan.groups, strict=True
        ):
            assert line.error == pytest.approx(group.errors[line.k], rel=1e-3)
