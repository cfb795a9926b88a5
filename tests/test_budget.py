"""Budget rules: goals met, largest model within, curves against plain evaluation, cache."""

from __future__ import annotations

import copy
import re
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from views import recipe_of, setting_of

import subprune
from subprune.budget.accuracy import (
    FRACTIONS,
    AccuracyCurve,
    accuracy_curves,
    equal_accuracy,
    measured_counts,
)
from subprune.budget.allocators import ALLOCATORS
from subprune.budget.demand import Demand
from subprune.budget.goal import Goal, Limit, Rounding
from subprune.budget.hulls import by_knapsack, falling
from subprune.budget.space import BudgetSpace
from subprune.data.batches import batches
from subprune.errors import BudgetError, DataError
from subprune.fit.keep import Keep
from subprune.loop.looks import curves
from subprune.measure.measurements import accuracy, agreement, count_parameters
from subprune.select.keep_order import KeepOrder
from subprune.statistics.calibration import Calibration
from subprune.statistics.metric import measure_metric
from subprune.statistics.runs import Passage
from subprune.structure.cost import CostModel
from subprune.structure.groups import in_order
from subprune.zoo.datasets import load
from subprune.zoo.models import shipped_lenet

RULES = ("uniform", "error", "knapsack", "balanced", "equal-accuracy", "equal-agreement")


def demand_of(
    calibration: Calibration, rule: str, goal: Goal, rounding: Rounding | None = None
) -> Demand:
    return Demand(
        setting=setting_of(calibration),
        recipe=recipe_of("layer-in-change"),
        goal=goal,
        allocator=ALLOCATORS[rule],
        cost=CostModel(calibration.model, calibration.structure),
        rounding=rounding or Rounding(),
    )


@pytest.fixture(scope="module")
def lenet() -> nn.Module:
    return shipped_lenet()[0]


@pytest.fixture(scope="module")
def labelled() -> tuple[Tensor, Tensor]:
    train = load("mnist-sample", "train")
    index = torch.arange(300)
    return train.inputs(index), train.labels[index].long()


class Net(nn.Module):
    """Conv, BatchNorm, two readers of one layer, GroupNorm, flatten."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.bn = nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8)
        self.b, self.c = nn.Conv2d(8, 6, 3), nn.Conv2d(8, 6, 1)
        self.d, self.gn = nn.Conv2d(12, 8, 3, stride=2), nn.GroupNorm(2, 8)
        self.fc = nn.Linear(8 * 4 * 4, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.bn(self.a(x)).relu()
        x = torch.cat([self.b(x), self.c(x)[:, :, 1:-1, 1:-1]], 1).relu()
        return self.fc(self.gn(self.d(x)).relu().flatten(1))


@pytest.fixture(scope="module")
def net() -> nn.Module:
    torch.manual_seed(0)
    model = Net()
    with torch.no_grad():
        model(torch.randn(64, 1, 14, 14))
    return model.eval()


# ---- curves --------------------------------------------------------------------------------------


@pytest.mark.parametrize("labels", [True, False])
@pytest.mark.parametrize("fit", ["keep", None])
@pytest.mark.parametrize("name", ["layer-in-change", "asym-in-change", "layer-weight-norm"])
def test_curves_equal_pruning_each_layer_alone(
    net: nn.Module, labels: bool, fit: str | None, name: str
) -> None:
    """The partial reruns give what really pruning that one layer and evaluating the whole model
    gives.
    """
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(90, 1, 14, 14, generator=generator)
    y = net(x).argmax(-1)
    y = torch.where(torch.rand(90, generator=generator) < 0.7, y, (y + 1) % 10)
    calibration = Calibration.of(net, batches(x[:40], net))
    verification = calibration.on(batches((x[40:], y[40:]), net))
    groups = calibration.structure.inner()
    assert {g.name for g in groups} == {"a", "b", "c", "d"}
    fractions = (0.2, 0.5, 0.8, 1.0)
    recipe = recipe_of(name)
    if fit == "keep":
        recipe = replace(recipe, fit=Keep())
    found = accuracy_curves(
        setting_of(calibration), recipe, verification, labels=labels, fractions=fractions
    )
    fitted = {"ridge": 0} if fit is None else {"fit": fit}
    plain = "layer-in-change" if name == "asym-in-change" else name
    for group in groups:
        assert found[group.name].counts == tuple(measured_counts(group.n_units, fractions))
        for k, p in zip(found[group.name].counts, found[group.name].values, strict=True):
            small = subprune.prune(
                net, x[:40], method=plain, budgets={group.name: k}, **fitted
            ).model
            slow = (
                accuracy(small, verification.batches)
                if labels
                else agreement(net, small, verification.batches)
            )
            assert p == pytest.approx(slow, abs=1.01 / 50)  # one image on the fence
    assert all(
        c.values[-1] == pytest.approx(1.0 if not labels else accuracy(net, verification.batches))
        for c in found.values()
    )


def test_fractions_are_the_papers() -> None:
    assert FRACTIONS[:5] == (0.01, 0.05, 0.075, 0.1, 0.15)
    assert FRACTIONS[-2:] == (0.95, 1.0)
    assert len(FRACTIONS) == 22
    assert measured_counts(6)[0] == 1
    assert measured_counts(100) == [1, 5, 7, *range(10, 101, 5)]


def test_monotone_curve() -> None:
    curve = AccuracyCurve((1, 2, 4, 6, 8), (0.2, 0.5, 0.4, 0.99, 0.9))
    smooth = curve.monotone(8)
    assert (np.diff(smooth) >= 0).all()
    assert smooth[1] == 0.2
    assert smooth[2] == 0.5
    assert smooth[4] == pytest.approx(0.7)  # the falling point is left out, the line goes through
    assert smooth[6] == smooth[8] == 0.9  # capped at the last value


def lenet_params(k: tuple[int, ...]) -> int:
    a, b, c, d = k
    return 10 * a + (9 * a + 1) * b + (25 * b + 1) * c + (c + 1) * d + 10 * (d + 1)


@pytest.mark.parametrize("ratio", [2, 4, 8, 16, 32, 64])
def test_equal_accuracy_picks_from_the_papers_fractions(lenet: nn.Module, ratio: int) -> None:
    """Against all combinations of fractions, then filled from the largest fraction to the smallest."""
    calibration = Calibration.of(lenet, batches(torch.randn(2, 1, 28, 28), lenet))
    groups = in_order(calibration.structure.inner())
    cost, generator = CostModel(lenet, calibration.structure), np.random.default_rng(ratio)
    limit = cost.params({}) // ratio
    found, options = {}, []
    for g in groups:
        counts = measured_counts(g.n_units)
        values = np.sort(generator.uniform(size=len(counts))) ** 0.3
        values[-1] = 1.0
        found[g.name] = AccuracyCurve(tuple(counts), tuple(values.tolist()))
        smallest = {
            k: min((f for f in FRACTIONS if int(f * g.n_units + 1e-9) == k), default=k / g.n_units)
            for k in counts
        }
        options.append([(p, k, smallest[k]) for k, p in zip(counts, values.tolist(), strict=True)])
    within = (c for c in product(*options) if lenet_params(tuple(k for _, k, _ in c)) <= limit)
    best = max(within, key=lambda c: min(p for p, _, _ in c))
    level = min(p for p, _, _ in best)
    chosen = [next((k, f) for p, k, f in own if p >= level) for own in options]
    want = [k for k, _ in chosen]
    for i in sorted(range(4), key=lambda i: -chosen[i][1]):
        while (
            want[i] < groups[i].n_units
            and lenet_params((*want[:i], want[i] + 1, *want[i + 1 :])) <= limit
        ):
            want[i] += 1
    counts_found = equal_accuracy(
        BudgetSpace(groups=groups, cost=cost, limit=Limit("params", limit, "")), found
    )
    assert [counts_found[g.name] for g in groups] == want


def test_cache_is_used_and_keyed(net: nn.Module, tmp_path: Path) -> None:
    x = torch.randn(60, 1, 14, 14, generator=torch.Generator().manual_seed(2))
    options = {"allocate": "equal-agreement", "method": "layer-in-change", "cache": tmp_path}
    first = subprune.prune(net, x, compression=1.5, **options)
    files = list(tmp_path.iterdir())
    assert len(files) == 1
    stamp = files[0].stat().st_mtime_ns
    again = subprune.prune(net, x, compression=1.5, **options)
    assert again.plan.counts == first.plan.counts
    subprune.prune(net, x, compression=2.5, **options)  # another ratio, the same curves
    assert [f.stat().st_mtime_ns for f in tmp_path.iterdir()] == [stamp]
    for change in ({"fit": "keep"}, {"seed": 3}, {"verify_data": x[:30]}):
        subprune.prune(net, x, compression=1.5, **{**options, **change})
    other = copy.deepcopy(net)
    with torch.no_grad():
        other.a.weight[0, 0, 0, 0] += 1e-3
    subprune.prune(other, x, compression=1.5, **options)
    assert len(list(tmp_path.iterdir())) == 5
    files[0].write_text("{")
    with pytest.raises(DataError, match="damaged"):
        subprune.prune(net, x, compression=1.5, **options)


def test_equal_accuracy_needs_labels(net: nn.Module) -> None:
    with pytest.raises(DataError, match="equal-agreement"):
        subprune.prune(net, torch.randn(8, 1, 14, 14), compression=1.5, allocate="equal-accuracy")


def test_what_accuracy_was_measured_on_is_said(
    lenet: nn.Module, labelled: tuple[Tensor, Tensor]
) -> None:
    x, y = labelled
    options = {
        "budgets": None,
        "only": "fc2",
        "compression": 1.01,
        "method": "layer-weight-norm",
        "time_calls": False,
    }
    equal = {**options, "allocate": "equal-accuracy"}
    said = "measured on the calibration data"
    assert any(said in n for n in subprune.prune(lenet, (x[:60], y[:60]), **equal).report.notes)
    report = subprune.prune(lenet, x[:60], verify_data=(x[60:], y[60:]), **equal).report
    assert not any("accuracy" in n for n in report.notes)
    for verify in (x[60:], (x[60:], y[60:] + 10)):  # no labels, and none that the outputs know
        report = subprune.prune(lenet, (x[:60], y[:60]), verify_data=verify, **options).report
        assert report.accuracy is None
        assert any("no accuracy was measured: verify_data has no labels" in n for n in report.notes)


# ---- goals ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("goal", [{"compression": 2}, {"compression": 8.3}, {"speedup": 3}])
@pytest.mark.parametrize("round_to", [1, 4])
def test_every_rule_gives_the_largest_model_within(
    lenet: nn.Module,
    labelled: tuple[Tensor, Tensor],
    rule: str,
    goal: dict[str, float],
    round_to: int,
) -> None:
    calibration = Calibration.of(lenet, batches((labelled[0][:100], labelled[1][:100]), lenet))
    demand = demand_of(calibration, rule, Goal(**goal), Rounding(round_to))
    counts = demand.shared_out()
    size = demand.limit.size(demand.cost, counts)
    assert size <= demand.limit.most
    for group in demand.groups:
        assert 1 <= counts[group.name] <= group.n_units
        assert counts[group.name] % round_to == 0 or counts[group.name] == group.n_units
        if counts[group.name] < group.n_units:
            more = {**counts, group.name: demand.rounding.next(counts[group.name], group.n_units)}
            assert demand.limit.size(demand.cost, more) > demand.limit.most


def test_knapsack_leaves_no_more_error_than_a_common_threshold(
    lenet: nn.Module, labelled: tuple[Tensor, Tensor]
) -> None:
    """It minimises the sum of the curves, which the other rules do not."""
    calibration = Calibration.of(lenet, batches(labelled[0], lenet))
    found = curves(setting_of(calibration), recipe_of("layer-in-change"))
    for ratio in (2, 4, 8, 16):
        left = {}
        for rule in RULES[:3]:
            counts = demand_of(calibration, rule, Goal(compression=ratio)).shared_out()
            left[rule] = sum(float(found[n].errors[k]) for n, k in counts.items())
        assert left["knapsack"] <= 1.2 * min(left["uniform"], left["error"])


def test_knapsack_is_near_the_best_of_all_budgets() -> None:
    """Against all budgets, for convex curves."""
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    calibration = Calibration.of(model, batches(torch.randn(16, 4), model))
    groups = calibration.structure.inner()
    generator = torch.Generator().manual_seed(4)
    cost = CostModel(model, calibration.structure)
    names = [g.name for g in groups]
    gaps = []
    for limit in (35, 45, 55) * 15:
        shares = [
            torch.rand(g.n_units, generator=generator).double().sort(descending=True).values
            for g in groups
        ]
        falling = [1 - torch.cat([torch.zeros(1).double(), s.cumsum(0) / s.sum()]) for s in shares]
        errors = dict(zip(names, falling, strict=True))
        known = {
            n: KeepOrder(
                order=tuple(range(len(e) - 1)),
                gains=-e.diff(),
                errors=e,
                ranks=(),
                energy=1.0,
                dependent=(),
            )
            for n, e in errors.items()
        }
        target = Limit("params", limit, "limit")
        found = by_knapsack(BudgetSpace(groups=groups, cost=cost, limit=target), known)
        every = [
            dict(zip(names, k, strict=True))
            for k in product(*(range(1, g.n_units + 1) for g in groups))
        ]
        best = min(
            sum(float(errors[n][k]) for n, k in c.items()) for c in every if target.fits(cost, c)
        )
        gaps.append(sum(float(errors[n][k]) for n, k in found.items()) - best)
    assert max(gaps) < 0.1
    assert sum(g < 1e-9 for g in gaps) > len(gaps) / 2  # mostly the best of all


def test_parameters_are_exact(lenet: nn.Module, labelled: tuple[Tensor, Tensor]) -> None:
    result = subprune.prune(lenet, labelled[0][:64], compression=5, allocate="uniform")
    cost = CostModel(lenet, Calibration.of(lenet, batches(labelled[0][:64], lenet)).structure)
    assert cost.params(result.plan.counts) == count_parameters(result.model)
    assert cost.params({}) == count_parameters(lenet)


@pytest.mark.parametrize("rule", RULES)
def test_infeasible_names_the_nearest(
    lenet: nn.Module, labelled: tuple[Tensor, Tensor], rule: str
) -> None:
    with pytest.raises(BudgetError, match=r"nearest feasible ratio is [\d.]+") as caught:
        subprune.prune(lenet, labelled, compression=5000, allocate=rule, n_samples=50)
    ratio = float(re.search(r"ratio is ([\d.]+)", str(caught.value))[1])
    result = subprune.prune(lenet, labelled, compression=ratio - 0.01, allocate=rule, n_samples=50)
    assert set(result.plan.counts.values()) == {1} or result.report.compression >= ratio - 0.01


def test_target_of_one_keeps_everything(lenet: nn.Module, labelled: tuple[Tensor, Tensor]) -> None:
    result = subprune.prune(lenet, labelled, compression=1, allocate="uniform", n_samples=20)
    assert result.report.parameters[0] == result.report.parameters[1]
    x = labelled[0][:20]
    assert torch.allclose(result.model(x), lenet(x), atol=1e-5)


def test_rounding() -> None:
    r = Rounding(8)
    assert [r.down(k, 20) for k in (3, 8, 15, 19, 20)] == [8, 8, 8, 16, 20]
    assert [r.up(k, 20) for k in (0, 1, 9, 17)] == [8, 8, 16, 20]
    assert r.down(2, 5) == 5  # a narrow group stays whole
    assert Limit("params", 3, "x").quantity == "params"


def test_a_fraction_that_is_missed_is_said(
    lenet: nn.Module, labelled: tuple[Tensor, Tensor]
) -> None:
    """A group has at least one unit, and at least `round_to`; what asks for less keeps more, and
    says so.
    """

    def notes(**options: Any) -> tuple[str, ...]:
        report = subprune.prune(lenet, labelled[0][:40], time_calls=False, **options).report
        return tuple(n for n in report.notes if n.startswith("goal"))  # not on the few inputs

    plain = {"method": "layer-weight-norm"}
    assert not notes(keep=0.5, **plain)
    assert not notes(keep=1.0, round_to=200, **plain)
    (note,) = notes(keep=0.5, round_to=8, **plain)
    assert note.startswith("goal missed: keep=0.5")
    assert note.endswith("6 of 6 units in conv1")
    assert "1 of 6 units in conv1, 1 of 16 units in conv2" in notes(keep=0.05, **plain)[0]
    (note,) = notes(keep=0.01, method="random")
    assert note.endswith(" of 226 units in all groups")
    for method in ("layer-weight-norm", "random"):
        with pytest.raises(
            BudgetError, match=r"widest group has 120 units, .* give a round_to below 120"
        ):
            subprune.prune(lenet, labelled[0][:40], keep=0.5, round_to=120, method=method)


class Branches(nn.Module):
    """Two branches side by side, one with a norm: its first layer runs before the other branch is
    decided.
    """

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 5)
        self.c, self.d = nn.Linear(6, 8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.norm(self.a(x)).relu(), self.c(x).relu()
        return self.d(right) * self.b(left)


def test_norm_of_a_parallel_branch_is_taken_again() -> None:
    """The values a later decision looks at are those of the model as it is then: its own error says
    so.
    """
    torch.manual_seed(2)
    model = Branches().eval()
    x = torch.randn(200, 6)
    calibration = Calibration.of(model, batches(x, model))
    groups = in_order(calibration.structure.inner())
    passage = Passage(calibration.start(), groups)
    for group in groups:
        mark = passage.go_to(group)
        assert (mark is None) == (not group.narrowings)
        if mark is not None:
            assert mark.position == group.first_op < passage.run.position
    setting, recipe = setting_of(calibration), recipe_of("layer-in-change")
    found = accuracy_curves(setting, recipe, calibration, labels=False, fractions=(0.5, 1.0))
    for group in groups:
        small = subprune.prune(
            model, x, method="layer-in-change", budgets={group.name: 4}, ridge=0
        ).model
        assert found[group.name].values[0] == pytest.approx(
            agreement(model, small, calibration.batches), abs=0.006
        )


# ---- budgets by what the output feels ------------------------------------------------------------


class Scaled(nn.Module):
    """Two equal layers side by side; the output feels one of them much more."""

    def __init__(self, factors: tuple[float, float] = (1.0, 1.0)) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(6, 16), nn.Linear(6, 16)
        self.read_a, self.read_b = nn.Linear(16, 5), nn.Linear(16, 5)
        self.head_a, self.head_b = nn.Linear(5, 4), nn.Linear(5, 4)
        for mine, other in ((self.b, self.a), (self.read_b, self.read_a)):
            mine.load_state_dict(other.state_dict())
        self.head_b.load_state_dict(self.head_a.state_dict())
        self.factors = factors

    def forward(self, x: Tensor) -> Tensor:
        y = self.head_a(torch.tanh(self.read_a(torch.relu(self.a(x))))) * self.factors[0]
        return y + self.head_b(torch.tanh(self.read_b(torch.relu(self.b(x))))) * self.factors[1]


def felt_demand(model: nn.Module, x: Tensor, goal: Goal) -> Demand:
    calibration = Calibration.of(model, batches(x, model))
    plain = setting_of(calibration)
    metric = measure_metric(calibration, [c for g in plain.groups for c in g.consumers])
    own = demand_of(calibration, "output", goal)
    return replace(own, setting=replace(plain, metric=metric), recipe=recipe_of("auto"))


@pytest.mark.parametrize("factors", [(1.0, 1.0), (3.0, 0.1), (0.1, 3.0)])
def test_what_the_output_feels_gets_more_units(factors: tuple[float, float]) -> None:
    model = Scaled(factors).double()
    demand = felt_demand(model, torch.randn(200, 6).double(), Goal(compression=2))
    counts = demand.shared_out()
    assert demand.limit.size(demand.cost, counts) <= demand.limit.most
    if factors[0] == factors[1]:
        assert abs(counts["a"] - counts["b"]) <= 1
    else:
        assert (counts["a"] > counts["b"] + 1) == (factors[0] > factors[1])
    blind = demand_of(demand.setting.calibration, "balanced", Goal(compression=2)).shared_out()
    assert abs(blind["a"] - blind["b"]) <= 1


@pytest.mark.parametrize("goal", [{"compression": 1.5}, {"compression": 3}, {"speedup": 2}])
def test_budgets_by_the_output_are_the_largest_within(net: nn.Module, goal: Any) -> None:
    demand = felt_demand(net, torch.randn(40, 1, 14, 14), Goal(**goal))
    counts = demand.shared_out()
    assert demand.limit.size(demand.cost, counts) <= demand.limit.most
    for group in demand.groups:
        if counts[group.name] < group.n_units:
            more = {**counts, group.name: demand.rounding.next(counts[group.name], group.n_units)}
            assert demand.limit.size(demand.cost, more) > demand.limit.most


def test_curves_by_the_output_are_errors_where_outputs_land() -> None:
    """Against least squares on explicit rows: with a constant, weighted, and not relative."""
    model, x = Scaled((2.0, 0.5)).double(), torch.randn(80, 6).double()
    demand = felt_demand(model, x, Goal(compression=2))
    found = curves(demand.setting, demand.recipe, landed=True)
    for name in ("a", "b"):
        rows = torch.relu(model.get_submodule(name)(x)).detach()
        target = model.get_submodule(f"read_{name}")(rows).detach()
        group = next(g for g in demand.groups if g.name == name)
        landing = group.consumers[0].landing
        assert landing is not None
        assert demand.setting.metric is not None
        felt = demand.setting.metric[landing.value]
        kept: list[int] = []
        for k, unit in enumerate((-1, *found[name].order)):
            kept += [unit] if unit >= 0 else []
            wide = torch.cat([rows[:, kept], torch.ones(80, 1).double()], 1)
            left = target - wide @ torch.linalg.lstsq(wide, target, driver="gelsd").solution
            slow = float((left * felt).square().sum())
            assert float(falling(found[name], absolute=True)[k]) == pytest.approx(
                slow, rel=1e-6, abs=1e-9 * found[name].energy
            )


def test_the_smallest_sum_of_absolute_errors_is_near_the_best_of_all() -> None:
    """Against all budgets, for convex curves of layers that matter more or less."""
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    calibration = Calibration.of(model, batches(torch.randn(16, 4), model))
    groups = calibration.structure.inner()
    generator = torch.Generator().manual_seed(4)
    cost, names = CostModel(model, calibration.structure), [g.name for g in groups]
    gaps = []
    for limit in (35, 45, 55) * 15:
        known = {}
        for g in groups:
            s = torch.rand(g.n_units, generator=generator).double().sort(descending=True).values
            e = 1 - torch.cat([torch.zeros(1).double(), s.cumsum(0) / s.sum()])
            energy = float(10 ** (2 * torch.rand((), generator=generator)))
            known[g.name] = KeepOrder(
                order=tuple(range(g.n_units)),
                gains=-e.diff(),
                errors=e,
                ranks=(),
                energy=energy,
                dependent=(),
            )
        errors = {n: falling(known[n], absolute=True) for n in names}
        target = Limit("params", limit, "limit")
        found = by_knapsack(
            BudgetSpace(groups=groups, cost=cost, limit=target), known, absolute=True
        )
        every = [
            dict(zip(names, k, strict=True))
            for k in product(*(range(1, g.n_units + 1) for g in groups))
        ]
        sums = [sum(errors[n][k] for n, k in c.items()) for c in every if target.fits(cost, c)]
        gaps.append((sum(errors[n][k] for n, k in found.items()) - min(sums)) / max(sums))
    assert max(gaps) < 0.1
    assert sum(g < 1e-9 for g in gaps) > len(gaps) / 2  # mostly the best of all
