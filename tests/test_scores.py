"""Scores against their slow twins, and the budget rule that ranks all units together."""

from __future__ import annotations

import pytest
import slow_methods as slow
import torch
from method_nets import NETS, Net
from torch import Tensor, nn
from views import recipe_of, setting_of, views

import subprune
from subprune.budget.goal import Limit, Rounding
from subprune.budget.score import by_score, top_fraction
from subprune.budget.space import BudgetSpace
from subprune.data.batches import batches
from subprune.errors import BudgetError, DataError, OptionError
from subprune.loop.looks import comparable_scores
from subprune.select import scores
from subprune.statistics.calibration import Calibration
from subprune.structure.cost import CostModel
from subprune.structure.groups import Group


def calibrated(net: Net, data: slow.Data | None = None) -> Calibration:
    model = net.build()
    return Calibration.of(model, batches(net.data(2, 9) if data is None else data, model, None))


@pytest.mark.parametrize("name", NETS)
def test_scores_equal_their_slow_twins(name: str) -> None:
    net, calibration = NETS[name], calibrated(NETS[name])
    dense, data = net.build(), net.data(2, 9)
    for view in views(setting_of(calibration)):
        readers = net.groups[view.group.name]
        torch.testing.assert_close(scores.act_grad(view), slow.act_grad(dense, readers, data))
        norms = torch.tensor(slow.weight_norm(dense, readers, mean=False), dtype=torch.float64)
        torch.testing.assert_close(scores.weight_norms(view), norms)
        means = torch.tensor(slow.weight_norm(dense, readers, mean=True), dtype=torch.float64)
        torch.testing.assert_close(scores.weight_norms(view) / scores.weight_counts(view), means)


def test_scores_do_not_depend_on_how_samples_are_batched() -> None:
    net = NETS["plain"]
    (x, y), *_ = net.data(1, 12)
    parts = ([(x, y)], list(zip(x.split(5), y.split(5), strict=True)))
    found = [
        comparable_scores(setting_of(c), recipe_of("act-grad"))
        for c in (calibrated(net, p) for p in parts)
    ]
    for name in found[0]:
        torch.testing.assert_close(found[0][name], found[1][name])


@pytest.mark.parametrize("keep", [0.2, 0.5, 0.8])
@pytest.mark.parametrize("method", ["act-grad", "weight-norm"])
@pytest.mark.parametrize("name", ["plain", "fork", "grouped", "heads"])
def test_global_methods_keep_the_top_of_all_units(name: str, method: str, keep: float) -> None:
    net = NETS[name]
    dense, data = net.build(), net.data(2, 9)
    ranked = []
    for group, readers in net.groups.items():
        if method == "act-grad":
            own = slow.act_grad(dense, readers, data)
            own = own / own.norm()
        else:
            own = torch.tensor(slow.weight_norm(dense, readers, mean=True))
        ranked += [(float(s), group, u) for u, s in enumerate(own)]
    ranked.sort(reverse=True)
    top = ranked[: int(keep * len(ranked) + 1e-9)]
    expected = {g: sorted(u for _, group, u in top if group == g) for g in net.groups}
    for g in net.groups:  # at least the best one
        expected[g] = expected[g] or [max((s, u) for s, group, u in ranked if group == g)[1]]
    result = subprune.prune(dense, data, method=method, keep=keep, progress=False)
    assert {g: list(k) for g, k in result.plan.kept.items()} == expected


def ladder() -> tuple[list[Group], CostModel, dict[str, Tensor]]:
    model = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2))
    structure = subprune.find_groups(model, torch.randn(2, 3))
    own = {"0": torch.tensor([6.0, 5, 4, 3, 2, 1]), "2": torch.tensor([10.0, 9, 4, 0.5, 0.1])}
    return list(structure.inner()), CostModel(model, structure), own


def test_a_target_is_filled_with_the_best_units() -> None:
    groups, cost, own = ladder()
    full = cost.params({})
    sizes = []
    for limit in range(cost.params({"0": 1, "2": 1}), full + 1):
        counts = by_score(
            BudgetSpace(groups=groups, cost=cost, limit=Limit("params", limit, "test")), own
        )
        assert cost.params(counts) <= limit
        more = [
            {**counts, g.name: counts[g.name] + 1} for g in groups if counts[g.name] < g.n_units
        ]
        assert all(cost.params(m) > limit for m in more)
        sizes.append(cost.params(counts))
    assert sizes[-1] == full
    exact = by_score(
        BudgetSpace(
            groups=groups, cost=cost, limit=Limit("params", cost.params({"0": 2, "2": 2}), "test")
        ),
        own,
    )
    assert exact == {"0": 2, "2": 2}


def test_equal_scores_go_to_the_earlier_group() -> None:
    groups, _, own = ladder()
    assert top_fraction(groups, own, 5 / 11, Rounding()) == {"0": 3, "2": 2}
    assert top_fraction(groups, own, 1 / 11, Rounding()) == {"0": 1, "2": 1}
    assert top_fraction(groups, own, 1.0, Rounding()) == {"0": 6, "2": 5}
    with pytest.raises(BudgetError, match="keep must be a fraction"):
        top_fraction(groups, own, 0.0, Rounding())


def test_scores_must_be_there_and_be_numbers() -> None:
    groups, cost, own = ladder()
    space = BudgetSpace(groups=groups, cost=cost, limit=Limit("params", 50, "test"))
    with pytest.raises(DataError, match="finite"):
        by_score(space, {**own, "0": own["0"] / 0})
    net = NETS["plain"]
    with pytest.raises(OptionError, match=r"allocate='score' needs scores.*act-grad"):
        subprune.prune(
            net.build(),
            net.data(),
            method="layer-weight-norm",
            compression=2,
            allocate="score",
            progress=False,
        )


def test_loss_of_sequences_maps_and_misfits() -> None:
    g = torch.Generator().manual_seed(0)
    flat = torch.randn(4, 3, generator=g)
    labels = torch.tensor([0, 1, 2, 0])
    expected = -flat.log_softmax(-1)[torch.arange(4), labels].sum()
    torch.testing.assert_close(scores.label_loss(flat, labels), expected)
    torch.testing.assert_close(
        scores.label_loss(flat.reshape(2, 2, 3), labels.reshape(2, 2)), expected
    )
    maps = flat.reshape(2, 2, 3).movedim(-1, 1)[..., None]
    torch.testing.assert_close(scores.label_loss(maps, labels.reshape(2, 2, 1)), expected)
    with pytest.raises(DataError, match="do not fit the model's first output"):
        scores.label_loss(flat, labels[:3])


def test_the_model_is_left_alone() -> None:
    net = NETS["plain"]
    model = net.build()
    model.train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    subprune.prune(model, net.data(2, 9), method="act-grad", keep=0.5, progress=False)
    assert model.training
    assert all(m.training for m in model.modules())
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
