"""Groups that play the same role in layers that repeat, and so are to keep as many units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from subprune.cutting.model_config import Fields
    from subprune.structure.groups import Group

__all__ = ["Roles", "find_roles"]


@dataclass(frozen=True)
class Roles:
    """Groups by role, and those that must stay whole."""

    sets: tuple[tuple[str, ...], ...] = ()
    # by the first of a set: numbers of units that are possible, where not all are
    numbers: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    whole: Mapping[str, str] = field(default_factory=dict)  # group → why


def find_roles(groups: Sequence[Group], fields: Fields | None) -> Roles:
    """Where there is a config, groups that one number of it describes have one role; those that it
    says nothing about stay whole. Else groups whose names differ in numbers of layers alone.
    """
    if fields is None:
        return Roles(_by_name(groups))
    names = {g.name for g in groups}
    whole = {g.name: _silence(g, fields) for g in groups if fields.of(g.name) is None}
    sets: list[tuple[str, ...]] = []
    numbers: dict[str, tuple[int, ...]] = {}
    for f in fields.each:
        others = [name for name in f.groups if name not in names]
        if others:
            why = f"the config has one number for it and for {others[0]}, which is not pruned"
            whole |= dict.fromkeys(set(f.groups) & names, why)
            continue
        sets.append(f.groups)
        if f.numbers:
            numbers[f.groups[0]] = f.numbers
    return Roles(tuple(sets), numbers, {n: whole[n] for n in sorted(whole)})


def _silence(group: Group, fields: Fields) -> str:
    """Why the config says nothing about a group."""
    if fields.problem:
        return fields.problem
    if group.kind == "head":
        return "the config cannot express fewer heads of the same size"
    if group.kind == "stream":
        return "the width of the residual stream is not only in the config"
    return "the config has no number for it"


def _by_name(groups: Sequence[Group]) -> tuple[tuple[str, ...], ...]:
    roles: dict[tuple[object, ...], list[str]] = {}
    for g in groups:
        parts = tuple("*" if part.isdigit() else part for part in g.name.split("."))
        roles.setdefault((parts, g.kind, g.n_units, g.least), []).append(g.name)
    return tuple(tuple(names) for names in roles.values() if len(names) > 1)
