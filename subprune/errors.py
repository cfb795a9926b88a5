"""What subprune raises. Every message says what was given, what is allowed and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["BudgetError", "DataError", "OptionError", "StructureError", "SubpruneError", "closest"]


class SubpruneError(Exception):
    """Base of all errors raised on purpose by this package."""


class OptionError(SubpruneError, ValueError):
    """An option has a value, or a combination of values, that is not allowed."""


class BudgetError(OptionError):
    """A budget or a target that cannot be met."""


class DataError(SubpruneError, ValueError):
    """The calibration data, or a data file, cannot be used."""


class StructureError(SubpruneError):
    """The model, or one group of it, cannot be pruned; the message names the operation."""


def closest(name: str, allowed: Iterable[str]) -> str:
    """Return ``"did you mean 'x'? "`` for the nearest allowed name, or an empty string."""
    near = difflib.get_close_matches(name, list(allowed), n=1)
    return f"did you mean {near[0]!r}? " if near else ""
