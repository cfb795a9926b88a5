"""`prune` end to end on LeNet: right, repeatable, and leaving everything it was given alone."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import subprune
from subprune.cutting.masking import mask
from subprune.data.batches import batches
from subprune.errors import BudgetError, DataError, OptionError, SubpruneError
from subprune.program.record import as_inputs
from subprune.statistics.calibration import Calibration
from subprune.statistics.runs import Passage
from subprune.structure.analysis import find_groups
from subprune.structure.groups import in_order
from subprune.zoo.correct import count_correct
from subprune.zoo.datasets import load
from subprune.zoo.models import LeNet, shipped_lenet

VARIANTS = ("layer-in-change", "seq-in-change", "asym-in-change")


@pytest.fixture(scope="module")
def lenet() -> nn.Module:
    return shipped_lenet()[0]


@pytest.fixture(scope="module")
def images() -> Tensor:
    return load("mnist-sample", "train").inputs(torch.arange(192))


# ---- right --------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", VARIANTS)
@pytest.mark.parametrize("fit", [None, "keep"])
def test_pruned_is_smaller_and_equals_masked(
    lenet: nn.Module, images: Tensor, method: str, fit: str | None
) -> None:
    budgets = {"conv1": 3, "conv2": 7, "fc1": 40, "fc2": 30}
    result = subprune.prune(lenet, images, method=method, budgets=budgets, fit=fit)
    assert result.plan.counts == budgets
    assert result.model.conv2.weight.shape == (7, 3, 3, 3)
    assert result.model.fc1.weight.shape == (40, 7 * 25)
    assert result.model.fc1.in_features == 175
    full = masked_and_reweighted(lenet, result)
    expected, found = full(as_inputs(images))[0], result.model(images)
    assert torch.allclose(
        found, expected, rtol=1e-5, atol=1e-5 * float(expected.detach().abs().max())
    )


def masked_and_reweighted(lenet: nn.Module, result: subprune.Result) -> object:
    """The full-size LeNet with the pruned one's weights put back in place and the other units off."""
    structure = find_groups(lenet, torch.zeros(192, 1, 28, 28))
    full = copy.deepcopy(lenet)
    kept = result.plan.kept
    rows = {
        "conv1": range(1),
        "conv2": kept["conv1"],
        "fc1": kept["conv2"],
        "fc2": kept["fc1"],
        "fc3": kept["fc2"],
    }
    with torch.no_grad():
        for name, units in rows.items():
            small, big = result.model.get_submodule(name), full.get_submodule(name)
            own = kept.get(name, range(10))
            columns = np.asarray(units)
            if name == "fc1":  # 25 pixels of every channel
                columns = (columns[:, None] * 25 + np.arange(25)).ravel()
            big.weight[np.ix_(np.asarray(own), columns)] = small.weight
            big.bias[list(own)] = small.bias
    return mask(full, structure, kept)


@pytest.mark.parametrize("method", VARIANTS)
def test_first_group_equals_least_squares_on_raw_activations(
    lenet: nn.Module, images: Tensor, method: str
) -> None:
    """Only the first layer pruned: all three variants are the same regression, which numpy solves
    too.
    """
    result = subprune.prune(lenet, images, method=method, budgets={"conv1": 3})
    kept = list(result.plan.kept["conv1"])
    with torch.no_grad():
        a = F.max_pool2d(F.relu(lenet.conv1(images)), 2)
    patches = F.unfold(a.double(), 3).movedim(1, -1).reshape(-1, 54)
    target = patches @ lenet.conv2.weight.detach().double().reshape(16, -1).T
    columns = [9 * c + j for c in kept for j in range(9)]
    weights = torch.linalg.lstsq(patches[:, columns], target, driver="gelsd").solution
    found = result.model.conv2.weight.detach().reshape(16, -1).T
    assert torch.allclose(found.double(), weights, rtol=1e-3, atol=1e-4)
    left = float((patches[:, columns] @ weights - target).square().sum() / target.square().sum())
    assert result.plan.groups[0].error == pytest.approx(left, rel=1e-4)


def test_asymmetric_target_is_the_dense_model(lenet: nn.Module, images: Tensor) -> None:
    """With two layers pruned, the second one's weights solve min ‖A W − B_S W̃‖ on raw activations."""
    result = subprune.prune(
        lenet, images, method="asym-in-change", budgets={"fc1": 30, "fc2": 20}, ridge=0
    )
    small = result.model
    with torch.no_grad():
        dense = dense_input(lenet, images)
        target = dense.double() @ lenet.fc3.weight.double().T
        b = F.relu(small.fc2(F.relu(small.fc1(flat(small, images))))).double()
    weights = torch.linalg.lstsq(b, target, driver="gelsd").solution
    best = float((b @ weights - target).square().sum() / target.square().sum())
    assert result.plan.groups[1].error == pytest.approx(best, rel=1e-3)
    own = float(
        (b @ small.fc3.weight.detach().double().T - target).square().sum() / target.square().sum()
    )
    assert own == pytest.approx(best, rel=1e-3)


def flat(model: nn.Module, x: Tensor) -> Tensor:
    x = F.max_pool2d(F.relu(model.conv1(x)), 2)
    return F.max_pool2d(F.relu(model.conv2(x)), 2).flatten(1)


def dense_input(model: nn.Module, x: Tensor) -> Tensor:
    return F.relu(model.fc2(F.relu(model.fc1(flat(model, x)))))


def test_smaller_budget_is_a_prefix(lenet: nn.Module, images: Tensor) -> None:
    big = subprune.prune(lenet, images, budgets={"fc1": 60}).plan.groups[0]
    small = subprune.prune(lenet, images, budgets={"fc1": 25}).plan.groups[0]
    assert small.order == big.order
    assert set(small.kept) == set(big.order[:25])


def test_same_seed_same_bits(lenet: nn.Module, images: Tensor) -> None:
    runs = [subprune.prune(lenet, images, keep=0.4, epsilon=0.2, seed=3) for _ in range(2)]
    assert runs[0].plan.kept == runs[1].plan.kept
    for a, b in zip(runs[0].model.parameters(), runs[1].model.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("method", VARIANTS)
def test_accuracy_survives(lenet: nn.Module, method: str) -> None:
    """Four times smaller without labels or fine-tuning, and still far above what no reweighting
    leaves.
    """
    test = load("mnist-sample", "test").subset(torch.arange(2000))
    data = load("mnist-sample", "train").inputs(torch.arange(512))
    result = subprune.prune(lenet, data, method=method, compression=4)
    plain = subprune.prune(lenet, data, method=method, compression=4, fit="keep")
    good, bad = (count_correct(r.model, test) / len(test) for r in (result, plain))
    assert good > 0.94
    assert good > bad


@pytest.mark.parametrize("allocate", ["uniform", "error"])
@pytest.mark.parametrize("goal", [{"compression": 3}, {"compression": 20.5}, {"speedup": 2.5}])
def test_target_is_met_and_filled(
    lenet: nn.Module, images: Tensor, allocate: str, goal: dict[str, float]
) -> None:
    result = subprune.prune(lenet, images, allocate=allocate, **goal)
    report = result.report
    name, ratio = next(iter(goal.items()))
    before, after = report.parameters if name == "compression" else report.flops
    assert after <= before / ratio
    for group in result.plan.groups:  # not one more unit fits
        if len(group.kept) < group.units:
            more = {**result.plan.counts, group.name: len(group.kept) + 1}
            bigger = subprune.prune(
                lenet, images[:8], budgets=more, method="layer-in-change"
            ).report
            assert (bigger.parameters if name == "compression" else bigger.flops)[1] * (
                1 if name == "compression" else images[:128].shape[0] / 8
            ) > before / ratio


# ---- leaving things alone -----------------------------------------------------------------------


def test_caller_keeps_everything(lenet: nn.Module, images: Tensor) -> None:
    model = copy.deepcopy(lenet).train()
    model.fc1.eval()
    seen: list[int] = []
    model.conv1.register_forward_hook(lambda *_: seen.append(1))
    model(images[:4]).sum().backward()
    before = {
        n: (x.clone(), x.grad.clone()) for n, x in model.named_parameters() if x.grad is not None
    }
    ids = {n: id(x) for n, x in model.named_parameters()}
    modes = [m.training for m in model.modules()]
    rng, linear = torch.get_rng_state(), F.linear
    hooks = len(model.conv1._forward_hooks)
    subprune.prune(model, images, keep=0.5)
    assert torch.equal(rng, torch.get_rng_state())
    assert F.linear is linear
    assert modes == [m.training for m in model.modules()]
    assert ids == {n: id(x) for n, x in model.named_parameters()}
    assert len(model.conv1._forward_hooks) == hooks
    assert torch.is_grad_enabled()
    for n, x in model.named_parameters():
        assert torch.equal(x, before[n][0])
        assert torch.equal(x.grad, before[n][1])


def test_labels_are_ignored(lenet: nn.Module, images: Tensor) -> None:
    labels = torch.zeros(len(images), dtype=torch.int64)
    a = subprune.prune(lenet, images, keep=0.5)
    b = subprune.prune(lenet, (images, labels), keep=0.5)
    c = subprune.prune(
        lenet, list(zip(images.split(128), labels.split(128), strict=True)), keep=0.5
    )
    assert a.plan.kept == b.plan.kept == c.plan.kept


# ---- bad input ----------------------------------------------------------------------------------


def broken(value: float, layer: str = "conv2") -> nn.Module:
    model = LeNet()
    with torch.no_grad():
        model.get_submodule(layer).weight.view(-1)[3] = value
    return model


def with_nan(images: Tensor) -> Tensor:
    return torch.where(torch.arange(images.numel()).reshape(images.shape) == 77, torch.nan, images)


BAD = {
    "empty tensor": (lambda m, x: (m, x[:0], {"keep": 0.5}), DataError, "empty"),
    "empty list": (lambda m, x: (m, [], {"keep": 0.5}), DataError, "empty"),
    "a generator that ran out": (
        lambda m, x: (m, (i for i in ()), {"keep": 0.5}),
        DataError,
        "empty",
    ),
    "nan input": (lambda m, x: (m, with_nan(x), {"keep": 0.5}), DataError, "batch 1.*NaN"),
    "inf input": (lambda m, x: (m, x / 0, {"keep": 0.5}), DataError, "NaN or infinity"),
    "nan weight": (lambda m, x: (broken(float("nan")), x, {"keep": 0.5}), DataError, "'conv2'"),
    "inf weight": (
        lambda m, x: (broken(float("inf"), "fc1"), x, {"keep": 0.5}),
        DataError,
        "'fc1'",
    ),
    "wrong shape": (lambda m, x: (m, x[:, :, :10], {"keep": 0.5}), DataError, "shapes"),
    "wrong channels": (lambda m, x: (m, x.repeat(1, 3, 1, 1), {"keep": 0.5}), DataError, "shapes"),
    "a string": (lambda m, x: (m, "images/", {"keep": 0.5}), DataError, "cannot be read"),
    "a number": (lambda m, x: (m, 3, {"keep": 0.5}), DataError, "int"),
    "k zero": (lambda m, x: (m, x, {"budgets": {"conv1": 0}}), BudgetError, "1 to 6"),
    "k too large": (lambda m, x: (m, x, {"budgets": {"conv1": 7}}), BudgetError, "1 to 6"),
    "k a float": (lambda m, x: (m, x, {"budgets": {"conv1": 2.5}}), BudgetError, "integer"),
    "unknown group": (lambda m, x: (m, x, {"budgets": {"conv3": 2}}), BudgetError, "did you mean"),
    "keep zero": (lambda m, x: (m, x, {"keep": 0}), BudgetError, "above 0"),
    "keep above one": (lambda m, x: (m, x, {"keep": 1.5}), BudgetError, "at most 1"),
    "ratio below one": (lambda m, x: (m, x, {"compression": 0.5}), BudgetError, "at least 1"),
    "ratio too large": (lambda m, x: (m, x, {"compression": 1e5}), BudgetError, "nearest feasible"),
    "two goals": (
        lambda m, x: (m, x, {"keep": 0.5, "compression": 2}),
        OptionError,
        "give one goal",
    ),
    "no goal": (lambda m, x: (m, x, {}), OptionError, "give one goal"),
    "unknown method": (
        lambda m, x: (m, x, {"keep": 0.5, "method": "asym"}),
        OptionError,
        "asym-in-change",
    ),
    "unknown rule": (
        lambda m, x: (m, x, {"compression": 2, "allocate": "eror"}),
        OptionError,
        "'error'",
    ),
    "epsilon": (lambda m, x: (m, x, {"keep": 0.5, "epsilon": 2}), OptionError, "between 0 and 1"),
    "eight bits": (
        lambda m, x: (copy.deepcopy(m).to(torch.float8_e4m3fn), x, {"keep": 0.5}),
        OptionError,
        "bfloat16",
    ),
    "not a model": (lambda m, x: ("resnet18", x, {"keep": 0.5}), OptionError, "nn.Module"),
    "progress": (lambda m, x: (m, x, {"keep": 0.5, "progress": "yes"}), OptionError, "progress"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_named_and_harmless(lenet: nn.Module, images: Tensor, case: str) -> None:
    make, error, text = BAD[case]
    before = {n: x.clone() for n, x in lenet.state_dict().items()}
    model, data, options = make(lenet, images)
    with pytest.raises(error, match=text) as caught:
        subprune.prune(model, data, **options)
    assert isinstance(caught.value, SubpruneError)
    assert all(torch.equal(x, before[n]) for n, x in lenet.state_dict().items())
    assert not lenet.training


def test_generator_may_be_shorter_than_asked(lenet: nn.Module, images: Tensor) -> None:
    result = subprune.prune(lenet, (x for x in images.split(64)), keep=0.5, n_samples=10_000)
    assert result.report.samples == 192


def test_n_samples_cuts_a_batch(lenet: nn.Module, images: Tensor) -> None:
    assert [b.size for b in batches(images, lenet, 150)] == [128, 22]
    assert subprune.prune(lenet, images, keep=0.5, n_samples=150).report.samples == 150


# ---- rank deficiency ----------------------------------------------------------------------------


def deficient(kind: str, lenet: nn.Module) -> nn.Module:
    model = copy.deepcopy(lenet)
    with torch.no_grad():
        if kind == "dead channels":
            for layer, unit in ((model.conv1, 2), (model.conv2, 5), (model.fc1, 9)):
                layer.weight[unit] = 0
                layer.bias[unit] = -1
        elif kind == "duplicates":
            for layer in (model.conv1, model.conv2, model.fc1):
                layer.weight[1], layer.bias[1] = layer.weight[0], layer.bias[0]
        else:
            model.conv1.weight.zero_()
            model.conv1.bias.fill_(-1)
    return model


@pytest.mark.parametrize("method", VARIANTS)
@pytest.mark.parametrize("kind", ["dead channels", "duplicates", "a dead layer"])
@pytest.mark.parametrize("samples", [3, 192])
def test_deficient_layers(
    lenet: nn.Module, images: Tensor, method: str, kind: str, samples: int
) -> None:
    model = deficient(kind, lenet)
    result = subprune.prune(model, images[:samples], method=method, keep=0.5)
    for group in result.plan.groups:
        assert len(set(group.order)) == len(group.order) == group.units
        assert all(0 <= e <= 1 + 1e-12 for e in group.errors)
        assert 0 <= group.error <= 1 + 1e-9
    assert all(bool(torch.isfinite(p).all()) for p in result.model.parameters())
    if kind == "dead channels":
        dead = {"conv1": 2, "conv2": 5, "fc1": 9}
        for group in result.plan.groups[:3]:
            assert dead[group.name] in group.dependent
            if samples > 100:  # otherwise a few units explain everything, and any others may follow
                assert dead[group.name] not in group.kept


# ---- saving -------------------------------------------------------------------------------------


def test_saved_model_loads_and_wrong_ones_are_refused(
    lenet: nn.Module, images: Tensor, tmp_path
) -> None:
    result = subprune.prune(lenet, images, compression=4)
    path = subprune.save(result, tmp_path / "small.safetensors")
    again = subprune.load(LeNet(), path)
    assert torch.equal(again.eval()(images), result.model.eval()(images))
    with pytest.raises(DataError, match="not saved from this kind"):
        subprune.load(nn.Sequential(nn.Linear(784, 3)), path)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match="damaged"):
        subprune.load(LeNet(), path)
    path.write_bytes(content.replace(b'\\"kept\\": [', b'\\"kept\\":[ ', 1))
    with pytest.raises(DataError):
        subprune.load(LeNet(), path)


def test_result_prints_as_a_table(lenet: nn.Module, images: Tensor) -> None:
    text = str(subprune.prune(lenet, images, compression=4).report)
    assert all(word in text for word in ("conv1", "conv2", "fc1", "fc2", "parameters", "FLOPs"))


def test_progress_callback_sees_every_step(lenet: nn.Module, images: Tensor) -> None:
    steps: list[object] = []
    subprune.prune(lenet, images, compression=4, progress=steps.append)
    # 3 before groups are known, 4 curves, 4 groups, 3 after, done
    assert [s.done for s in steps] == list(range(15))
    assert {s.total for s in steps[3:]} == {14}


def test_a_run_keeps_no_way_back_past_groups_that_are_decided() -> None:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(4):
        layers += [nn.Conv2d(4, 4, 3, padding=1), nn.GroupNorm(1, 4), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(4 * 36, 3)).eval()
    calibration = Calibration.of(model, batches(torch.randn(8, 4, 6, 6), model, None))
    groups = in_order([g for g in calibration.structure.groups if g.narrowings])
    assert len(groups) == 4
    passage = Passage(calibration.start(), groups)
    for group in groups:
        mark = passage.go_to(group)
        assert mark is not None
        assert mark.position == group.first_op
        assert not passage._marks
