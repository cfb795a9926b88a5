"""How to teach the library an operation: a row of the table, and a rule for its dimensions."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import subprune
from subprune.cutting.masking import mask
from subprune.cutting.surgery import cut
from subprune.program.ops import PRODUCTS, Product
from subprune.structure.flow import RULES
from subprune.structure.rules.linear import linear


@torch.library.custom_op("example::mixture", mutates_args=())
def mixture(features: Tensor, mixing: Tensor) -> Tensor:
    """An operation of somebody else's: features [N, d] times mixing [d, m]."""
    return features @ mixing


@mixture.register_fake
def _(features: Tensor, mixing: Tensor) -> Tensor:
    return features.new_empty(features.shape[0], mixing.shape[1])


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 10)
        self.mixing = nn.Parameter(torch.randn(10, 4))

    def forward(self, x: Tensor) -> Tensor:
        return mixture(torch.relu(self.fc(x)), self.mixing)


def test_an_operation_is_one_row_and_one_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, x = Mixed().eval(), torch.randn(64, 6)
    before = subprune.find_groups(model, x)
    assert not before.groups
    assert "example.mixture" in before.refused["fc"]

    row = Product(activation="features", weight="mixing", summed=0, made=1)
    monkeypatch.setitem(PRODUCTS, "mixture", row)
    monkeypatch.setitem(RULES, "mixture", linear)

    structure = subprune.find_groups(model, x)
    (group,) = structure.groups
    assert (group.n_units, [c.use.weight for c in group.reweightable]) == (10, ["mixing"])
    kept = {group.name: [0, 3, 4, 7, 8]}
    (masked,) = mask(model, structure, kept)(((x,), {}))
    with torch.no_grad():
        torch.testing.assert_close(cut(model, structure, kept)(x), masked)
    result = subprune.prune(model, x, budgets={group.name: 5}, progress=False)
    chosen = {g.name: g.kept for g in result.plan.groups}
    (plain,) = mask(model, structure, chosen)(((x,), {}))
    with torch.no_grad():
        dense, fitted = model(x), result.model(x)
    assert float((fitted - dense).norm()) < float((plain - dense).norm())
