"""Goals as people mean them: of the blocks, by kind of group, and the same in layers that repeat."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import subprune
from subprune.budget.allocators import ALLOCATORS
from subprune.budget.explicit import shares
from subprune.budget.goal import Rounding
from subprune.budget.hulls import falling
from subprune.budget.ties import Ties
from subprune.errors import BudgetError, OptionError
from subprune.select.keep_order import KeepOrder
from subprune.structure.analysis import find_groups
from subprune.structure.cost import CostModel


class Block(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.norm, self.up = nn.LayerNorm(width), nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.down(torch.relu(self.up(self.norm(x))))
        return y


class Stack(nn.Module):
    """Tables of words and positions, three blocks, another of another width, a last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(40, 8), nn.Parameter(torch.randn(1, 5, 8))
        self.blocks = nn.ModuleList([Block(8, 16) for _ in range(3)])
        self.wide = Block(8, 24)
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 30)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places
        for block in self.blocks:
            x = block(x)
        y: Tensor = self.head(self.norm(self.wide(x)))
        return y


@pytest.fixture
def model() -> Stack:
    torch.manual_seed(0)
    return Stack().eval()


@pytest.fixture
def ids() -> Tensor:
    return torch.randint(0, 40, (120, 5), generator=torch.Generator().manual_seed(1))


UPS = [f"blocks.{i}.up" for i in range(3)]


# ---- of the blocks -------------------------------------------------------------------------------


def test_edges_are_the_tables_and_the_last_layer(model: Stack, ids: Tensor) -> None:
    edges = find_groups(model, ids[:2]).edges
    assert edges.tensors == {"words.weight", "places", "head.weight", "head.bias"}
    assert len(edges.ops) == 1


def test_a_model_that_ends_in_a_norm_has_no_last_layer(ids: Tensor) -> None:
    class Encoder(Stack):
        def forward(self, ids: Tensor) -> Tensor:
            y: Tensor = self.norm(self.wide(self.words(ids) + self.places))
            return y

    edges = find_groups(Encoder().eval(), ids[:2]).edges
    assert edges.tensors == {"words.weight", "places"}
    assert not edges.ops


def test_values_that_are_given_back_on_the_way_are_no_last_layer() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            h = self.a(x)
            return self.b(torch.relu(h)).softmax(-1), h

    edges = find_groups(Two(), torch.randn(2, 4)).edges
    assert edges.tensors == {"b.weight", "b.bias"}


def blocks_of(model: Stack) -> int:
    return sum(p.numel() for m in (model.blocks, model.wide, model.norm) for p in m.parameters())


def test_costs_of_the_blocks_are_exact(model: Stack, ids: Tensor) -> None:
    structure = find_groups(model, ids[:2])
    cost = CostModel(model, structure)
    assert cost.params({}, "blocks") == blocks_of(model)
    small = subprune.cut(model, structure, {UPS[0]: range(5), "wide.up": range(7)})
    assert cost.params({UPS[0]: 5, "wide.up": 7}, "blocks") == blocks_of(small)  # type: ignore[arg-type]
    head = 2 * 2 * 5 * 8 * 30  # of two inputs
    assert cost.flops({}) - cost.flops({}, "blocks") == head


@pytest.mark.parametrize(
    "goal", [{"params": "80%"}, {"compression": 1.25}, {"flops": "80%"}, {"speedup": 1.25}]
)
def test_goals_of_the_blocks_are_met_and_filled(
    model: Stack, ids: Tensor, goal: dict[str, Any]
) -> None:
    result = subprune.prune(model, ids, **goal, of="blocks")
    cost = CostModel(model, find_groups(model, ids[:2]))
    count = cost.params if {"params", "compression"} & goal.keys() else cost.flops
    left = count(result.plan.counts, "blocks") / count({}, "blocks")
    assert 0.77 < left <= 0.8
    assert any("blocks" in note for note in result.report.notes)


def test_the_part_is_refused_where_it_says_nothing(model: Stack, ids: Tensor) -> None:
    with pytest.raises(OptionError, match="of='blocks' has no effect with keep"):
        subprune.prune(model, ids, keep=0.5, of="blocks")
    with pytest.raises(BudgetError, match="in the blocks"):
        subprune.prune(model, ids, params="1%", of="blocks")


# ---- fractions by kind and name ------------------------------------------------------------------


def test_the_most_specific_share_counts(model: Stack, ids: Tensor) -> None:
    groups = find_groups(model, ids[:2]).inner()
    keep = {"neuron": 0.5, "blocks.*": 0.75, "blocks.1.up": "25%"}
    expected = {UPS[0]: 0.75, UPS[1]: 0.25, UPS[2]: 0.75, "wide.up": 0.5}
    assert shares(groups, keep) == expected
    assert shares(groups, {"blocks.1": 0.5}) == dict.fromkeys(expected, 1.0) | {UPS[1]: 0.5}
    assert shares(groups, {"*": 0.5, "wide": 1})["blocks.0.up"] == 0.5
    assert shares(groups, 0.3) == dict.fromkeys(expected, 0.3)


def test_keep_by_kind_and_name(model: Stack, ids: Tensor) -> None:
    result = subprune.prune(model, ids, keep={"neuron": 0.5, "wide.up": "75%"})
    assert result.plan.counts == {**dict.fromkeys(UPS, 8), "wide.up": 18}
    result = subprune.prune(model, ids, keep={"blocks.2.*": 0.5})
    assert result.plan.counts == {UPS[0]: 16, UPS[1]: 16, UPS[2]: 8, "wide.up": 24}


def test_shares_that_cannot_be_meant_are_refused(model: Stack, ids: Tensor) -> None:
    with pytest.raises(BudgetError, match=r"'head', which is neither.*neuron"):
        subprune.prune(model, ids, keep={"head": 0.5})
    for wrong in (0, 1.5, "120%", True, "half"):
        with pytest.raises(BudgetError, match="fraction above 0"):
            subprune.prune(model, ids, keep={"neuron": wrong})
    with pytest.raises(BudgetError, match="a dict such as"):
        subprune.prune(model, ids, keep={})
    with pytest.raises(OptionError, match="has no effect"):
        subprune.prune(model, ids, keep={"neuron": 0.5}, allocate="knapsack")


def test_streams_are_pruned_only_if_the_kind_is_named(model: Stack, ids: Tensor) -> None:
    assert "stream" not in {g.kind for g in subprune.prune(model, ids, keep={"*": 0.5}).plan.groups}
    result = subprune.prune(model, ids, keep={"stream": 0.5})
    kept = {g.kind: len(g.kept) / g.units for g in result.plan.groups}
    assert kept == {"stream": 0.5, "neuron": 1.0}


# ---- the same in layers that repeat --------------------------------------------------------------


@pytest.mark.parametrize("rule", sorted(ALLOCATORS))
def test_layers_that_repeat_keep_as_many_units(model: Stack, ids: Tensor, rule: str) -> None:
    method = "weight-norm" if rule == "score" else "auto"
    labelled = (ids, ids % 30)
    how: dict[str, Any] = {"allocate": rule, "method": method}
    result = subprune.prune(model, labelled, params="70%", of="blocks", uniform=True, **how)
    counts = result.plan.counts
    assert len({counts[name] for name in UPS}) == 1
    cost = CostModel(model, find_groups(model, ids[:2]))
    most = 0.7 * cost.params({}, "blocks")
    assert cost.params(counts, "blocks") <= most
    # not one more unit fits, in all tied layers or in the other
    more = [{**counts, **{name: counts[name] + 1 for name in UPS}}]
    more += [{**counts, "wide.up": counts["wide.up"] + 1}]
    for bigger in more:
        if max(bigger[name] for name in UPS) <= 16 and bigger["wide.up"] <= 24:
            assert cost.params(bigger, "blocks") > most


def test_budgets_that_differ_are_refused(model: Stack, ids: Tensor) -> None:
    with pytest.raises(BudgetError, match=r"blocks\.0\.up: 5.*all"):
        subprune.prune(model, ids, budgets={UPS[0]: 5}, uniform=True)
    with pytest.raises(BudgetError, match="contradict"):
        subprune.prune(model, ids, keep={UPS[0]: 0.5}, uniform=True)
    result = subprune.prune(model, ids, keep=0.5, uniform=True)
    assert result.plan.counts == {**dict.fromkeys(UPS, 8), "wide.up": 12}


def order(errors: list[float], energy: float) -> KeepOrder:
    n = len(errors) - 1
    left = torch.tensor(errors, dtype=torch.float64)
    return KeepOrder(
        order=tuple(range(n)),
        gains=-left.diff() * energy,
        errors=left,
        ranks=(1,) * n,
        energy=energy,
        dependent=(),
    )


def test_curves_add_up() -> None:
    a, b = order([1, 0.5, 0.25, 0], 2.0), order([1, 0.8, 0.1, 0], 10.0)
    both = KeepOrder.together([a, b])
    assert np.allclose(falling(both), falling(a) + falling(b))
    assert np.allclose(falling(both, True), falling(a, True) + falling(b, True))
    assert torch.allclose(both.errors, (a.errors + b.errors) / 2)
    ties = Ties((("a", "b"),))
    assert ties.joined({"a": torch.tensor([1.0, 5.0]), "b": torch.tensor([4.0, 2.0])})[
        "a"
    ].tolist() == [4.5, 1.5]


def test_only_certain_numbers_are_allowed() -> None:
    rounding = Rounding(numbers=(2, 3, 6, 12))
    assert [rounding.down(k, 12) for k in (1, 2, 4.5, 11, 12)] == [2, 2, 3, 6, 12]
    assert [rounding.up(k, 12) for k in (1, 4, 6, 7)] == [2, 6, 6, 12]
    steps = [rounding.least(12)]
    while steps[-1] < 12:
        steps.append(rounding.next(steps[-1], 12))
    assert steps == [2, 3, 6, 12]
    assert all(a < b for a, b in pairwise(steps))


class Recurrent(nn.Module):
    """Mostly recurrent layers, between layers that can be cut."""

    def __init__(self, recurrent: int) -> None:
        super().__init__()
        self.lstms = nn.ModuleList(nn.LSTM(8, 8, batch_first=True) for _ in range(recurrent))
        self.fc1, self.fc2 = nn.Linear(8, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        for lstm in self.lstms:
            x, _ = lstm(x)
        return self.fc2(torch.relu(self.fc1(x[:, -1])))


def test_a_goal_out_of_reach_names_what_stays_whole() -> None:
    x = torch.randn(32, 5, 8)
    why = r"\(recurrent layers are run as a whole\)"
    problem = subprune.forecast(Recurrent(1), x, compression=4).problem
    assert re.search(rf"; left whole: lstms\.0 {why}$", problem), problem
    with pytest.raises(BudgetError, match=rf"lstms\.0, .* {why}, and 2 others$"):
        subprune.prune(Recurrent(5), x, compression=4)


def test_a_goal_out_of_reach_blames_no_layer_that_is_cut() -> None:
    model = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))
    problem = subprune.forecast(model, torch.randn(32, 8), compression=1000).problem
    assert "cannot be reached" in problem
    assert "whole" not in problem
