"""Layers that lose no input, but whose inputs drift, are refitted to what they gave before."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from zoo import ZOO, run

import subprune
from subprune.errors import OptionError
from subprune.fit.ridge import Ridge
from subprune.plan import FITTED, UNFITTED
from subprune.statistics.products import Sequential

QUIET: dict[str, Any] = {"progress": False, "time_calls": False}
PAPER = "asym-in-change"


class Residual(nn.Module):
    """Two residual branches and a head; the second has a norm that sees all its units."""

    def __init__(self, norm: bool = False) -> None:
        super().__init__()
        self.a1, self.a2 = nn.Linear(6, 16), nn.Linear(16, 6)
        self.b1, self.b2 = nn.Linear(6, 12), nn.Linear(12, 6)
        self.norm = nn.LayerNorm(12) if norm else nn.Identity()
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.a2(torch.relu(self.a1(x)))
        x = x + self.b2(torch.relu(self.norm(self.b1(x))))
        return self.head(torch.tanh(x))


def net(norm: bool = False) -> tuple[Residual, Tensor]:
    torch.manual_seed(5)
    return Residual(norm).double().eval(), torch.randn(300, 6, dtype=torch.float64)


def seen(model: nn.Module, x: Tensor, layer: str) -> tuple[np.ndarray, np.ndarray]:
    """What a layer reads and gives, without its bias."""
    values: list[tuple[Tensor, Tensor]] = []
    module = model.get_submodule(layer)
    handle = module.register_forward_hook(lambda m, args, y: values.append((args[0], y - m.bias)))
    with torch.no_grad():
        model(x)
    handle.remove()
    return values[0][0].numpy(), values[0][1].numpy()


@pytest.mark.parametrize("target", [None, Sequential(), Sequential(landed=True)], ids=str)
@pytest.mark.parametrize("layer", ["b1", "b2", "head"])
def test_a_layer_is_the_least_squares_fit_to_what_it_gave(layer: str, target: Any) -> None:
    model, x = net()
    result = subprune.prune(
        model, x, budgets={"a1": 5}, method=PAPER, target=target, drift=True, ridge=0, **QUIET
    )
    rows, _ = seen(result.model, x, layer)
    _, wanted = seen(model, x, layer)
    fitted = np.linalg.lstsq(rows, wanted, rcond=None)[0]
    weight = result.model.get_submodule(layer).weight.detach().numpy()
    np.testing.assert_allclose(weight, fitted.T, rtol=1e-6, atol=1e-9)
    plain = subprune.prune(model, x, budgets={"a1": 5}, method=PAPER, ridge=0, **QUIET)
    assert torch.equal(plain.model.get_submodule(layer).weight, model.get_submodule(layer).weight)


def test_layers_before_the_first_cut_and_cut_ones_are_not_counted() -> None:
    model, x = net()
    result = subprune.prune(model, x, budgets={"a1": 5, "b1": 4}, drift=True, **QUIET)
    assert torch.equal(  # nothing before it has changed; its outputs are cut
        result.model.a1.weight, model.a1.weight[list(result.plan.kept["a1"])]
    )
    assert "2 layers that lost no input were refitted too" in result.report.notes  # b1, head
    whole = subprune.prune(model, x, budgets={"b1": 4}, drift=True, **QUIET)
    assert "1 layer that lost no input was refitted too" in whole.report.notes  # head


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("fit", ["ridge", "affine", "least-squares"])
@pytest.mark.parametrize("target", ["sequential", "asymmetric"])
def test_the_model_stays_nearer_on_unseen_inputs(norm: bool, fit: Any, target: Any) -> None:
    model, x = net(norm)
    unseen = torch.randn(500, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(9))
    changes = []
    for drift in (False, True):
        result = subprune.prune(
            model, x, keep=0.4, fit=fit, target=target, drift=drift, allocate="uniform", **QUIET
        )
        with torch.no_grad():
            changes.append(float((result.model(unseen) - model(unseen)).square().sum()))
    assert changes[1] < changes[0]


def test_where_nothing_can_be_refitted_it_is_refused() -> None:
    model, x = net()
    for options, why in (
        ({"fit": "keep"}, "fit 'keep' fits nothing"),
        ({"method": "layer-in-change"}, "target 'layer' looks at the dense model alone"),
    ):
        with pytest.raises(OptionError, match=rf"drift=True has no effect: .*{why}"):
            subprune.prune(model, x, keep=0.5, drift=True, **options, **QUIET)


@pytest.mark.parametrize("name", [name for name, entry in ZOO.items() if entry.inner])
def test_networks_of_the_zoo(name: str) -> None:
    """That the cut equals its masked twin is checked inside; the outputs must be numbers."""
    model, example = ZOO[name].build()
    result = subprune.prune(
        model, torch.zeros(1, 1), keep=0.5, drift=True, forward=lambda _: example, **QUIET
    )
    assert all(torch.isfinite(x).all() for x in run(result.model, example))


def test_where_no_fit_helps_on_held_out_inputs_the_weights_stay() -> None:
    """Eight noisy inputs for layers of six columns: what is fitted to six of them misleads."""
    worse = kept = 0
    for seed in range(6):
        torch.manual_seed(seed)
        model, x = Residual().double().eval(), torch.randn(8, 6, dtype=torch.float64)
        result = subprune.prune(model, x, budgets={"a1": 12}, **QUIET)
        for stages in result.plan.refitted.values():
            before, after = dict(stages)[UNFITTED], dict(stages)[FITTED]
            worse += after > 2 * before  # constants are still fitted, to six inputs
            kept += 1
    assert kept == 18  # b1, b2 and the head
    assert worse == 0


def test_an_infinite_ridge_keeps_the_weights() -> None:
    model, x = net()
    result = subprune.prune(model, x, budgets={"a1": 5}, drift=True, fit=Kept(), **QUIET)
    for name in ("b1", "head"):
        torch.testing.assert_close(
            result.model.get_submodule(name).weight, model.get_submodule(name).weight
        )


class Kept(Ridge):
    """Held-out inputs are not asked: the old weights stay."""

    def strengths(self) -> tuple[float, ...]:
        return (math.inf,)
