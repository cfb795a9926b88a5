"""`only` and `ignore`: names, patterns, types, modules, and what is said about wrong ones."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn
from zoo import ZOO

from subprune.errors import OptionError
from subprune.structure import Structure, find_groups
from subprune.structure.select import choose_groups


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
        (nn.Embedding, []),  # the stream, but not by name
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
        ([nn.Linear(2, 2)], "no module of this model"),
    ],
)
def test_wrong_values(case: tuple[nn.Module, Structure], option: str, value: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        names(case, **{option: value})
