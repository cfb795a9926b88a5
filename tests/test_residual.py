"""The residual target, its metric and its rounds, against explicit rows."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from landing_nets import NETS, Net, Plain, Problem, made, refit, slow_choice, slow_refit
from torch import Tensor, nn
from views import setting_of
from zoo import ZOO, run

import subprune
from subprune.data.batches import batches
from subprune.fit.affine import Affine
from subprune.fit.cross_fit import Fitted
from subprune.loop.tour import Tour
from subprune.statistics.calibration import Calibration
from subprune.statistics.metric import PROBES, measure_metric
from subprune.statistics.place import Place, generator
from subprune.statistics.residual import Residual
from subprune.structure.groups import Consumer

QUIET: dict[str, Any] = {"progress": False, "time_calls": False}
EXACT = Affine(ridge=0.0, folds=1)


def pruned(
    net: Net, model: nn.Module, x: Tensor, target: Residual, **options: Any
) -> subprune.Result:
    settings = {"budgets": net.keep, "method": "auto", "fit": EXACT, **options}
    return subprune.prune(model, x, target=target, **settings, **QUIET)


def outputs(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        y: Tensor = model(x)
    return y


def calibration_of(model: nn.Module, x: Tensor, folds: int = 1) -> Calibration:
    return Calibration.of(model, batches([x], model, None), folds)


def consumer_of(calibration: Calibration, name: str) -> Consumer:
    return next(c for c in calibration.structure.layers if c.name == name)


# ---- the fit -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("rounds", "metric"), [(0, False), (1, False), (2, True)])
@pytest.mark.parametrize("name", NETS)
def test_auto_is_least_squares_layer_by_layer(name: str, rounds: int, metric: bool) -> None:
    """Also where outputs are felt more or less: without a ridge each has weights of its own."""
    net = NETS[name]
    dense, x = net.build(), net.data()
    result = pruned(net, dense, x, Residual(rounds=rounds, metric=metric))
    slow = slow_refit(net, dense, x, result.plan.kept, rounds)
    unseen = net.data(20, seed=9)
    torch.testing.assert_close(
        outputs(result.model, unseen), outputs(slow, unseen), rtol=1e-6, atol=1e-8
    )


def test_the_constant_is_in_the_bias_of_the_norm() -> None:
    net = NETS["plain"]
    dense, x = net.build(), net.data()
    result = pruned(net, dense, x, Residual(rounds=0, metric=False), drift=False)
    slow = copy.deepcopy(dense)
    refit(slow, dense, x, net.layers[0], result.plan.kept["c1"], 0)
    small = result.model
    torch.testing.assert_close(small.b2.bias, slow.b2.bias)
    assert not torch.allclose(small.b2.bias, dense.b2.bias)
    for name in ("weight", "running_mean", "running_var"):
        assert torch.equal(getattr(small.b2, name), getattr(dense.b2, name))
    kept = list(result.plan.kept["c1"])
    torch.testing.assert_close(small.c2.weight, slow.c2.weight[:, kept])
    left = outputs(nn.Sequential(small.c1, small.b1, nn.ReLU(), small.c2, small.b2), x)
    whole = outputs(nn.Sequential(dense.c1, dense.b1, nn.ReLU(), dense.c2, dense.b2), x)
    assert float((left - whole).mean((0, 2, 3)).abs().max()) < 1e-12


def test_a_round_is_the_move_made_by_hand() -> None:
    """Targets that are negative move to what the first fit gave, if that is, or to zero."""
    net = NETS["plain"]
    dense, x = net.build(), net.data()
    layer = net.layers[0]
    results = [pruned(net, dense, x, Residual(rounds=r, metric=False), drift=False) for r in (0, 1)]
    kept = results[0].plan.kept["c1"]
    assert results[1].plan.kept["c1"] == kept  # units are chosen before anything moves
    slow = copy.deepcopy(dense)
    refit(slow, dense, x, layer, kept, 1)
    torch.testing.assert_close(results[1].model.c2.weight, slow.c2.weight[:, list(kept)])
    torch.testing.assert_close(results[1].model.b2.bias, slow.b2.bias)
    rectified = []
    for model in (dense, *(r.model for r in results)):
        rectified.append(
            F.relu(outputs(nn.Sequential(model.c1, model.b1, nn.ReLU(), model.c2, model.b2), x))
        )
    errors = [float((r - rectified[0]).square().sum()) for r in rectified[1:]]
    assert errors[1] < errors[0]


def test_each_version_is_moved_and_fitted_without_its_fold() -> None:
    """The inputs of a fold are judged by the version that has not seen them."""
    net = NETS["plain"]
    dense, x = net.build(), net.data(32)
    layer = net.layers[0]
    fit = Affine(ridge=0.0, folds=4)
    result = pruned(net, dense, x, Residual(rounds=1, metric=False), fit=fit, drift=False)
    kept = result.plan.kept["c1"]
    fold = np.arange(len(x)) % 4
    problem = Problem.of(dense, dense, x, layer)
    places = len(problem.rows) // len(x)
    own = np.repeat(fold, places)
    moved = problem.wanted.copy()
    for f in range(4):
        version = copy.deepcopy(dense)
        refit(version, dense, x[fold != f], layer, kept, 0)
        given = Problem.of(version, version, x[fold == f], layer).wanted
        here = problem.wanted[own == f]
        moved[own == f] = np.where(here < 0, np.minimum(given, 0), here)
    on = np.repeat(np.isin(np.arange(8), kept), 9)
    wide = np.hstack([problem.rows[:, on], np.ones((len(own), 1))])
    squares = 0.0
    for f in range(4):
        target = problem.target(moved) * problem.factor
        new = np.linalg.lstsq(wide[own != f], target[own != f], rcond=None)[0]
        squares += float(np.square(target[own == f] - wide[own == f] @ new).sum())
    energy = float(np.square(problem.target(moved) * problem.factor).sum())
    assert result.plan.groups[0].held_out == pytest.approx(squares / energy, rel=1e-6)


# ---- the choice of units -----------------------------------------------------------------------


@pytest.mark.parametrize("metric", [False, True])
@pytest.mark.parametrize("name", ["plain", "stream", "rows"])
def test_units_are_chosen_by_what_is_felt_where_they_land(name: str, metric: bool) -> None:
    """Greedy by trying every unit, on the pruned model so far, with a constant that is free."""
    net = NETS[name]
    dense, x = net.build(), net.data()
    result = pruned(net, dense, x, Residual(rounds=0, metric=metric))
    current = copy.deepcopy(dense)
    felt = slow_metric(dense, x, {layer.lands for layer in net.layers})
    for layer in net.layers:
        kept = None
        if layer.group is not None:
            own = felt[layer.lands].sqrt().numpy() if metric else np.ones(1)
            problem = Problem.of(current, dense, x, layer)
            taps = 9 if name == "plain" else 1
            kept = slow_choice(problem, net.keep[layer.group], taps, own, layer.constant)
            assert result.plan.kept[layer.group] == tuple(sorted(kept)), layer
        refit(current, dense, x, layer, kept, 0)


# ---- the metric --------------------------------------------------------------------------------


def slow_metric(
    model: nn.Module, x: Tensor, taps: set[str], probes: int | None = None
) -> dict[str, Tensor]:
    """By landing: mean squared gradient of every channel; with the signs that are drawn, or others."""
    values: dict[str, Tensor] = {}
    hooks = [
        model.get_submodule(name).register_forward_hook(
            lambda m, args, y, name=name: values.update({name: y})
        )
        for name in taps
    ]
    output = model(x.clone().requires_grad_())
    for hook in hooks:
        hook.remove()
    random = generator(0, "metric") if probes is None else torch.Generator().manual_seed(3)
    sums = {name: torch.zeros(values[name].shape[1]).double() for name in taps}
    for _ in range(PROBES if probes is None else probes):
        signs = 2 * torch.randint(0, 2, output.shape, generator=random) - 1
        felt = (signs * (output - output.mean(1, keepdim=True))).sum()
        grads = torch.autograd.grad(felt, [values[n] for n in taps], retain_graph=True)
        for name, grad in zip(taps, grads, strict=True):
            sums[name] += grad.movedim(1, 0).flatten(1).square().mean(1)
    return {name: total / (probes or PROBES) for name, total in sums.items()}


@pytest.mark.parametrize("name", NETS)
def test_the_metric_is_the_gradient_along_random_signs(name: str) -> None:
    net = NETS[name]
    model, x = net.build(), net.data()
    calibration = calibration_of(model, x)
    found = measure_metric(calibration, calibration.structure.layers)
    slow = slow_metric(model, x, {layer.lands for layer in net.layers})
    for layer in net.layers:
        landing = consumer_of(calibration, layer.name).landing
        assert landing is not None
        torch.testing.assert_close(found[landing.value].square(), slow[layer.lands])


def test_the_metric_is_what_many_signs_say() -> None:
    """In expectation: the squares of the Jacobian of the centred scores, summed over the classes."""
    net = NETS["rows"]
    model, x = net.build(), net.data()
    many = slow_metric(model, x, {"t"}, probes=400)["t"]
    values: list[Tensor] = []
    hook = model.t.register_forward_hook(lambda m, args, y: values.append(y))
    outputs(model, x)
    hook.remove()
    weight = model.head.weight - model.head.weight.mean(0)  # [classes, 5]
    on = (values[0] > 0).double().mean(0)
    expected = on * weight.square().sum(0)
    torch.testing.assert_close(many, expected.detach(), rtol=0.1, atol=1e-3)
    calibration = calibration_of(model, x)
    landing = consumer_of(calibration, "b").landing
    assert landing is not None
    few = measure_metric(calibration, calibration.structure.layers)[landing.value].square()
    torch.testing.assert_close(few, expected.detach(), rtol=0.6, atol=1e-3)


def test_what_all_numbers_have_in_common_counts_where_they_are_no_classes() -> None:
    """Numbers of two layers side by side, always equal: less their mean, nothing would be left."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.a, self.b = nn.Linear(5, 8).double(), nn.Linear(8, 1).double()

        def forward(self, x: Tensor) -> Tensor:
            y = self.b(torch.relu(self.a(x)))
            return torch.cat([y * 1.0, y / 1.0], 1)

    calibration = calibration_of(Twice(), torch.randn(16, 5, dtype=torch.float64))
    landing = consumer_of(calibration, "b").landing
    assert landing is not None
    felt = measure_metric(calibration, calibration.structure.layers)[landing.value]
    signs = 2 * torch.randint(0, 2, (PROBES, 16, 2), generator=generator(0, "metric")) - 1
    torch.testing.assert_close(felt.square(), signs.sum(2).double().square().mean()[None])


def test_frozen_parameters_do_not_hide_the_metric() -> None:
    net = NETS["blocks"]
    model, x = net.build(), net.data()
    metrics = []
    for needed in (True, False):
        calibration = calibration_of(model.requires_grad_(needed), x)
        metrics.append(measure_metric(calibration, calibration.structure.layers))
    assert metrics[0].keys() == metrics[1].keys()
    for value, felt in metrics[0].items():
        torch.testing.assert_close(felt, metrics[1][value])


class Overwriting(nn.Module):
    """A layer's output that is overwritten in place, and looked at through a view before."""

    def __init__(self, inplace: bool) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(5, 8), nn.Linear(8, 4), nn.Linear(4, 3)
        self.inplace = inplace

    def forward(self, x: Tensor) -> Tensor:
        z = self.b(F.relu(self.a(x)))
        view = z.view(-1)
        if self.inplace:
            z.mul_(2.0).add_(1.0)
            return self.head(torch.tanh(z)) + view.view(-1, 4)[:, :3]
        z = z * 2.0 + 1.0
        return self.head(torch.tanh(z)) + z[:, :3]


def test_values_that_are_overwritten_are_felt_before_they_are() -> None:
    x = torch.randn(50, 5, dtype=torch.float64)
    found = []
    for inplace in (True, False):
        calibration = calibration_of(made(lambda i=inplace: Overwriting(i)), x)
        landing = consumer_of(calibration, "b").landing
        assert landing is not None
        metric = measure_metric(calibration, calibration.structure.layers)
        found.append(metric[landing.value])
    torch.testing.assert_close(*found)


@torch.library.custom_op("residual_tests::double", mutates_args=())
def without_gradient(x: Tensor) -> Tensor:
    return 2 * x


@without_gradient.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


class Opaque(nn.Module):
    def __init__(self, picked: bool) -> None:
        super().__init__()
        self.a, self.b, self.picked = nn.Linear(5, 8), nn.Linear(8, 4), picked

    def forward(self, x: Tensor) -> Tensor:
        y = self.b(F.relu(self.a(x)))
        return y.argmax(1) if self.picked else without_gradient(y)


@pytest.mark.parametrize("picked", [False, True])
def test_where_the_output_has_no_gradient_all_errors_count_alike(picked: bool) -> None:
    torch.manual_seed(0)
    model, x = Opaque(picked).eval(), torch.randn(60, 5)
    result = subprune.prune(model, x, compression=1.5, method="auto", **QUIET)
    assert any("count equally" in note for note in result.report.notes)


# ---- outputs that nobody feels -----------------------------------------------------------------


def fitted_of(weight: Tensor) -> Fitted:
    return Fitted(
        weight=weight,
        versions=(weight * 2,),
        shift=torch.ones(weight.shape[1]).double(),
        shifts=(torch.ones(weight.shape[1]).double(),),
        ridge=0.0,
        energy=1.0,
        error=0.0,
        held_out=0.0,
        growth=1.0,
        columns=2,
        rank=2,
        rows=9,
    )


def test_outputs_that_nobody_feels_keep_their_weights_on_the_columns_that_stay() -> None:
    weight = torch.tensor([[6.0, 1.0], [0.0, 0.0], [0.0, 0.0]]).double()
    old = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]).double()
    columns = torch.tensor([0, 1])  # the second is dead: it was fitted with zeros
    back = fitted_of(weight).divided(torch.tensor([2.0, 0.0]), old, columns)
    assert back.weight.tolist() == [[3.0, 2.0], [0.0, 4.0], [0.0, 0.0]]
    assert back.versions[0].tolist() == [[6.0, 2.0], [0.0, 4.0], [0.0, 0.0]]
    assert back.shift is not None
    assert back.shift.tolist() == [0.5, 0.0] == back.shifts[0].tolist()
    none = fitted_of(torch.zeros(3, 2).double()).divided(torch.zeros(2), old, columns)
    assert none.weight.tolist() == [[1.0, 2.0], [3.0, 4.0], [0.0, 0.0]]


@pytest.mark.parametrize("groups", [1, 2])
def test_a_block_that_nobody_feels_keeps_its_weights(groups: int) -> None:
    """Half of the outputs, or one of two blocks, are multiplied by zero in the norm."""
    net = NETS["plain"]
    dense, x = made(lambda: Plain(groups)), net.data()
    with torch.no_grad():
        dense.b2.weight[:3] = 0
    result = subprune.prune(
        dense, x, budgets={"c1": 4 // groups}, method="auto", drift=False, **QUIET
    )
    units = list(result.plan.kept["c1"])
    assert torch.equal(result.model.c2.weight[:3], dense.c2.weight[:3][:, units])
    assert not torch.allclose(result.model.c2.weight[3:], dense.c2.weight[3:][:, units])


# ---- several readers ---------------------------------------------------------------------------


class TwoReaders(nn.Module):
    """Two layers that read the same units: into one sum, or each on its own."""

    def __init__(self, kernel: int = 1, one: bool = True) -> None:
        super().__init__()
        self.one = one
        self.first, self.mid = nn.Conv2d(3, 12, 1), nn.Conv2d(12, 10, 1)
        self.a, self.b = nn.Conv2d(10, 5, kernel), nn.Conv2d(10, 5, kernel)
        self.last = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.mid(F.relu(self.first(x))))
        if self.one:
            return self.last(F.relu(self.a(x) + self.b(x)).mean((2, 3)))
        return self.last((torch.tanh(self.a(x)) + F.relu(self.b(x))).mean((2, 3)))


def test_what_drifted_is_made_up_for_once_by_two_readers_of_one_sum() -> None:
    """Each would make up for all of it; together they give what aiming at their own values does."""
    model = made(TwoReaders)
    x = torch.randn(40, 3, 4, 4, dtype=torch.float64) + 0.3
    budgets = {"first": 4, "mid": 9}
    errors = {}
    for target in (Residual(rounds=0, metric=False), "asymmetric", "sequential"):
        result = subprune.prune(
            model, x, budgets=budgets, target=target, fit=EXACT, drift=False, **QUIET
        )
        errors[str(target)[:8]] = float((outputs(result.model, x) - outputs(model, x)).norm())
    assert errors["Residual"] == pytest.approx(errors["asymmetr"], rel=1e-6)
    assert errors["Residual"] < errors["sequenti"]


def place_of(model: nn.Module, x: Tensor, group: str, folds: int = 1) -> Place:
    """Before a group of the dense model."""
    calibration = calibration_of(model, x, folds)
    tour = Tour(setting_of(calibration), calibration.structure.inner(), pruned=False)
    return tour.go_to(calibration.structure[group])


@pytest.mark.parametrize("folds", [1, 3])
@pytest.mark.parametrize("patches", ["all", "random"])
@pytest.mark.parametrize("kernel", [1, 3])
def test_moved_targets_go_with_the_rows_that_were_seen(
    kernel: int, patches: Any, folds: int
) -> None:
    """The first of two readers does not move: the second sees the same patches all the same."""
    model = made(lambda: TwoReaders(kernel, one=False))
    place = place_of(model, torch.randn(12, 3, 6, 6, dtype=torch.float64), "mid", folds)
    target = Residual(rounds=1, metric=False, patches=patches)
    first = target.gather(place)
    tensors = dict(place.current.tensors)
    tensors["b.weight"] = tensors["b.weight"] * 1.3
    models = [tensors] * (1 + folds) if folds > 1 else [tensors]
    moved = target.moved(place, first, range(place.group.n_units), models)
    assert moved is not None
    assert moved.blocks[0] is first.blocks[0]  # of the one that stays
    # All statistics gathered in one go, of the same rows and the targets moved by hand.
    own = next(c for c in place.group.reweightable if c.name == "b")
    collectors = target._collectors(place)
    source = place.current.fork()
    for consumer in place.group.reweightable:
        source.advance(consumer.use.op)
        for i, fold in enumerate(source.folds):
            x, aim = source.argument(consumer.use.op, i), first.aims[consumer.use.op][i]
            if consumer is own:
                bias = model.b.bias.detach()[:, None, None]
                given = F.conv2d(x, tensors["b.weight"], model.b.bias.detach())
                easier = torch.where(aim < 0, given.clamp(max=0), aim)
                collectors[consumer.use.op][fold].update(x, easier - bias)
            else:
                collectors[consumer.use.op][fold].update(x, aim)
    parts = [collectors[own.use.op][fold].accumulators()[0] for fold in range(folds)]
    for fold, part in enumerate(parts):
        expected, got = part.result(), moved.blocks[1].only(fold)
        for field in ("gram", "cross", "sums", "target_sums", "units"):
            torch.testing.assert_close(getattr(got, field), getattr(expected, field))
        assert got.energy == pytest.approx(expected.energy)
        assert (got.rows, got.precision) == (expected.rows, expected.precision)


# ---- the method --------------------------------------------------------------------------------


def test_the_classifier_is_refitted_too() -> None:
    net = NETS["blocks"]
    dense, x = net.build(), net.data()
    result = subprune.prune(dense, x, budgets=net.keep, method="auto", **QUIET)
    assert not torch.allclose(result.model.head.weight, dense.head.weight)
    assert "3 layers that lost no input were refitted too" in result.report.notes
    still = subprune.prune(dense, x, budgets=net.keep, method="auto", drift=False, **QUIET)
    assert torch.equal(still.model.head.weight, dense.head.weight)
    assert not any("refitted" in note for note in still.report.notes)


@pytest.mark.parametrize("options", [{"fit": "keep"}, {"target": "layer"}], ids=str)
def test_parts_of_auto_can_be_replaced(options: dict[str, Any]) -> None:
    """Nobody asked for drift: it is not refused where it would have no effect."""
    net = NETS["plain"]
    model, x = net.build(), net.data()
    result = subprune.prune(model, x, budgets=net.keep, method="auto", **options, **QUIET)
    assert result.plan.counts == net.keep


def test_auto_stays_nearer_than_the_papers_method() -> None:
    net = NETS["blocks"]
    dense, x, unseen = net.build(), net.data(64), net.data(100, seed=5)
    changes = []
    for method in ("auto", "asym-in-change"):
        result = subprune.prune(dense, x, budgets=net.keep, method=method, **QUIET)
        changes.append(float((outputs(result.model, unseen) - outputs(dense, unseen)).norm()))
    assert changes[0] < changes[1]


SAMPLE = (
    *("lenet", "resnet20-B", "bottleneck", "resnext", "grouped-transpose", "norms", "shuffles"),
    *("mha", "tied", "encoder-decoder-pre", "vit", "massive", "experts", "segmenter"),
)


@pytest.mark.parametrize("name", SAMPLE)
def test_networks_of_the_zoo(name: str) -> None:
    """That the cut equals its masked twin is checked inside; the outputs must be numbers."""
    model, example = ZOO[name].build()
    result = subprune.prune(
        model, torch.zeros(1, 1), compression=1.4, method="auto", forward=lambda _: example, **QUIET
    )
    assert result.plan.counts
    assert all(torch.isfinite(x).all() for x in run(result.model, example))
