"""Rules from outside: right ones make groups, wrong ones cost a group and never a wrong model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import subprune
from subprune.errors import BudgetError, OptionError
from subprune.program.ops import NORMS, PRODUCTS
from subprune.program.record import MODULES
from subprune.structure import registry  # noqa: F401  (the rules are registered)
from subprune.structure.flow import RULES


@torch.library.custom_op("outside::soften", mutates_args=())
def soften(x: Tensor) -> Tensor:
    return x / (1 + x.abs())


@torch.library.custom_op("outside::mirrored", mutates_args=())
def mirrored(x: Tensor) -> Tensor:
    return x.flip(1).contiguous()


@torch.library.custom_op("outside::whiten", mutates_args=())
def whiten(rows: Tensor, lengths: list[int], gain: Tensor) -> Tensor:
    return nn.functional.layer_norm(rows, lengths, gain)


@torch.library.custom_op("outside::blur", mutates_args=())
def blur(x: Tensor) -> Tensor:
    return nn.functional.avg_pool2d(x, 2)


@soften.register_fake
@mirrored.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@whiten.register_fake
def _(rows: Tensor, lengths: list[int], gain: Tensor) -> Tensor:
    return torch.empty_like(rows)


@blur.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], x.shape[1], x.shape[2] // 2, x.shape[3] // 2)


@pytest.fixture(autouse=True)
def _tables() -> Iterator[None]:
    """What a test registers is gone afterwards."""
    tables: list[dict[Any, Any]] = [RULES, PRODUCTS, NORMS, MODULES]
    before = [dict(table) for table in tables]
    yield
    for table, rows in zip(tables, before, strict=True):
        table.clear()
        table.update(rows)


class Between(nn.Module):
    """Two linear layers, and something of one's own between them."""

    def __init__(self, own: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.own = nn.Linear(5, 12), nn.Linear(12, 3), own

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.own(self.first(x)))
        return out


def counts(model: nn.Module, x: Tensor, **options: Any) -> dict[str, int]:
    given = {"keep": 0.5, "progress": False, "time_calls": False, **options}
    return subprune.prune(model, x, **given).plan.counts


X = torch.randn(64, 5, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "name",
    ["outside::soften", "outside.soften.default", soften, torch.ops.outside.soften, "soften"],
)
def test_an_operation_is_named_in_any_way(name: Any) -> None:
    model = Between(soften)
    assert "outside.soften" in subprune.find_groups(model, X).refused["first"]
    subprune.register_rule(name, like="pointwise")
    assert [g.name for g in subprune.find_groups(model, X).groups] == ["first"]
    subprune.unregister_rule(name)
    assert not subprune.find_groups(model, X).groups


def test_a_wrong_rule_costs_the_group_and_not_the_model() -> None:
    """Units are turned round in between, which the rule does not say: the check notices."""
    model = Between(lambda x: mirrored(x))
    subprune.register_rule("outside::mirrored", like="pointwise")
    with pytest.raises(BudgetError, match="first"):
        subprune.prune(model, X, keep=0.5)


def test_a_norm_of_ones_own() -> None:
    class Normed(Between):
        def __init__(self) -> None:
            super().__init__(nn.Identity())
            self.gain = nn.Parameter(torch.rand(12) + 0.5)

        def forward(self, x: Tensor) -> Tensor:
            rows = self.first(x)
            out: Tensor = self.last(whiten(rows, list(rows.shape[1:]), self.gain))
            return out

    norm = subprune.Norm(activation="rows", parameters=("gain",), sizes="lengths")
    subprune.register_rule(whiten, like=norm)
    result = subprune.prune(Normed(), X, keep=0.5, progress=False)
    assert result.model.gain.shape == (6,)


def test_channels_are_carried_over() -> None:
    class Blurred(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first, self.last = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 2, 1)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.last(blur(self.first(x)))
            return out

    subprune.register_rule("outside::blur", like="channels")
    assert counts(Blurred(), torch.randn(16, 1, 8, 8)) == {"first": 4}


class Gate(nn.Module):
    """Looks at values, so that it cannot be recorded."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, width))

    def forward(self, x: Tensor) -> Tensor:
        return x if float(x.detach().abs().max()) > 1e6 else x * self.scale


def test_a_module_with_parameters_of_its_own() -> None:
    model = Between(Gate())
    assert not subprune.find_groups(model, X).groups
    subprune.register_rule(Gate, like="pointwise", parameters={"scale": 0})
    result = subprune.prune(model, X, keep=0.5, progress=False)
    kept = list(result.plan.kept["first"])
    assert torch.equal(result.model.own.scale, model.own.scale[kept])
    with torch.no_grad():
        assert result.model(X).shape == model(X).shape


def test_parameters_that_are_forgotten_cost_the_group() -> None:
    subprune.register_rule(Gate, like="pointwise")
    with pytest.raises(BudgetError, match="first"):
        subprune.prune(Between(Gate()), X, keep=0.5)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (("relu", "pointwise"), "there is a rule for 'relu' already"),
        (("outside::soften", "pointwize"), "did you mean 'pointwise'"),
        (("outside::soften", 3), "allowed are 'pointwise'"),
        (("not a name", "pointwise"), "is not an operation"),
        ((Gate, "linear"), "whose weights cannot be refitted"),
    ],
)
def test_rules_that_are_none_are_refused(call: Any, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        subprune.register_rule(*call)


def test_what_is_for_modules_is_refused_with_operations() -> None:
    with pytest.raises(OptionError, match="parameters and dim are for modules"):
        subprune.register_rule("outside::soften", "pointwise", parameters={"scale": 0})
    subprune.register_rule(Gate, "pointwise", parameters={"scal": 0})
    with pytest.raises(OptionError, match=r"names 'scal', which is not a parameter .* are scale"):
        subprune.find_groups(Between(Gate()), X)


@torch.library.custom_op("outside::flip", mutates_args=())
def halves(x: Tensor) -> Tensor:
    return x * 0.5


@halves.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


class Halved(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(halves(torch.relu(self.first(x))))


def test_an_operation_named_as_one_of_pytorch_is_another() -> None:
    model, x = Halved(), torch.randn(64, 6)
    assert "outside.flip" in subprune.find_groups(model, x).refused["first"]
    subprune.register_rule("outside::flip", like="pointwise")
    assert subprune.prune(model, x, keep=0.5, progress=False).plan.counts == {"first": 8}
    flipped = nn.Sequential(nn.Linear(6, 16), Flipped(), nn.Linear(16, 3))
    assert not subprune.find_groups(flipped, x).groups  # PyTorch's own is what it was


class Flipped(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.flip(-1)


def test_a_rule_that_is_not_there_cannot_be_forgotten() -> None:
    for name in ("outside::never", nn.Hardshrink):
        with pytest.raises(OptionError, match=r"there is no rule for .*give what register_rule"):
            subprune.unregister_rule(name)
