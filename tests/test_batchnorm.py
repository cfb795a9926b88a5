"""BatchNorm re-estimation: what it computes, what it leaves alone, and that every method can have
it.
"""

from __future__ import annotations

import pytest
import torch
from method_nets import NETS
from torch import Tensor, nn

import subprune
from subprune.data.batches import batches
from subprune.errors import DataError, OptionError
from subprune.methods import METHODS
from subprune.program.ranks import ALONE
from subprune.statistics.batchnorm import recalibrate
from subprune.statistics.moments import pooled
from subprune.zoo.models import build

NET = NETS["plain"]


def by_hand(
    model: nn.Module, data: list[tuple[Tensor, Tensor]]
) -> dict[str, tuple[Tensor, Tensor]]:
    """Averages over batches of each norm's batch mean and unbiased variance; earlier norms use
    their batch's own.
    """
    sums: dict[str, list[tuple[Tensor, Tensor]]] = {"bn1": [], "bn2": []}

    def norm(name: str, x: Tensor) -> Tensor:
        layer = model.get_submodule(name)
        mean, var = x.mean((0, 2, 3)), x.var((0, 2, 3), unbiased=False)
        sums[name].append((mean, x.var((0, 2, 3), unbiased=True)))
        unit = (x - mean[:, None, None]) / (var[:, None, None] + layer.eps).sqrt()
        return unit * layer.weight[:, None, None] + layer.bias[:, None, None]

    with torch.no_grad():
        for x, _ in data:
            x = torch.max_pool2d(torch.relu(norm("bn1", model.conv1(x))), 2)
            norm("bn2", model.conv2(x))
    average = {}
    for name, found in sums.items():
        means, variances = zip(*found, strict=True)
        average[name] = (torch.stack(means).mean(0), torch.stack(variances).mean(0))
    return average


@pytest.mark.parametrize("method", METHODS)
def test_every_method_can_have_it(method: str) -> None:
    data = NET.data(3, 12)
    extra = {"train_data": data} if METHODS[method].selector.needs_pool else {}
    kept, fresh = (
        subprune.prune(
            NET.build(), data, method=method, budgets=NET.keep, batchnorm=b, progress=False, **extra
        )
        for b in ("keep", "recalibrate")
    )
    assert kept.plan.kept == fresh.plan.kept
    expected = by_hand(kept.model, data)
    for name, (mean, var) in expected.items():
        torch.testing.assert_close(fresh.model.get_submodule(name).running_mean, mean)
        torch.testing.assert_close(fresh.model.get_submodule(name).running_var, var)
    others = {k: v for k, v in kept.model.state_dict().items() if "running" not in k}
    for name, value in others.items():
        assert torch.equal(value, fresh.model.state_dict()[name]), name
    assert any("BatchNorm" in note and "2 layers" in note for note in fresh.report.notes)


def norm_inputs(model: nn.Module, data: list[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    """What every norm of the model reads, all batches together."""
    seen: dict[str, list[Tensor]] = {}
    norms = {name: m for name, m in model.named_modules() if isinstance(m, nn.BatchNorm2d)}
    handles = [
        m.register_forward_pre_hook(lambda _, x, name=name: seen.setdefault(name, []).append(x[0]))
        for name, m in norms.items()
    ]
    with torch.no_grad():
        for x, _ in data:
            model(x)
    for handle in handles:
        handle.remove()
    return {name: torch.cat(xs).double() for name, xs in seen.items()}


@pytest.mark.parametrize("fit", [None, "keep"])
@pytest.mark.parametrize("method", METHODS)
def test_taken_on_the_way_they_are_those_of_the_pruned_model(method: str, fit: str | None) -> None:
    data = [(x.double(), y) for x, y in NET.data(3, 12)]
    extra = {"train_data": data} if METHODS[method].selector.needs_pool else {}
    result = subprune.prune(
        NET.build().double(),
        data,
        method=method,
        budgets=NET.keep,
        batchnorm="sequential",
        fit=fit,
        **extra,
    )
    found = norm_inputs(result.model, data)
    assert set(found) == {"bn1", "bn2"}
    for name, x in found.items():
        layer = result.model.get_submodule(name)
        torch.testing.assert_close(layer.running_mean, x.mean((0, 2, 3)))
        torch.testing.assert_close(layer.running_var, x.var((0, 2, 3)))
    assert any("2 layers, one after another" in note for note in result.report.notes)


@pytest.mark.parametrize("method", ["asym-in-change", "seq-in-change", "layer-in-change"])
def test_on_the_way_through_residual_branches(method: str) -> None:
    torch.manual_seed(0)
    model = build("resnet20").eval().double()
    data = [(torch.randn(8, 3, 32, 32, dtype=torch.float64), torch.arange(8)) for _ in range(2)]
    result = subprune.prune(
        model, data, method=method, compression=2, only="layer*.conv1", batchnorm="sequential"
    )
    found = norm_inputs(result.model, data)
    assert len(found) == 19
    for name, x in found.items():
        torch.testing.assert_close(result.model.get_submodule(name).running_mean, x.mean((0, 2, 3)))
        torch.testing.assert_close(result.model.get_submodule(name).running_var, x.var((0, 2, 3)))


def test_on_the_way_a_norm_that_is_used_twice_is_left_alone() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.last = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 2)
            self.norm, self.own = nn.BatchNorm1d(6), nn.BatchNorm1d(6)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.last(
                self.own(torch.relu(self.norm(self.second(torch.relu(self.norm(self.first(x)))))))
            )
            return y

    model = Twice().eval()
    small = subprune.prune(
        model, torch.randn(64, 4), budgets={"first": 3}, batchnorm="sequential"
    ).model
    assert bool((small.norm.running_mean == 0).all())
    assert bool((small.own.running_mean != 0).any())


def test_pooled_statistics_are_those_of_all_batches_together() -> None:
    parts = [torch.randn(5, 3, 2, 2) * 4 + 100, torch.randn(2, 3, 2, 2)]
    mean, variance = pooled(parts, ALONE)
    whole = torch.cat(parts).double()
    torch.testing.assert_close(mean, whole.mean((0, 2, 3)))
    torch.testing.assert_close(variance, whole.var((0, 2, 3)))
    with pytest.raises(DataError, match="one value per channel"):
        pooled([torch.randn(1, 3)], ALONE)


def test_modes_momentum_and_counters_come_back() -> None:
    model = NET.build()
    model.bn1.momentum = 0.3
    model.bn1.train()
    model.fc1.train()
    counter = model.bn1.num_batches_tracked.clone()
    assert recalibrate(model, batches(NET.data(2, 6), model, None)) == ["bn1", "bn2"]
    assert (model.bn1.momentum, model.bn1.training, model.bn2.training, model.fc1.training) == (
        0.3,
        True,
        False,
        True,
    )
    assert torch.equal(model.bn1.num_batches_tracked, counter)


def test_models_without_running_statistics_are_left_alone() -> None:
    model = nn.Sequential(
        nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3, track_running_stats=False), nn.Dropout(0.5)
    ).eval()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    assert recalibrate(model, batches(torch.randn(4, 2, 3, 3), model, None)) == []
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())


def test_a_batch_that_is_too_small_is_refused_and_nothing_is_lost() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).eval()
    model[1].running_mean.fill_(0.5)
    with pytest.raises(DataError, match="larger batches"):
        recalibrate(model, batches([torch.randn(5, 3), torch.randn(1, 3)], model, None))
    assert (model[1].running_mean == 0.5).all()
    assert (model[1].running_var == 1).all()


def test_unknown_values_are_refused() -> None:
    with pytest.raises(OptionError, match=r"batchnorm='recalibrat'.*did you mean 'recalibrate'"):
        subprune.prune(NET.build(), NET.data(), keep=0.5, batchnorm="recalibrat", progress=False)
    with pytest.raises(OptionError, match=r"patches='some'.*allowed are all, random"):
        subprune.prune(NET.build(), NET.data(), keep=0.5, patches="some", progress=False)


@pytest.mark.parametrize("batchnorm", ["sequential", "recalibrate"])
@pytest.mark.parametrize("method", ["auto", "asym-in-change"])
def test_means_are_not_made_up_for_twice(method: str, batchnorm: str) -> None:
    """New means make up for what removed units gave; a constant in the norm's bias would again."""

    def build() -> nn.Module:
        torch.manual_seed(0)
        model = nn.Sequential(
            *(nn.Conv2d(2, 12, 3, bias=False), nn.BatchNorm2d(12), nn.ReLU()),
            *(nn.Conv2d(12, 6, 3, bias=False), nn.BatchNorm2d(6), nn.ReLU()),
            *(nn.Flatten(), nn.Linear(6 * 16, 3)),
        )
        for norm in (model[1], model[4]):
            norm.momentum = None  # the mean over all batches
        model.train()(x)
        return model.double().eval()

    x = torch.randn(80, 2, 8, 8, generator=torch.Generator().manual_seed(1))
    model, inputs = build(), x.double()
    result = subprune.prune(
        model,
        inputs,
        method=method,
        fit="affine",
        drift=False,
        batchnorm=batchnorm,  # type: ignore[arg-type]
        budgets={"0": 3},
        progress=False,
    )
    assert torch.equal(result.model[4].bias, model[4].bias)
    with torch.no_grad():
        gap = (result.model[:5](inputs) - model[:5](inputs)).mean((0, 2, 3))
    assert float(gap.abs().max()) < 1e-3
    kept = subprune.prune(
        model, inputs, method=method, fit="affine", drift=False, budgets={"0": 3}, progress=False
    )
    assert not torch.allclose(kept.model[4].bias, model[4].bias)
