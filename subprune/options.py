"""All choices of one `prune` call, checked once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypedDict

from subprune.budget.allocators import ALLOCATORS, DEFAULT
from subprune.budget.demand import Allocator
from subprune.budget.goal import Goal, amount
from subprune.errors import BudgetError, OptionError, closest
from subprune.fit.keep import Keep
from subprune.loop.recipe import Recipe
from subprune.methods import find_method, tuned
from subprune.progress import Step
from subprune.statistics.batchnorm import BATCHNORM
from subprune.statistics.targets import PATCHES
from subprune.structure.choose import as_items

__all__ = ["TARGETS", "Options", "PruneOptions", "named_options"]

TARGETS = ("compression", "speedup", "params", "flops", "latency", "keep", "budgets")


class PruneOptions(TypedDict, total=False):
    """The keywords of `subprune.prune`, for editors and type checkers."""

    compression: float | None
    speedup: float | None
    params: str | float | None
    flops: str | float | None
    latency: str | float | None
    keep: float | None
    budgets: Mapping[str, int] | None
    method: str
    allocate: str | None
    reweight: bool
    ridge: float | None
    folds: int | None
    epsilon: float | None
    patches: str
    batchnorm: str
    train_data: Any
    verify_data: Any
    cache: str | Path | None
    round_to: int | None
    only: Any
    ignore: Any
    n_samples: int | None
    forward: Callable[[Any], Any] | None
    seed: int
    time_calls: bool | None
    progress: bool | Callable[[Step], None] | None


def named_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Unknown keywords are refused with the nearest known one, instead of Python's bare TypeError."""
    known = [
        p.name for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY
    ]

    @functools.wraps(function)
    def checked(*args: Any, **options: Any) -> Any:
        if len(args) > 2:
            raise OptionError(
                f"{function.__name__} takes the model and the data, and everything else by name, such as "
                f"compression=2; got {args[2]!r:.80} as a third"
            )
        for name in options:
            if name not in known and name not in ("model", "data"):
                raise OptionError(
                    f"unknown option {name!r}: {closest(name, known)}allowed are {', '.join(known)}"
                )
        return function(*args, **options)

    return checked


@dataclass(frozen=True)
class Options:
    """See `subprune.prune` for what each one means."""

    method: str
    allocate: str | None = None  # None: the method's own rule, or "balanced"
    budgets: Mapping[str, int] | None = None
    keep: float | None = None
    compression: float | None = None
    speedup: float | None = None
    params: str | float | None = None
    flops: str | float | None = None
    latency: str | float | None = None
    reweight: bool = True
    ridge: float | None = None  # None: chosen on held-out inputs
    folds: int | None = None  # None: 4, or 1 for the plain fit
    epsilon: float | None = None
    patches: str = "all"
    batchnorm: str = "keep"
    round_to: int | None = None  # None: 8 for a latency, else 1
    only: Any = None  # None, or a tuple
    ignore: Any = None
    n_samples: int | None = 512
    seed: int = 0
    time_calls: bool | None = None  # None: timed on one input

    def __post_init__(self) -> None:
        if not isinstance(self.method, str):
            raise OptionError(
                f"method must be a name that `subprune methods` lists, got {self.method!r}"
            )
        find_method(self.method)
        self._check_targets()
        choices = {"patches": PATCHES, "batchnorm": BATCHNORM, "allocate": (*ALLOCATORS, None)}
        for name, allowed in choices.items():
            value = getattr(self, name)
            if value not in allowed:
                words = [a for a in allowed if a is not None]
                raise OptionError(
                    f"{name}={value!r}: {closest(str(value), words)}allowed are {', '.join(words)}"
                )
        self._check_contradictions()
        if not isinstance(self.reweight, bool):
            raise OptionError(f"reweight must be True or False, got {self.reweight!r}")
        _ = self.recipe  # refuses knobs that its parts lack, and values they do not take
        if (
            isinstance(self.multiple, bool)
            or not isinstance(self.multiple, int)
            or self.multiple < 1
        ):
            raise OptionError(f"round_to must be a positive integer, got {self.round_to!r}")
        if self.time_calls not in (True, False, None):
            raise OptionError(f"time_calls must be True, False or None, got {self.time_calls!r}")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or abs(self.seed) >= 2**63:
            raise OptionError(f"seed must be an integer of 64 bits, got {self.seed!r}")
        for name in ("only", "ignore"):
            given = getattr(self, name)
            # a generator is read once
            object.__setattr__(self, name, None if given is None else as_items(given))

    @property
    def rule(self) -> str:
        """The budget rule that is used."""
        return self.allocate or find_method(self.method).allocate or DEFAULT

    @property
    def allocator(self) -> Allocator:
        """Who shares out the goal."""
        return ALLOCATORS[self.rule]

    @property
    def goal(self) -> Goal:
        """What is asked for."""
        return Goal(**{name: getattr(self, name) for name in TARGETS})

    @property
    def recipe(self) -> Recipe:
        """The method's parts, with the knobs turned that were given."""
        row = find_method(self.method)
        target = tuned(row.target, patches=self.patches)
        selector = tuned(row.selector, epsilon=self.epsilon)
        if not self.reweight and self.ridge in (None, 0) and self.folds in (None, 1):
            return Recipe(target, selector, Keep(), row.name)
        fit = tuned(row.fit if self.reweight else Keep(), ridge=self.ridge, folds=self.folds)
        return Recipe(target, selector, fit, row.name)

    @property
    def unbounded(self) -> str:
        """Why the bounds of `subprune.guarantees` do not speak of the result; empty if they do."""
        why = self.recipe.unbounded
        if not why and self.batchnorm != "keep":
            why = f"BatchNorm statistics are re-estimated (batchnorm={self.batchnorm!r})"
        if not why:
            return ""
        return (
            "bounds are proven for plain greedy selection with weights fitted by least squares and "
            f"BatchNorm as it is; here {why}"
        )

    @property
    def multiple(self) -> int:
        """What numbers of units are multiples of; odd widths eat the time that fewer units save."""
        if self.round_to is not None:
            return self.round_to
        return 8 if self.latency is not None else 1

    def _check_targets(self) -> None:
        given = [k for k in TARGETS if getattr(self, k) is not None]
        if len(given) != 1:
            said = f"got {' and '.join(given)}" if given else "got none"
            raise OptionError(f"give exactly one target of {', '.join(TARGETS)}; {said}")
        for name in ("compression", "speedup"):
            value = getattr(self, name)
            if value is not None and (
                isinstance(value, bool) or not isinstance(value, int | float) or not value >= 1
            ):
                raise BudgetError(
                    f"{name} must be a ratio of at least 1 (before / after), got {value!r}"
                )
        for name in ("params", "flops", "latency"):
            if getattr(self, name) is not None:
                amount(name, getattr(self, name), 1)
        if self.budgets is not None and not isinstance(self.budgets, Mapping):
            raise BudgetError(
                f"budgets must be a dict such as {{'conv1': 3}}, got {type(self.budgets).__name__}"
            )

    def _check_contradictions(self) -> None:
        """Options that would be ignored silently are refused."""
        if self.latency is not None and self.time_calls is False:
            raise OptionError(
                f"latency={self.latency!r} is met by timing calls, and time_calls=False forbids it; omit time_calls"
                ", or ask for speedup= instead"
            )
        if self.budgets is not None and self.round_to is not None:
            raise OptionError(
                f"budgets= says exactly how many units each group keeps, so round_to={self.round_to!r} has no say; "
                "omit it"
            )
        if self.allocate is None:
            return
        if self.budgets is not None:
            raise OptionError(
                f"budgets= says how many units each group keeps, so there is nothing for allocate={self.allocate!r} "
                "to share out; omit one of them"
            )
        if self.keep is not None and self.allocator.looks_at and not self.allocator.pools_units:
            raise OptionError(
                f"keep={self.keep!r} keeps the same fraction of every group, so allocate={self.allocate!r} has no say; "
                "omit allocate, or ask for compression= or speedup= instead"
            )

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        named = {
            k: None if plain[k] is None else [_named(x) for x in plain[k]]
            for k in ("only", "ignore")
        }
        budgets = None if self.budgets is None else dict(self.budgets)
        del plain["time_calls"]  # changes nothing in the result
        return {
            **plain,
            **named,
            "budgets": budgets,
            "allocate": self.rule,
            "round_to": self.multiple,
        }


def _named(x: Any) -> str:
    """Types and modules by the name of their class."""
    return x if isinstance(x, str) else getattr(x, "__name__", type(x).__name__)
