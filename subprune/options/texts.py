"""Values of options from text and shortcuts, and back to plain data.

The command line reads text before anything heavy is imported: tables of parts are entered in
`PARTS` by those who know them, and what needs a module of PyTorch imports it when it is called.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, get_args

from subprune.budget.explicit import share_of
from subprune.budget.goal import Shares
from subprune.errors import BudgetError, OptionError, closest
from subprune.messages import Message
from subprune.options.names import ViewName

__all__ = [
    "PARTS",
    "as_amount",
    "as_budgets",
    "as_count",
    "as_list",
    "as_part",
    "as_shares",
    "as_views",
    "checked_shares",
    "class_names",
    "method_name",
]


def as_amount(text: str) -> str | float:
    """A number, or a share such as ``50%``."""
    try:
        return text if text.strip().endswith("%") else float(text)
    except ValueError:
        return text  # refused, with an explanation, where goals are checked


def as_budgets(texts: list[str]) -> dict[str, int]:
    """``["conv1=3"]`` as ``{"conv1": 3}``."""
    counts: dict[str, int] = {}
    for text in texts:
        name, equals, number = text.rpartition("=")
        if not equals or not name or not number.isdigit() or len(number) > 12:
            why = "{budgets:name} {got!r} must look like GROUP=UNITS, e.g. conv1=3"
            raise OptionError(Message(why, got=text))
        counts[name] = int(number)
    return counts


def as_views(given: Any) -> tuple[str, ...] | None:
    """Names of views, one or several."""
    names, views = as_list(given), get_args(ViewName)
    for name in names:
        if name not in views:
            words = "{augment=}: {hint}allowed are {allowed}"
            hint, allowed = closest(str(name), views), ", ".join(views)
            raise OptionError(Message(words, augment=given, hint=hint, allowed=allowed))
    return tuple(dict.fromkeys(names)) or None


def as_count(text: str) -> int | str:
    """A number of inputs, or of tokens."""
    try:
        return int(text)
    except ValueError:
        return text  # refused, with an explanation, if it does not mention tokens


def as_shares(texts: list[str]) -> Shares | None:
    """``["0.5"]`` as 0.5, ``["head=0.75", "fc=50%"]`` as a dict; a bare share among others is that
    of everything that is not named.
    """
    if len(texts) == 1 and "=" not in texts[0]:
        return share_of(as_amount(texts[0]))
    shares: dict[str, str | float] = {}
    for text in texts:
        name, equals, share = text.rpartition("=")
        if (equals and not name) or (name or _REST) in shares:
            why = (
                "{keep:name} {got!r} must look like NAME=FRACTION, e.g. head=0.75, or be the one "
                "fraction of everything that is not named"
            )
            raise OptionError(Message(why, got=text))
        shares[name or _REST] = as_amount(share)
    return shares


_REST = "*"  # what is not named otherwise


def checked_shares(keep: Any) -> Shares:
    """A fraction, ``"50%"``, or a dict of these by name, each of them checked."""
    if not isinstance(keep, Mapping):
        return share_of(keep)
    if not keep or not all(isinstance(name, str) for name in keep):
        why = "{keep:name} must be a fraction, or a dict such as {example}, got {got!r}"
        raise BudgetError(Message(why, example={"head": 0.75, "*": "50%"}, got=dict(keep)))
    for name, share in keep.items():
        share_of(share, name)
    return dict(keep)


def as_list(given: Any) -> tuple[Any, ...]:
    """One item, or several, in a fixed order."""
    from subprune.structure.choose import as_items

    return as_items(given)


def method_name(given: Any) -> str:
    """The name of a method, however it was given."""
    return str(getattr(given, "name", given))


def class_names(items: Iterable[Any]) -> list[str]:
    """Names as they are, types and modules by the name of their class."""
    return [x if isinstance(x, str) else getattr(x, "__name__", type(x).__name__) for x in items]


PARTS: dict[str, tuple[type, Mapping[str, Any]]] = {}
"""By option: the class of a part of a method, and the table of those that have names.

The parts live in rooms that text does not know; `subprune.options.options` enters them.
"""


def as_part(option_name: str) -> dict[str, Any]:
    """How a part of a method is given: the name of one, or one itself."""

    def taken(value: Any) -> Any:
        kind, table = PARTS[option_name]
        if isinstance(value, kind):
            return value
        if isinstance(value, str) and value in table:
            return table[value]
        words = f"{{{option_name}=}}: {{hint}}allowed are {{allowed}}, or in Python an object of that kind"
        hint, allowed = closest(str(value), table), ", ".join(table)
        raise OptionError(Message(words, **{option_name: value}, hint=hint, allowed=allowed))

    def shown(value: Any) -> str:
        table = PARTS[option_name][1]
        return str(value.name) if table.get(value.name) == value else repr(value)

    return {"metavar": "NAME", "parse": str, "take": taken, "show": shown}
