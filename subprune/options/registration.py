"""A user's ranking function becomes a method that every option knows by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from subprune.budget.allocators import ALLOCATORS
from subprune.errors import OptionError, closest
from subprune.keywords import takes_one
from subprune.methods import METHODS, of_function
from subprune.statistics.targets import TARGETS

if TYPE_CHECKING:
    from subprune.select.selector import Answer, View
    from subprune.statistics.target import Target

__all__ = ["method"]


def method(
    name: str,
    *,
    target: str | Target = "sequential",
    allocate: str | None = None,
    labels: bool = False,
    train_data: bool = False,
    runs: bool = True,
) -> Callable[[Callable[[View], Answer]], Callable[[View], Answer]]:
    """Register a ranking function as a method: ``@subprune.method("my-method")``.

    The function gets a `View` of one group and returns its units, best first. `target` says what
    the layers should give, `allocate` how a goal is shared out; `labels` and `train_data` are True
    where it needs labelled inputs or a labelled pool to draw from. With ``runs=False`` it sees
    statistics only, and groups may be ranked side by side.
    """
    if not isinstance(name, str) or not name.strip():
        raise OptionError(
            f'a method needs a name, as in @subprune.method("my-method"); got {name!r:.80}'
        )
    if isinstance(target, str):
        _check_choice(name, "target", target, TARGETS)
        target = TARGETS[target]
    if allocate is not None:
        _check_choice(name, "allocate", allocate, ALLOCATORS)

    def register(function: Callable[[View], Answer]) -> Callable[[View], Answer]:
        if not callable(function) or not takes_one(function):
            raise OptionError(f"method {name!r} must be a function of a View, got {function!r:.80}")
        if name in METHODS:
            raise OptionError(f"there is a method named {name!r} already; choose another name")
        needs = {"labels": labels, "pool": train_data, "runs": runs}
        METHODS[name] = of_function(function, name, target=target, allocate=allocate, **needs)
        return function

    return register


def _check_choice(name: str, option: str, value: object, allowed: Iterable[str]) -> None:
    names = list(allowed)
    if value not in names:
        near = closest(str(value), names)
        raise OptionError(
            f"method {name!r}: {option}={value!r}: {near}allowed are {', '.join(names)}"
        )
