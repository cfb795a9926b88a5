"""Goals that say themselves how many units each group keeps: explicit budgets, and a fraction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from subprune.errors import BudgetError, closest
from subprune.messages import Message

if TYPE_CHECKING:
    from subprune.budget.goal import Counts, Rounding
    from subprune.structure.groups import Group

__all__ = ["check_fraction", "explicit", "fraction", "missed"]


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


def fraction(groups: Sequence[Group], keep: float, rounding: Rounding) -> Counts:
    """The same fraction of units in every group, rounded down, at least one."""
    check_fraction(keep, groups, rounding)
    return {g.name: rounding.of(g).down(keep * g.n_units, g.n_units) for g in groups}


def check_fraction(keep: float, groups: Sequence[Group], rounding: Rounding) -> None:
    """Refuse what is not a fraction, and one that rounding leaves without effect."""
    if isinstance(keep, bool) or not isinstance(keep, int | float) or not 0 < keep <= 1:
        why = "{keep:name} must be a fraction above 0 and at most 1, got {got!r}"
        raise BudgetError(Message(why, got=keep))
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
    keep: float, units: Mapping[str, int], counts: Mapping[str, int], together: bool = False
) -> str:
    """In words, where more than the fraction stays (of all units `together`: a global ranking);
    empty if nowhere.
    """
    if together:
        units, counts = {"all groups": sum(units.values())}, {"all groups": sum(counts.values())}
    over = [
        f"{k} of {units[n]} units in {n}" for n, k in counts.items() if k > keep * units[n] + 1e-9
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
