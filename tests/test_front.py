"""The front door: targets, dry runs, data in all its forms, refusals, and results that show themselves."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import subprune
from subprune.errors import BudgetError, DataError, OptionError
from subprune.experiments.models import LeNet

FAST: dict[str, Any] = {"method": "layer-in-change", "allocate": "uniform"}


@pytest.fixture(scope="module")
def lenet() -> nn.Module:
    torch.manual_seed(0)
    return LeNet().eval()


@pytest.fixture(scope="module")
def images() -> Tensor:
    return torch.randn(40, 1, 28, 28, generator=torch.Generator().manual_seed(0))


# ---- targets --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "same"),
    [
        ({"params": "50%"}, {"compression": 2}),
        ({"params": 20_000}, {"params": 20_000.0}),
        ({"flops": "40%"}, {"speedup": 2.5}),
    ],
)
def test_targets_in_other_words(lenet: nn.Module, images: Tensor, target: Any, same: Any) -> None:
    a, b = (subprune.prune(lenet, images, dry_run=True, **FAST, **t) for t in (target, same))
    assert a.counts == b.counts
    assert a.feasible


def test_flops_count_for_one_input(lenet: nn.Module, images: Tensor) -> None:
    """The number does not depend on how the data is cut into batches."""
    whole = subprune.prune(lenet, images, flops=200_000, dry_run=True, **FAST)
    split = subprune.prune(lenet, images.split(8), flops=200_000, dry_run=True, **FAST)
    assert whole.counts == split.counts
    assert whole.flops[1] / 40 == split.flops[1] / 8 <= 200_000


def test_dry_run_predicts_exactly(lenet: nn.Module, images: Tensor) -> None:
    for options in ({"compression": 3}, {"keep": 0.4}, {"budgets": {"fc1": 11}}, {"speedup": 2, **FAST}):
        seen = subprune.prune(lenet, images, dry_run=True, **options)
        done = subprune.prune(lenet, images, **options)
        assert seen.counts == done.plan.counts
        assert (seen.parameters, seen.flops) == (done.report.parameters, done.report.flops)
        assert bool(seen.needed) == (options == {"compression": 3})  # only error curves need statistics


def test_dry_run_names_what_cannot_be(lenet: nn.Module, images: Tensor) -> None:
    seen = subprune.prune(lenet, images, compression=5000, dry_run=True)
    assert not seen.feasible
    assert "compression=5000 cannot be reached" in seen.problem
    assert set(seen.counts.values()) == {1}
    smallest = seen.parameters[0] / seen.parameters[1]
    assert f"nearest feasible ratio is {smallest:.2f}" in seen.problem
    assert "cannot meet the target" in " ".join(str(seen).split())
    assert not seen.needed  # said before any statistics
    text = subprune.prune(lenet, images, keep=0.5, dry_run=True)._repr_html_()
    assert "conv1" in text


# ---- options --------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "a typing error": ({"compresion": 2}, OptionError, "did you mean 'compression'"),
    "no such option": ({"keep": 0.5, "colour": "red"}, OptionError, "unknown option 'colour'"),
    "params of text": ({"params": "half"}, BudgetError, 'such as "50%"'),
    "params of nothing": ({"params": 0}, BudgetError, "positive"),
    "params above all": ({"params": "120%"}, BudgetError, "at most"),
    "flops of nan": ({"flops": float("nan")}, BudgetError, "positive"),
    "flops of nothing": ({"flops": "0%"}, BudgetError, "positive"),
    "flops of true": ({"flops": True}, BudgetError, "positive"),
    "two targets": ({"flops": "50%", "speedup": 2}, OptionError, "exactly one target"),
    "budgets and a rule": ({"budgets": {"fc1": 3}, "allocate": "error"}, OptionError, "nothing for allocate"),
    "keep and a rule": ({"keep": 0.5, "allocate": "error"}, OptionError, "has no say"),
    "budgets as a list": ({"budgets": [3, 4]}, BudgetError, "must be a dict"),
    "too few params": ({"params": 10}, BudgetError, "cannot be reached"),
    "samples": ({"keep": 0.5, "n_samples": "many"}, DataError, "n_samples"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_help(lenet: nn.Module, images: Tensor, case: str) -> None:
    options, error, text = REFUSED[case]
    with pytest.raises(error, match=text):
        subprune.prune(lenet, images, **options)


# ---- data -----------------------------------------------------------------------------------------


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(5, 9), nn.Linear(4, 9), nn.Linear(9, 2)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.c(torch.relu(self.a(x)) * torch.sigmoid(self.b(y)))


def test_data_in_all_its_forms(lenet: nn.Module, images: Tensor) -> None:
    labels = torch.arange(40) % 10
    loader = DataLoader(TensorDataset(images, labels), batch_size=10)
    few = {"conv1": 3, "fc1": 20}  # fewer columns than samples: no ties
    wanted = subprune.prune(lenet, images, budgets=few).plan.kept
    forms: dict[str, Any] = {
        "loader": loader,
        "list": list(images.split(10)),
        "generator": (x for x in images.split(16)),
        "tuples": [(x, y) for x, y in zip(images.split(10), labels.split(10), strict=True)],
        "dicts": [{"x": x, "labels": y} for x, y in zip(images.split(10), labels.split(10), strict=True)],
    }
    for name, data in forms.items():
        assert subprune.prune(lenet, data, budgets=few).plan.kept == wanted, name
    odd = [{"pixels": x, "id": str(i)} for i, x in enumerate(images.split(10))]
    assert subprune.prune(lenet, odd, budgets=few, forward=lambda item: item["pixels"]).plan.kept == wanted


def test_several_inputs() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(30, 5), torch.randn(30, 4)
    model = TwoInputs()
    a = subprune.prune(model, [(x, y)], keep=0.5)
    b = subprune.prune(model, [{"x": x, "y": y}], keep=0.5)
    c = subprune.prune(model, [{"pair": (x, y)}], keep=0.5, forward=lambda item: item["pair"])
    assert a.plan.kept == b.plan.kept == c.plan.kept


def test_labels_give_an_accuracy(lenet: nn.Module, images: Tensor) -> None:
    labels = torch.arange(40) % 10
    report = subprune.prune(lenet, (images, labels), keep=0.8).report
    assert report.accuracy is not None
    assert report.accuracy[0] == pytest.approx(float((lenet(images).argmax(-1) == labels).float().mean()))
    assert report.accuracy_on == "the calibration data"
    report = subprune.prune(lenet, images, keep=0.8, verify_data=(images[:20], labels[:20])).report
    assert report.accuracy is not None
    assert report.accuracy_on == "the verification data"
    assert subprune.prune(lenet, images, keep=0.8).report.accuracy is None


# ---- results --------------------------------------------------------------------------------------


def test_report_says_what_was_measured(lenet: nn.Module, images: Tensor) -> None:
    result = subprune.prune(lenet, images, keep=0.6, time_calls=True)
    report = result.report
    with torch.no_grad():
        a, b = lenet(images), result.model(images)
    assert report.agreement == pytest.approx(float((a.argmax(-1) == b.argmax(-1)).float().mean()))
    assert report.output_change == pytest.approx(float((a - b).square().sum() / a.square().sum()), rel=1e-4)
    assert report.latency is not None
    assert all(t > 0 for t in report.latency)
    assert [(x.name, x.before, x.after) for x in report.layers] == [
        ("conv1", 6, 3), ("conv2", 16, 9), ("fc1", 120, 72), ("fc2", 84, 50), ("fc3", 10, 10)
    ]  # fmt: skip
    text = str(result)
    assert all(words in text for words in ("agreement", "latency", "output change", "conv2"))
    assert "conv2" in result._repr_html_()


def test_report_survives_json(lenet: nn.Module, images: Tensor) -> None:
    report = subprune.prune(lenet, images, keep=0.6).report
    again = subprune.Report.from_json(report.to_json())
    assert again.to_json() == report.to_json()
    assert again.plan.kept == report.plan.kept


def test_pruning_again_starts_from_the_pruned_model(lenet: nn.Module, images: Tensor) -> None:
    first = subprune.prune(lenet, images, compression=2)
    second = subprune.prune(first.model, images, compression=2)
    assert second.report.parameters[0] == first.report.parameters[1]
    assert second.report.parameters[1] <= first.report.parameters[0] / 4
    assert second.model(images).shape == (40, 10)


# ---- which groups, and how fast -------------------------------------------------------------------


def test_only_and_ignore(lenet: nn.Module, images: Tensor) -> None:
    assert set(subprune.prune(lenet, images, keep=0.5, only="re:conv", dry_run=True).counts) == {"conv1", "conv2"}
    assert set(subprune.prune(lenet, images, keep=0.5, only=[nn.Linear], dry_run=True).counts) == {"fc1", "fc2"}
    seen = subprune.prune(lenet, images, compression=1.1, ignore=["fc1", lenet.conv2])
    assert set(seen.plan.counts) == {"conv1", "fc2"}
    assert seen.report.refused["fc1"] == "not asked for"
    assert seen.plan.options["ignore"] == ["fc1", "Conv2d"]
    with pytest.raises(OptionError, match="did you mean 'conv1'"):
        subprune.prune(lenet, images, keep=0.5, only="conv11")
    with pytest.raises(BudgetError, match="only= and ignore="):
        subprune.prune(lenet, images, keep=0.5, only="fc1", ignore="re:fc")


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.start, self.a, self.b, self.end = nn.Linear(6, 8), nn.Linear(8, 12), nn.Linear(12, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.start(x)
        return self.end(x + self.b(torch.relu(self.a(x))))


def test_a_stream_is_pruned_when_named() -> None:
    torch.manual_seed(0)
    model, x = Residual(), torch.randn(64, 6)
    stream = next(g.name for g in subprune.find_groups(model, x) if g.kind == "stream")
    assert set(subprune.prune(model, x, keep=0.5).plan.counts) == {"a"}
    assert subprune.prune(model, x, keep=0.5, only=stream).model.end.in_features == 4
    assert subprune.prune(model, x, budgets={stream: 5, "a": 6}).model.end.in_features == 5


def test_latency_is_measured_and_met() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 8))
    x = torch.randn(256, 64)
    result = subprune.prune(model, x, latency="60%", method="layer-weight-norm", allocate="uniform", reweight=False)
    assert all(k % 8 == 0 for k in result.plan.counts.values())
    assert result.report.latency is not None
    assert result.report.latency[1] < 0.9 * result.report.latency[0]  # clocks on a shared machine scatter
    assert max(result.plan.counts.values()) > 64
    with pytest.raises(BudgetError, match="cannot be reached"):
        subprune.prune(model, x, latency="0.001%", allocate="uniform")
    assert not subprune.prune(model, x, latency=1e-6, allocate="uniform", dry_run=True).feasible


def test_inspect_is_public(lenet: nn.Module, images: Tensor) -> None:
    seen = subprune.inspect(lenet, images)
    assert [row.name for row in seen] == ["conv1", "conv2", "fc1", "fc2"]
    assert "fc3" in str(seen)
    assert "conv2" in seen._repr_html_()
