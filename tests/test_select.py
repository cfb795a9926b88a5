"""`only` and `ignore`: names, patterns, types, modules, and what is said about wrong ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from zoo import ZOO

import subprune
from subprune.errors import BudgetError, OptionError
from subprune.options.options import Options
from subprune.structure.analysis import find_groups
from subprune.structure.choose import choose_groups
from subprune.structure.groups import Structure


@pytest.fixture(scope="module")
def case() -> tuple[nn.Module, Structure]:
    model, example = ZOO["gqa"].build()
    return model, find_groups(model, example)


INNER = ["blocks.0.mixer", "blocks.0.mlp", "blocks.1.mixer", "blocks.1.mlp.up"]


def names(case: tuple[nn.Module, Structure], **options: Any) -> list[str]:
    model, structure = case
    return [g.name for g in choose_groups(structure, model, **options)]


def test_default_is_the_inner_groups(case: tuple[nn.Module, Structure]) -> None:
    assert names(case) == INNER


@pytest.mark.parametrize(
    ("only", "expected"),
    [
        ("blocks.0.mlp", ["blocks.0.mlp"]),
        (["blocks.1.mlp.up", "blocks.0.mixer"], ["blocks.0.mixer", "blocks.1.mlp.up"]),
        ("blocks.1", ["blocks.1.mixer", "blocks.1.mlp.up"]),
        ("re:mlp", ["blocks.0.mlp", "blocks.1.mlp.up"]),
        ("blocks.0*", ["blocks.0.mixer", "blocks.0.mlp"]),
        ("blocks.[1-9].mlp.?p", ["blocks.1.mlp.up"]),
        (r"re:^blocks\.0", ["blocks.0.mixer", "blocks.0.mlp"]),
        (nn.Linear, INNER),
        ((nn.Linear, "embed"), ["embed", *INNER]),  # the stream, because it is named itself
        ([], []),
    ],
)
def test_only(case: tuple[nn.Module, Structure], only: Any, expected: list[str]) -> None:
    assert names(case, only=only) == expected


@pytest.mark.parametrize(
    ("ignore", "gone"),
    [
        ("blocks.0.mixer", {"blocks.0.mixer"}),
        ("blocks.0", {"blocks.0.mixer", "blocks.0.mlp"}),
        ("blocks.0.mlp.gate", {"blocks.0.mlp"}),
        ("re:mixer$", {"blocks.0.mixer", "blocks.1.mixer"}),
        (["re:mixer$", "blocks.1.mlp.up"], {"blocks.0.mixer", "blocks.1.mixer", "blocks.1.mlp.up"}),
        (nn.Linear, set(INNER)),
        ("embed", set()),
    ],
)
def test_ignore(case: tuple[nn.Module, Structure], ignore: Any, gone: set[str]) -> None:
    assert names(case, ignore=ignore) == [n for n in INNER if n not in gone]


def test_modules_themselves(case: tuple[nn.Module, Structure]) -> None:
    model: Any = case[0]
    assert names(case, only=model.blocks[1].mlp) == ["blocks.1.mlp.up"]
    assert names(case, ignore=[model.blocks[0], model.blocks[1].mixer.q]) == ["blocks.1.mlp.up"]
    assert names(case, only="blocks.0", ignore=model.blocks[0].mlp.up) == ["blocks.0.mixer"]


@pytest.mark.parametrize("option", ["only", "ignore"])
@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("blocks.0.mpl", r"neither a group nor a module; did you mean 'blocks\.0\.mlp'"),
        ("re:nothing_like_it", "matches no group"),
        ("nothing.*", "matches no group"),
        ("re:(", "not a regular expression"),
        (3, "of type int; allowed is a group name"),
        (int, "of type type; allowed is"),
        ([nn.Linear(2, 2)], "not a module of this model"),
        (nn.LSTM, "the type LSTM, and no module in the model is one; there are .*Linear"),
    ],
)
def test_wrong_values(
    case: tuple[nn.Module, Structure], option: str, value: Any, message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        names(case, **{option: value})


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(width, 6), nn.Linear(6, 8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.b(torch.relu(self.a(x))))


class Blocks(nn.Module):
    """Containers with layers in them, and a residual stream "inp"."""

    def __init__(self) -> None:
        super().__init__()
        self.layer1, self.layer2 = Block(5), Block(8)
        self.inp, self.up, self.down, self.end = (
            nn.Linear(8, 4),
            nn.Linear(4, 7),
            nn.Linear(7, 4),
            nn.Linear(4, 3),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.inp(self.layer2(self.layer1(x)))
        return self.end(x + self.down(torch.relu(self.up(x))))


@pytest.fixture(scope="module")
def blocks() -> tuple[nn.Module, Structure]:
    model = Blocks().eval()
    return model, find_groups(model, torch.randn(2, 5))


INSIDE = {"layer1.a", "layer1.b", "layer2.a", "layer2.b"}


@pytest.mark.parametrize(
    ("item", "reached"),
    [
        ("layer1", {"layer1.a", "layer1.b"}),
        ("[l]ayer1", {"layer1.a", "layer1.b"}),
        ("re:^layer1$", {"layer1.a", "layer1.b"}),
        (lambda model: model.layer1, {"layer1.a", "layer1.b"}),
        ("layer?", INSIDE),
        ("layer*", INSIDE),
        (Block, INSIDE),
        (("layer1", "layer2"), INSIDE),
        ("layer*.a", {"layer1.a", "layer2.a"}),
        ("layer?.[!a]", {"layer1.b", "layer2.b"}),
        (nn.Linear, {*INSIDE, "up"}),
        (lambda model: model, {*INSIDE, "up"}),
    ],
)
def test_a_container_stands_for_its_layers_however_it_was_found(
    blocks: tuple[nn.Module, Structure], item: Any, reached: set[str]
) -> None:
    item = item(blocks[0]) if isinstance(item, Callable) and not isinstance(item, type) else item  # type: ignore[arg-type]
    assert set(names(blocks, only=item)) == reached
    assert set(names(blocks, ignore=item)) == {*INSIDE, "up"} - reached


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (
            "inp*",
            "only= holds 'inp\\*', .* inp: residual stream: cut only when named itself in only=, budgets= or keep=",
        ),
        ("end", "only= holds 'end', and nothing it matches can be pruned: end: "),
        (["up", "end"], "only= holds 'end'"),
    ],
)
def test_an_item_of_only_without_a_prunable_group_is_refused_with_the_reason(
    blocks: tuple[nn.Module, Structure], item: Any, message: str
) -> None:
    with pytest.raises(BudgetError, match=message):
        names(blocks, only=item)


def test_a_type_that_catches_but_a_stream_is_refused(case: tuple[nn.Module, Structure]) -> None:
    with pytest.raises(
        BudgetError,
        match=r"the type Embedding, .* embed: residual stream: cut only when named itself",
    ):
        names(case, only=nn.Embedding)
    with pytest.raises(BudgetError, match=r"a RMSNorm, .* no layer of it makes units"):
        names(case, only=case[0].blocks[0].norm1)  # type: ignore[union-attr,index]


def test_a_stream_needs_its_own_name(blocks: tuple[nn.Module, Structure]) -> None:
    assert "inp" not in names(blocks, only="re:.*")
    assert names(blocks, only=["up", "inp"]) == ["inp", "up"]
    assert names(blocks, budgets={"inp": 3}) == names(blocks, only=["re:.*", "inp"])
    assert "inp" not in names(blocks, budgets={"up": 3})


class Twice(nn.Module):
    """A stream that only a layer used twice reads."""

    def __init__(self) -> None:
        super().__init__()
        self.inp, self.other, self.end = nn.Linear(5, 4), nn.Linear(5, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inp(x) + self.other(x)
        return self.end(x) + self.end(torch.relu(x))


@pytest.mark.parametrize(
    ("build", "name", "why"),
    [
        (
            lambda: (Twice().eval(), torch.randn(2, 5)),
            "inp",
            "cannot be reweighted: end.weight is used 2 times",
        ),
        (ZOO["shared-head"].build, "left", "cannot be reweighted: head.weight is used 2 times"),
        (ZOO["shuffles"].build, "conv2", "has a single unit"),
    ],
)
def test_what_cannot_go_at_all_is_refused_by_its_own_reason(
    build: Callable[[], Any], name: str, why: str
) -> None:
    model, example = build()
    structure = find_groups(model, example)
    for options in ({"only": name}, {"budgets": {name: 1}}):
        with pytest.raises(
            BudgetError, match=f"{next(iter(options))}= .*'{name}'.* can.* pruned: .*{why}"
        ):
            choose_groups(structure, model, **options)


@pytest.mark.parametrize(
    ("make", "recorded"),
    [
        (lambda: frozenset({"fc2", "fc1"}), ["fc1", "fc2"]),
        (lambda: {"fc2", "fc1"}, ["fc1", "fc2"]),
        (lambda: (n for n in ("fc2", "fc1")), ["fc2", "fc1"]),
        (lambda: {"fc1": 1}.keys(), ["fc1"]),
        (lambda: "fc1", ["fc1"]),
        (lambda: nn.Linear, ["Linear"]),
        (lambda: nn.Sequential(nn.ReLU()), ["Sequential"]),
        (lambda: [], []),
        (lambda: None, None),
    ],
)
def test_items_are_read_once_and_recorded_as_given(
    make: Callable[[], Any], recorded: list[str] | None
) -> None:
    options = Options(method="random", keep=0.5, only=make(), ignore=make())
    for _ in range(2):
        assert options.to_dict()["only"] == options.to_dict()["ignore"] == recorded


def test_a_generator_is_used_and_recorded(blocks: tuple[nn.Module, Structure]) -> None:
    given = (n for n in ("layer1", "up"))
    result = subprune.prune(blocks[0], torch.randn(40, 5), keep=0.5, only=given, time_calls=False)
    assert set(result.plan.counts) == {"layer1.a", "layer1.b", "up"}
    assert result.plan.options["only"] == ["layer1", "up"]
