"""Fits as parts: each by its name, against least squares on explicit rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import subprune
from subprune.fit.affine import Affine
from subprune.fit.cross_fit import STRENGTHS, cross_fit
from subprune.fit.fits import FITS
from subprune.statistics.accumulation import Accumulator
from subprune.statistics.folds import FoldedStatistics

QUIET: dict[str, Any] = {"progress": False, "time_calls": False}


def net(bias: bool = True) -> tuple[nn.Sequential, Tensor]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 4, bias=bias)).double()
    return model, torch.randn(200, 6, dtype=torch.float64) + 0.5


def outputs(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        y: Tensor = model(x)
    return y


def residual(before: nn.Module, after: nn.Module, x: Tensor) -> float:
    return float((outputs(before, x) - outputs(after, x)).square().sum())


@pytest.mark.parametrize("method", ["layer-in-change", "asym-in-change", "layer-random"])
def test_affine_without_a_ridge_is_lstsq_with_a_constant(method: str) -> None:
    model, x = net()
    result = subprune.prune(
        model, x, budgets={"0": 5}, method=method, fit="affine", ridge=0, **QUIET
    )
    hidden = outputs(model[:2], x)[:, list(result.plan.kept["0"])].numpy()
    wide = np.concatenate([hidden, np.ones((len(x), 1))], 1)
    fitted = np.linalg.lstsq(wide, outputs(model, x).numpy(), rcond=None)[0]
    last = result.model.get_submodule("2")
    np.testing.assert_allclose(last.weight.detach().numpy(), fitted[:-1].T, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(last.bias.detach().numpy(), fitted[-1], rtol=1e-7, atol=1e-9)


def test_a_constant_never_hurts_where_it_is_fitted() -> None:
    """It needs no unit: with it, others may be the best."""
    model, x = net()
    plain, affine = (
        subprune.prune(model, x, budgets={"0": 3}, fit=fit, ridge=0, **QUIET)
        for fit in ("ridge", "affine")
    )
    assert residual(model, affine.model, x) < 0.99 * residual(model, plain.model, x)
    errors = [r.plan.groups[0].error for r in (affine, plain)]
    assert errors[0] < errors[1]


def test_a_layer_without_a_bias_is_fitted_without_one() -> None:
    model, x = net(bias=False)
    results = [
        subprune.prune(model, x, budgets={"0": 5}, fit=fit, **QUIET) for fit in ("ridge", "affine")
    ]
    for a, b in zip(results[0].model.parameters(), results[1].model.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_held_out_figures_are_those_of_the_versions() -> None:
    """One fold at a time, fitted by hand with a constant column and judged on the others."""
    model, x = net()
    fit = Affine(ridge=0.0, folds=4)
    result = subprune.prune(model, x, budgets={"0": 5}, fit=fit, method="layer-in-change", **QUIET)
    hidden = outputs(model[:2], x)[:, list(result.plan.kept["0"])].numpy()
    wide = np.concatenate([hidden, np.ones((len(x), 1))], 1)
    y, bias = outputs(model, x).numpy(), model[2].bias.detach().numpy()
    squares = 0.0
    for fold in range(4):
        unseen = np.arange(len(x)) % 4 == fold
        fitted = np.linalg.lstsq(wide[~unseen], y[~unseen] - bias, rcond=None)[0]
        squares += float(np.square(y[unseen] - bias - wide[unseen] @ fitted).sum())
    energy = float(np.square(y - bias).sum())
    assert result.plan.groups[0].held_out == pytest.approx(squares / energy, rel=1e-6)
    assert result.report.held_out is not None


@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize("conv", ["grouped", "transposed", "plain"])
def test_every_fit_serves_every_layer(fit: str, conv: str) -> None:
    """Cut equals mask is checked inside; biases of grouped and transposed convolutions too."""
    torch.manual_seed(0)
    last: dict[str, nn.Module] = {
        "plain": nn.Conv2d(8, 4, 3),
        "grouped": nn.Conv2d(8, 4, 3, groups=2),
        "transposed": nn.ConvTranspose2d(8, 4, 3, stride=2),
    }
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), last[conv])
    x = torch.randn(24, 3, 8, 8)
    result = subprune.prune(model, x, keep=0.5, fit=fit, **QUIET)
    assert result.plan.counts == {"0": 2 if conv == "grouped" else 4}  # in pairs
    assert torch.isfinite(outputs(result.model, x)).all()


class TwoReaders(nn.Module):
    """Two layers that add the same bias."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.read_a = nn.Linear(6, 12), nn.Linear(12, 4)
        self.b, self.read_b = nn.Linear(4, 12), nn.Linear(12, 4)
        self.read_b.bias = self.read_a.bias

    def forward(self, x: Tensor) -> Tensor:
        y = self.read_a(torch.relu(self.a(x) + 1))
        return self.read_b(torch.relu(self.b(y) + 1))


class Factors(nn.Module):
    """A bias that is added twice over, and one for all outputs."""

    def __init__(self, bias: int, beta: float) -> None:
        super().__init__()
        self.a, self.beta = nn.Linear(6, 12), beta
        self.weight, self.bias = (nn.Parameter(torch.randn(*s)) for s in ((12, 4), (bias,)))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, torch.relu(self.a(x)), self.weight, beta=self.beta)


@pytest.mark.parametrize("make", [TwoReaders, lambda: Factors(4, 2.0), lambda: Factors(1, 1.0)])
def test_a_bias_that_is_not_a_layers_own_is_left_alone(make: Any) -> None:
    torch.manual_seed(3)
    model, x = make().double(), torch.randn(200, 6, dtype=torch.float64)
    how = {"keep": 0.5, "method": "asym-in-change", **QUIET}
    results = [subprune.prune(model, x, fit=fit, **how) for fit in ("ridge", "affine")]
    for a, b in zip(results[0].model.parameters(), results[1].model.parameters(), strict=True):
        torch.testing.assert_close(a, b)


class Joined(nn.Module):
    """One layer that reads two groups."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.last = nn.Linear(6, 12), nn.Linear(6, 12), nn.Linear(24, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.cat([torch.relu(self.a(x) + 1), torch.relu(self.b(x) + 1)], 1))


@pytest.mark.parametrize("target", ["layer", "sequential", "asymmetric", "residual"])
def test_the_constant_of_a_layer_that_reads_two_groups_counts_once(target: Any) -> None:
    torch.manual_seed(3)
    model, x = Joined().double(), torch.randn(200, 6, dtype=torch.float64)
    result = subprune.prune(model, x, keep=0.4, fit="affine", ridge=0, target=target, **QUIET)
    left = outputs(model, x) - outputs(result.model, x)
    assert float(left.mean(0).abs().max()) < 1e-9


def test_versions_of_a_layer_that_reads_two_groups_have_its_constant_once() -> None:
    torch.manual_seed(3)
    model, x = Joined().double(), torch.randn(200, 6, dtype=torch.float64)
    kinds = ("ridge", "affine")
    errors = [
        subprune.prune(model, x, keep=0.4, fit=fit, target="sequential", **QUIET).report.held_out
        for fit in kinds
    ]
    plain, affine = (e.output_change for e in errors if e is not None)
    assert affine < 1.2 * plain


@pytest.mark.parametrize("silent", [0, 1])
def test_growth_is_that_of_the_layers_that_had_weights(silent: int) -> None:
    """Two layers read the group; one of them has weights of zero, in either order."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(6, 12)
            self.readers = nn.ModuleList(nn.Linear(12, 3) for _ in range(2))
            nn.init.zeros_(self.readers[silent].weight)

        def forward(self, x: Tensor) -> Tensor:
            hidden = torch.relu(self.first(x))
            return self.readers[0](hidden) + self.readers[1](hidden)

    torch.manual_seed(0)
    result = subprune.prune(Two(), torch.randn(80, 6), keep=0.5, **QUIET)
    assert 0.1 < result.plan.groups[0].growth < 10


@pytest.mark.parametrize("intercept", [False, True])
def test_a_fit_that_is_not_measured_has_the_same_weights(intercept: bool) -> None:
    random = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64)

    units, old = torch.arange(9), normal(9, 4)
    parts = [Accumulator(9, 4, units) for _ in range(4)]
    for part in parts:
        rows = normal(30, 9)
        part.update(rows, rows @ old + 0.1 * normal(30, 4))
    folded, kept = FoldedStatistics(parts), (0, 2, 3, 7)
    fit, plain = (
        cross_fit(folded, folded.whole(), kept, old, STRENGTHS, intercept, measured=measured)
        for measured in (True, False)
    )
    assert plain.ridge == fit.ridge
    torch.testing.assert_close(plain.weight, fit.weight)
    torch.testing.assert_close(plain.versions, fit.versions)
    assert fit.error > 0
    assert fit.held_out > fit.error
    assert math.isnan(plain.error)
    assert math.isnan(plain.held_out)
