"""What subprune raises. Every message says what was given, what is allowed and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from subprune.messages import KEYWORDS, Message, Spelling, spelled

__all__ = [
    "BudgetError",
    "DataError",
    "OptionError",
    "RankError",
    "StructureError",
    "SubpruneError",
    "closest",
]


class SubpruneError(Exception):
    """Base of all errors raised on purpose by this package.

    One that mentions options is made from a `subprune.messages.Message`, which carries its parts;
    ``str(error)`` spells the options as Python keywords.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(message)
        self.message = message

    @property
    def options(self) -> dict[str, Any]:
        """The options at issue with the values given; None where a value is not at issue."""
        return self.message.options if isinstance(self.message, Message) else {}

    @property
    def parts(self) -> Mapping[str, Any]:
        """What the message is made of: values of options, and others such as ``"allowed"``."""
        return self.message.parts if isinstance(self.message, Message) else {}

    def spelled(self, spelling: Spelling = KEYWORDS) -> str:
        """The message as a front end puts it."""
        return str(spelled(self.message, spelling))


class OptionError(SubpruneError, ValueError):
    """An option has a value, or a combination of values, that is not allowed."""


class BudgetError(OptionError):
    """A budget or a goal that cannot be met."""


class DataError(SubpruneError, ValueError):
    """The calibration data, or a data file, cannot be used."""


class StructureError(SubpruneError):
    """The model, or one group of it, cannot be pruned; the message names the operation."""


class RankError(SubpruneError, RuntimeError):
    """A rank of a `torch.distributed` job died, failed, or went another way than this one."""


def closest(name: str, allowed: Iterable[str]) -> str:
    """Return ``"did you mean 'x'? "`` for the nearest allowed name, or the one that it is the
    beginning of, or an empty string.
    """
    known = list(allowed)
    begun = [x for x in known if len(name) > 2 and x.startswith(name)]
    near = difflib.get_close_matches(name, known, n=1) or begun[:1]
    return f"did you mean {near[0]!r}? " if near else ""
