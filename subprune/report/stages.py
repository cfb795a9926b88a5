"""The groups of a deep network in stages, so that a page can fold them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from subprune.plan import GroupPlan

__all__ = ["Stage", "stages"]

_FEW = 12  # groups that are read at a glance
_BLOCKS = 8  # numbered blocks that make one stage


@dataclass(frozen=True)
class Stage:
    """Groups that follow each other and whose names begin alike."""

    name: str  # empty where there is but one
    groups: tuple[tuple[int, GroupPlan], ...]  # with their places in the plan


def stages(groups: Sequence[GroupPlan]) -> list[Stage]:
    """The groups of a plan in order, in one stage if they are few.

    Stages are distinguished by the first part of the names that differs (``layer1``, ``layer2``); of
    many numbered blocks (``model.layers.0`` to ``model.layers.31``), eight make a stage.
    """
    numbered = list(enumerate(groups))
    if len(groups) <= _FEW:
        return [Stage("", tuple(numbered))]
    names = [g.name.split(".") for g in groups]
    depth = _first_difference(names)
    heads = [".".join(n[: depth + 1]) for n in names]
    last = [n[depth] if len(n) > depth else "" for n in names]
    many = len(set(heads)) > _FEW  # numbered blocks, mostly: eight of them make a stage
    members_of: dict[str, list[tuple[int, GroupPlan]]] = {}
    for (i, group), head, part in zip(numbered, heads, last, strict=True):
        key = head
        if many and part.isdigit():
            first = int(part) // _BLOCKS * _BLOCKS
            key = f"{head.rpartition('.')[0]}#{first}"
        members_of.setdefault(key, []).append((i, group))
    return [
        Stage(_title(key, members, depth), tuple(members)) for key, members in members_of.items()
    ]


def _first_difference(names: Sequence[Sequence[str]]) -> int:
    """The first place at which not all names say the same."""
    for depth in range(max(map(len, names))):
        if len({tuple(name[depth : depth + 1]) for name in names}) > 1:
            return depth
    return 0


def _title(key: str, members: Sequence[tuple[int, GroupPlan]], depth: int) -> str:
    head, numbered, _ = key.partition("#")
    if not numbered:
        return key
    numbers = [int(g.name.split(".")[depth]) for _, g in members]
    prefix = f"{head}." if head else ""
    one = min(numbers) == max(numbers)
    return f"{prefix}{min(numbers)}" if one else f"{prefix}{min(numbers)}–{max(numbers)}"
