"""Goals that say themselves how many units each group keeps: explicit budgets, and a fraction."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from subprune.errors import BudgetError, closest
from subprune.messages import Message

if TYPE_CHECKING:
    from subprune.budget.goal import Counts, Rounding, Shares
    from subprune.structure.groups import Group

__all__ = [
    "check_fraction",
    "explicit",
    "fraction",
    "fractions",
    "meant",
    "missed",
    "share_of",
    "shares",
]


def explicit(
    groups: Sequence[Group], budgets: Mapping[str, int], rounding: Rounding | None = None
) -> Counts:
    """Checked ``{group: k}``; groups that are not named stay whole."""
    known = {g.name: g for g in groups}
    for name, k in budgets.items():
        if name not in known:
            raise BudgetError(
                Message(
                    "{budgets=} names {group!r}, which is not prunable: "
                    "{hint}allowed are {allowed}",
                    group=name,
                    hint=closest(name, known),
                    allowed=", ".join(known),
                )
            )
        least, most = known[name].least, known[name].n_units
        if isinstance(k, bool) or not isinstance(k, int) or not least <= k <= most:
            raise BudgetError(
                Message(
                    "{budgets:item} must be an integer from {least} to {most}, the "
                    "number of units, got {got!r}",
                    budgets=name,
                    least=least,
                    most=most,
                    got=k,
                )
            )
        multiple = 1 if rounding is None else rounding.of(known[name]).to
        if k % multiple and k != known[name].n_units:
            raise BudgetError(
                Message(
                    "{budgets:item} must be a multiple of {multiple}, since the model's own code "
                    "takes no other widths there; got {got}, the nearest is {nearest}",
                    budgets=name,
                    multiple=multiple,
                    got=k,
                    nearest=max(multiple, round(k / multiple) * multiple),
                )
            )
    return dict(budgets)


def shares(groups: Sequence[Group], keep: Shares) -> dict[str, float]:
    """The fraction of units that each group keeps; 1 where nothing was said about it.

    A mapping names groups, modules that hold their layers, wildcards, or kinds of groups. What says
    most of a group decides: its own name, then the longest wildcard or module, then its kind, then
    ``"*"``.
    """
    if not isinstance(keep, Mapping):
        return {g.name: keep for g in groups}
    asked = {key: share_of(value, key) for key, value in keep.items()}
    weights = {g.name: {key: _fitness(key, g) for key in asked} for g in groups}
    for key in asked:
        if key != "*" and not any(weights[g.name][key][0] for g in groups):
            _refuse_key(key, groups)
    result = {}
    for name, fitting in weights.items():
        best = max(fitting, key=lambda key: fitting[key])
        result[name] = asked[best] if fitting[best][0] else 1.0
    return result


def meant(key: str, groups: Sequence[Group]) -> list[str]:
    """The groups that a key of `keep` refers to."""
    return [g.name for g in groups if _fitness(key, g)[0]]


def _fitness(key: str, group: Group) -> tuple[int, int]:
    """How much a key of `keep` says about a group; zeros: nothing."""
    names = (group.name, *group.producers)
    if key == group.name:
        return (4, 0)
    if key == "*":
        return (1, 0)
    if any(fnmatch.fnmatchcase(name, key) or name.startswith(f"{key}.") for name in names):
        return (3, sum(c not in "*?[]" for c in key))
    return (2, 0) if key == group.kind else (0, 0)


def _refuse_key(key: str, groups: Sequence[Group]) -> None:
    known = [*dict.fromkeys(g.kind for g in groups), *(g.name for g in groups)]
    raise BudgetError(
        Message(
            "{keep=} names {key!r}, which is neither a kind of group here nor fits a group that "
            "can be pruned: {hint}allowed are {allowed}, wildcards such as 'layer1.*', and '*'",
            key=key,
            hint=closest(key, known),
            allowed=", ".join([*known[:10], *(["…"] if len(known) > 10 else [])]),
        )
    )


def share_of(value: object, key: str | None = None) -> float:
    """``0.75`` or ``"75%"`` as a checked fraction; `key` is the name in a dict that it is for."""
    share: object = value
    if isinstance(value, str) and value.strip().endswith("%"):
        try:
            share = float(value.strip().removesuffix("%")) / 100
        except ValueError:
            share = value
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        subject = "{keep:name}" if key is None else "{keep:item}"
        why = " must be a fraction above 0 and at most 1, such as 0.5 or '50%', got {got!r}"
        hint = f"; if per cent are meant, give '{value:g}%'" if _is_percentage(value) else ""
        raise BudgetError(Message(subject + why + hint, keep=key, got=value))
    return share


def _is_percentage(value: object) -> bool:
    """Whether a number above 1 may have been meant as so many per cent."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 1 < value <= 100


def fraction(groups: Sequence[Group], keep: Shares, rounding: Rounding) -> Counts:
    """What `keep` leaves of every group, rounded down, at least one."""
    return fractions(groups, shares(groups, keep), rounding)


def fractions(groups: Sequence[Group], asked: Mapping[str, float], rounding: Rounding) -> Counts:
    """So much of every group, rounded down, at least one."""
    for share in set(asked.values()):
        check_fraction(share, [g for g in groups if asked[g.name] == share], rounding)
    return {g.name: rounding.of(g).down(asked[g.name] * g.n_units, g.n_units) for g in groups}


def check_fraction(keep: float, groups: Sequence[Group], rounding: Rounding) -> None:
    """Refuse what is not a fraction, and one that rounding leaves without effect."""
    share_of(keep)
    widest = max((g.n_units for g in groups), default=0)
    if keep < 1 and widest > 1 and all(g.n_units <= rounding.of(g).to for g in groups):
        multiple = max(rounding.of(g).to for g in groups)
        reason = (
            f", and the model's own code runs with multiples of {multiple}"
            if multiple > rounding.to
            else ""
        )
        raise BudgetError(
            Message(
                "{keep=} cannot be reached with {round_to=}{reason}: the widest group has {widest} "
                "units, so all would stay whole; give a {round_to:name} below {widest}",
                keep=keep,
                round_to=rounding.to,
                reason=reason,
                widest=widest,
            )
        )


def missed(
    keep: Shares, groups: Sequence[Group], counts: Mapping[str, int], together: bool = False
) -> str:
    """In words, where more than the fraction stays (of all units `together`: a global ranking);
    empty if nowhere.
    """
    asked, units = shares(groups, keep), {g.name: g.n_units for g in groups}
    if together and isinstance(keep, int | float):
        units, counts = {"all groups": sum(units.values())}, {"all groups": sum(counts.values())}
        asked = {"all groups": keep}
    over = [
        f"{k} of {units[n]} units in {n}"
        for n, k in counts.items()
        if k > asked[n] * units[n] + 1e-9
    ]
    if not over:
        return ""
    more = f" and {len(over) - 5} more" if len(over) > 5 else ""
    return Message(
        "goal missed: {keep=}, but no group goes below one unit, or {round_to:name} of them; it "
        "kept {over}{more}",
        keep=keep,
        over=", ".join(over[:5]),
        more=more,
    )
