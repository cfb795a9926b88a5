"""Every method, with and without reweighting, against its slow twin; then the odd cases for all of
them.
"""

from __future__ import annotations

import copy

import pytest
import slow_methods as slow
import torch
from method_nets import NETS, Net
from torch import nn
from views import recipe_of, setting_of, views

import subprune
from subprune.data.batches import batches
from subprune.errors import DataError, OptionError
from subprune.loop.looks import curves
from subprune.methods import METHODS
from subprune.select.selector import Ranking, Selector, View, order_by
from subprune.statistics import place
from subprune.statistics.calibration import Calibration
from subprune.statistics.products import Asymmetric, Layer
from subprune.statistics.target import Target

BUILT_IN = tuple(METHODS)
# Method "auto" aims where outputs land, refits layers that lose nothing and moves its targets: its
# twin, layer by layer with a constant column, is in test_residual.py.
WITH_A_TWIN = tuple(m for m in BUILT_IN if m != "auto")
FORMS = {"layer-in-change": "layer", "seq-in-change": "sequential", "asym-in-change": "asymmetric"}


def generator(name: str, seed: int = 0) -> torch.Generator:
    """The random numbers a group gets."""
    return place.generator(seed, name)


def run(
    net: Net, model: nn.Module, method: str, data: slow.Data, **options: object
) -> subprune.Result:
    extra = {"train_data": net.data(3, 12, seed=99)} if method.endswith("-fd") else {}
    settings = {"budgets": net.keep, **extra, **options}
    if options.get("fit") is None and hasattr(METHODS[method].fit, "ridge"):
        settings["ridge"] = 0
    return subprune.prune(model, data, method=method, progress=False, **settings)  # type: ignore[arg-type]


def slow_choice(
    net: Net,
    method: str,
    name: str,
    current: nn.Module,
    dense: nn.Module,
    data: slow.Data,
    gone: slow.Gone,
) -> tuple[list[int], list[float]] | None:
    """Kept units and factors; None for the random methods."""
    readers, k = net.groups[name], net.keep[name]
    n = slow.n_units(readers)
    ones = [1.0] * n
    if method in FORMS:
        source = dense if method == "layer-in-change" else current
        target = "dense" if method == "asym-in-change" else "own"
        return slow.input_change(source, dense, readers, data, k, target, gone), ones
    if "greedy-fs" in method:
        batches = net.data(3, 12, seed=99) if method.endswith("-fd") else data
        return slow.greedy_fs(current, readers, batches, k, generator(name)), [n / k] * n
    if method == "layer-sampling":
        return slow.sampling(dense, readers, data, k, generator(name))
    if "act-grad" in method:
        return slow.ranked(slow.act_grad(dense, readers, data).tolist())[:k], ones
    if method == "wanda-sp":
        return slow.ranked(slow.wanda(current, readers, data))[:k], ones
    if method == "thinet":
        return slow.contribution(current, readers, data)[:k], ones
    if method == "chip":
        return slow.ranked(slow.independence(dense, readers, data, 32))[:k], ones
    if method == "flap":
        return slow.ranked(slow.fluctuation(dense, readers, data))[:k], ones
    if "weight-norm" in method:
        return slow.ranked(slow.weight_norm(dense, readers, method == "weight-norm"))[:k], ones
    return None


@pytest.mark.parametrize("fit", [None, "keep"])
@pytest.mark.parametrize("method", WITH_A_TWIN)
@pytest.mark.parametrize("name", NETS)
def test_every_method_equals_its_slow_twin(name: str, method: str, fit: str | None) -> None:
    net = NETS[name]
    dense, data = net.build(), net.data(2, 30 if "conv" in net.groups or len(net.shape) > 1 else 40)
    if method == "layer-sampling":
        data = [(x[:10], y[:10]) for x, y in data]
    result = run(net, dense, method, data, fit=fit)
    current = copy.deepcopy(dense)
    gone: slow.Gone = {}
    for group, readers in net.groups.items():
        kept = list(result.plan.kept[group])
        expected = slow_choice(net, method, group, current, dense, data, gone)
        n = slow.n_units(readers)
        if expected is not None:
            assert kept == sorted(expected[0]), group
        scale = [1.0] * n if expected is None else expected[1]
        fitted = METHODS[method].fit.name if fit is None else fit
        if fitted == "constant" and len(kept) < n:
            current = slow.compensated(current, dense, readers, kept, data, gone)
        elif fitted != "keep" and len(kept) < n:
            source = dense if method == "layer-in-change" else current
            target = "dense" if method in ("asym-in-change", "layer-in-change") else "own"
            again = slow.reweighted(source, dense, readers, kept, data, target, gone)
            for reader, _ in readers:
                slow_weight = again.get_submodule(reader).weight.detach()
                current.get_submodule(reader).weight.data.copy_(slow_weight)
            scale = [1.0] * n
        current = slow.switched(current, readers, kept, scale)
        for reader, units in readers:
            gone.setdefault(reader, set()).update(
                j for j, u in enumerate(units.tolist()) if u >= 0 and u not in kept
            )
    fresh = net.data(1, 5, seed=3)[0][0]
    with torch.no_grad():
        torch.testing.assert_close(result.model(fresh), current(fresh), rtol=1e-6, atol=1e-6)


# ---- odd cases, for all methods ------------------------------------------------------------------

DRAWN = ("random", "layer-random", "layer-sampling")  # the seed has a say
PLAIN = NETS["plain"]


def edited(**changes: dict[int, float]) -> nn.Module:
    """The plain net; e.g. conv1={0: -100.0} sets the bias of channel 0's norm and switches its
    weight off.
    """
    model = PLAIN.build()
    norms = {"conv1": "bn1", "conv2": "bn2"}
    with torch.no_grad():
        for layer, values in changes.items():
            norm = model.get_submodule(norms[layer])
            for unit, value in values.items():
                norm.weight[unit], norm.bias[unit] = 0.0, value
    return model


@pytest.mark.parametrize("fit", [None, "keep"])
@pytest.mark.parametrize("method", [m for m in BUILT_IN if m not in DRAWN])
def test_ties_go_to_the_lowest_unit(method: str, fit: str | None) -> None:
    model = PLAIN.build()
    with torch.no_grad():
        for x in (*model.conv1.parameters(), *model.bn1.parameters(), *model.bn1.buffers()):
            if x.ndim:
                x.copy_(x[:1].expand_as(x))
        model.conv2.weight.copy_(model.conv2.weight[:, :1].expand_as(model.conv2.weight))
    result = run(PLAIN, model, method, PLAIN.data(2, 20), fit=fit)
    assert result.plan.kept["conv1"] == (0, 1)


@pytest.mark.parametrize("fit", [None, "keep"])
@pytest.mark.parametrize("method", BUILT_IN)
@pytest.mark.parametrize(
    "model",
    [
        edited(conv1={0: -1.0, 2: -1.0}, conv2={1: -1.0}),
        edited(conv1=dict.fromkeys(range(4), -1.0)),
        edited(conv1=dict.fromkeys(range(4), 0.7)),
        edited(conv2={0: 0.3, 1: 0.3, 2: -1.0, 3: -1.0, 4: -1.0}),
    ],
    ids=["dead units", "dead layer", "constant layer", "two constants"],
)
def test_dead_and_constant_units(model: nn.Module, method: str, fit: str | None) -> None:
    result = run(PLAIN, model, method, PLAIN.data(2, 20), fit=fit)
    assert result.plan.counts == PLAIN.keep
    assert torch.isfinite(result.model(PLAIN.data()[0][0])).all()


@pytest.mark.parametrize(
    "method", [m for m in BUILT_IN if "random" not in m and "weight" not in m and "fs" not in m]
)
def test_dead_units_go_first(method: str) -> None:
    result = run(PLAIN, edited(conv1={0: -1.0, 2: -1.0}), method, PLAIN.data(2, 20))
    assert result.plan.kept["conv1"] == (1, 3)


@pytest.mark.parametrize("method", BUILT_IN)
def test_one_unit_layers_and_budgets(method: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(4, 5),
        nn.ReLU(),
        nn.Linear(5, 1),
        nn.ReLU(),
        nn.Linear(1, 4),
        nn.ReLU(),
        nn.Linear(4, 3),
    ).double()
    net = Net(lambda: model, (4,), {}, {"0": 1, "4": 1})
    result = run(net, model, method, net.data(2, 20))
    assert result.plan.counts == {"0": 1, "4": 1}
    whole = run(net, model, method, net.data(2, 20), budgets={"0": 5, "4": 4}, fit="keep")
    x = net.data()[0][0]
    torch.testing.assert_close(whole.model(x), model(x))


@pytest.mark.parametrize("options", [{}, {"epsilon": 0.3}, {"patches": "random"}], ids=str)
@pytest.mark.parametrize("method", BUILT_IN)
def test_same_seed_same_result(method: str, options: dict[str, object]) -> None:
    model, data = PLAIN.build(), PLAIN.data(3, 12)
    if "epsilon" in options and METHODS[method].selector.name != "greedy":
        with pytest.raises(
            OptionError, match=r"epsilon=0\.3 has no effect with selector"
        ):  # it would have no effect
            run(PLAIN, model, method, data, seed=5, **options)
        return
    first, again = (run(PLAIN, model, method, data, seed=5, **options) for _ in range(2))
    assert first.plan.kept == again.plan.kept
    for a, b in zip(first.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("method", DRAWN)
def test_another_seed_another_result(method: str) -> None:
    model, data = PLAIN.build(), PLAIN.data(1, 12)
    assert len({str(run(PLAIN, model, method, data, seed=s).plan.kept) for s in range(6)}) > 1


@pytest.mark.parametrize("method", BUILT_IN)
def test_labels_are_needed_only_where_said(method: str) -> None:
    model, data = PLAIN.build(), [x for x, _ in PLAIN.data(2, 12)]
    if METHODS[method].selector.needs_labels:
        with pytest.raises(
            DataError, match=f"method='{method}' needs labels: give \\(inputs, labels\\) batches"
        ):
            run(PLAIN, model, method, data)
    else:
        run(PLAIN, model, method, data)


def test_the_training_set_is_asked_for_and_refused_elsewhere() -> None:
    model, data = PLAIN.build(), PLAIN.data(1, 12)
    with pytest.raises(OptionError, match=r"layer-greedy-fs-fd.*give train_data="):
        subprune.prune(model, data, method="layer-greedy-fs-fd", budgets=PLAIN.keep, progress=False)
    with pytest.raises(DataError, match=r"train_data.*needs labels"):
        run(PLAIN, model, "layer-greedy-fs-fd", data, train_data=data[0][0])
    with pytest.raises(OptionError, match="makes no use of train_data"):
        run(PLAIN, model, "layer-random", data, train_data=data)


@pytest.mark.parametrize("method", [m for m in BUILT_IN if "fs" not in m and m != "layer-sampling"])
def test_without_reweighting_kept_weights_are_the_old_ones(method: str) -> None:
    model = PLAIN.build()
    result = run(PLAIN, model, method, PLAIN.data(2, 20), fit="keep")
    rows, columns = result.plan.kept["conv2"], result.plan.kept["conv1"]
    assert torch.equal(result.model.conv2.weight, model.conv2.weight[list(rows)][:, list(columns)])


def test_a_ranking_that_is_none_is_refused() -> None:
    name = "test-only-ranking"
    wrong: dict[str, tuple[int, ...]] = {"different numbers": (0, 0, 1), "ranked 1 units": (0,)}
    for message, order in wrong.items():
        subprune.method(name)(lambda ranker, order=order: order)  # type: ignore[misc]
        try:
            with pytest.raises(OptionError, match=message):
                run(PLAIN, PLAIN.build(), name, PLAIN.data())
        finally:
            del METHODS[name]


def test_scores_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(DataError, match="finite"):
        order_by(torch.tensor([1.0, float("nan")]))


# ---- statistics: random patches, stochastic greedy, curves ---------------------------------------


def view_of(net: Net, group: str, data: slow.Data, target: Target | None = None) -> View:
    model = net.build()
    calibration = Calibration.of(model, batches(data, model, None))
    return next(v for v in views(setting_of(calibration), target) if v.group.name == group)


def test_random_patches_are_patches_and_the_same_for_inputs_and_targets() -> None:
    data = PLAIN.data(2, 5)
    (sampled,) = view_of(PLAIN, "conv1", data, Layer(patches="random")).statistics
    assert sampled.rows == 10 * 4  # a map of 2 × 2 has fewer places than the kernel
    torch.testing.assert_close(sampled.gram, view_of(PLAIN, "conv1", data).statistics[0].gram)
    fork = NETS["fork"]
    plain = view_of(fork, "conv", fork.data(2, 5), Layer(patches="random"))
    gate, body = plain.statistics
    assert gate.rows == 10  # one patch of each image: a 1 × 1 kernel
    assert body.rows == 10 * 9
    for target in (Layer(patches="random"), Asymmetric(patches="random")):
        view = view_of(fork, "conv", fork.data(2, 5), target)
        for s, w in zip(view.statistics, view.weights(), strict=True):
            torch.testing.assert_close(s.cross, s.gram @ w.flatten(1).T)


@pytest.mark.parametrize("method", FORMS)
def test_stochastic_greedy_that_looks_everywhere_is_greedy(method: str) -> None:
    model, data = PLAIN.build(), PLAIN.data(2, 20)
    plain = run(PLAIN, model, method, data)
    assert run(PLAIN, model, method, data, epsilon=1e-9).plan.kept == plain.plan.kept


@pytest.mark.parametrize("method", BUILT_IN)
def test_curves_end_where_nothing_is_lost(method: str) -> None:
    model = PLAIN.build()
    calibration = Calibration.of(model, batches(PLAIN.data(2, 30), model, None))
    pool = calibration if METHODS[method].selector.needs_pool else None
    setting = setting_of(calibration, pool=pool)
    for name, curve in curves(setting, recipe_of(method)).items():
        assert sorted(curve.order) == list(range(calibration.structure[name].n_units))
        assert curve.errors[0] == 1
        assert curve.errors[-1] < 1e-9
        assert (curve.errors.diff() <= 0).all()


def test_messages_name_the_selector_that_was_given() -> None:
    model, data = PLAIN.build(), [x for x, _ in PLAIN.data(1, 12)]
    with pytest.raises(DataError, match=r"^selector 'act-grad' needs labels"):
        subprune.prune(model, data, selector="act-grad", budgets=PLAIN.keep, progress=False)


def test_a_part_that_is_no_dataclass_is_used_as_it_is() -> None:
    class Backwards(Selector):
        name = "backwards"

        def __init__(self, first: int) -> None:
            object.__setattr__(self, "first", first)

        def rank(self, view: View) -> Ranking:
            start = vars(self)["first"]
            return Ranking(tuple((start - u) % view.n_units for u in range(view.n_units)))

    model, data = PLAIN.build(), PLAIN.data(1, 12)
    given = Backwards(2)
    result = subprune.prune(model, data, selector=given, budgets=PLAIN.keep, progress=False)
    for group in result.plan.groups:
        assert group.order[:3] == (2, 1, 0)
