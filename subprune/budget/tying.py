"""``uniform=True``: which groups are tied, and what stays whole for a config's sake, with why."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from subprune.budget.explicit import meant
from subprune.cutting.model_config import find_fields
from subprune.cutting.roles import Roles, find_roles
from subprune.errors import BudgetError
from subprune.messages import Message, joined

if TYPE_CHECKING:
    from torch import nn

    from subprune.structure.groups import Group, Structure

__all__ = ["left_whole", "tie"]


def tie(
    model: nn.Module, structure: Structure, groups: Sequence[Group], named: Collection[str]
) -> Roles:
    """Which of the groups keep the same number of units, and which stay whole.

    named: what the goal refers to by name. Refused where nothing is left to prune, or what is named
    stays whole.
    """
    roles = find_roles(groups, find_fields(model, structure))
    if len(roles.whole) == len(groups):
        reasons = joined([f"{name}: {why}" for name, why in list(roles.whole.items())[:3]])
        words = (
            "{uniform=} prunes only what the config of a {kind} can express, which is nothing "
            "here: {reasons}; omit {uniform:name}, and keep the result with subprune.save"
        )
        kind = type(model).__name__
        raise BudgetError(Message(words, uniform=True, kind=kind, reasons=reasons))
    for key in named:
        asked = meant(key, groups)
        if asked and key != "*" and roles.whole.keys() >= set(asked):
            words = "the goal names {key!r}, which stays whole with {uniform=}: {why}"
            why = roles.whole[asked[0]]
            raise BudgetError(Message(words, key=key, uniform=True, why=why))
    return roles


def left_whole(roles: Roles) -> list[str]:
    """For the report: what stays for the config's sake, in one line for every reason."""
    by_reason: dict[str, list[str]] = {}
    for name, why in roles.whole.items():
        by_reason.setdefault(why, []).append(name)
    return [
        Message(
            "{uniform=}: {count} left whole, {why} ({names})",
            uniform=True,
            count=f"{len(names)} group{'s' if len(names) > 1 else ''}",
            why=why,
            names=", ".join([*names[:3], *(["…"] if len(names) > 3 else [])]),
        )
        for why, names in by_reason.items()
    ]
