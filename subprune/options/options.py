"""What the options of one call ask for together.

`Options` checks what can be checked without the model and the data: types, closed sets,
contradictions. Goals, names of groups and amounts of data are checked where both are known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from subprune.budget.allocators import ALLOCATORS, DEFAULT_ALLOCATOR
from subprune.budget.demand import Allocator
from subprune.budget.goal import Goal
from subprune.errors import OptionError
from subprune.fit.fit import Fit
from subprune.fit.fits import FITS
from subprune.keywords import check_kind, options_of
from subprune.loop.recipe import Recipe
from subprune.messages import KEYWORDS, Message
from subprune.methods import DEFAULT_FIT, METHODS, Method, as_method, find_method, tuned
from subprune.options.checks import (
    GOALS,
    check_call,
    check_contradictions,
    check_drift,
    check_goal,
    check_numbers,
    check_refine,
)
from subprune.options.table import OPTIONS, GuaranteeRows, Rows
from subprune.options.texts import PARTS
from subprune.select.input_change import Greedy
from subprune.select.selector import Selector
from subprune.select.selectors import SELECTORS
from subprune.statistics.products import Asymmetric
from subprune.statistics.residual import Residual
from subprune.statistics.target import Target
from subprune.statistics.targets import TARGETS

__all__ = ["GuaranteeOptions", "Options"]

PARTS.update(
    target=(Target, TARGETS),
    selector=(Selector, SELECTORS),
    fit=(Fit, FITS),
    allocate=(Allocator, ALLOCATORS),
)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Options(Rows):
    """What one call asks for: the rows of the table, checked, and the parts that they name."""

    def __post_init__(self) -> None:
        check_goal(self)
        for o in OPTIONS.values():
            check_kind(o, getattr(self, o.name))
            object.__setattr__(self, o.name, o.kept(getattr(self, o.name)))
        object.__setattr__(self, "method", as_method(self.method))
        find_method(self.method)  # refuses a name that is not known
        check_drift(self)
        _ = self.recipe  # refuses knobs that its parts lack, and values they do not take
        check_refine(self)
        check_contradictions(self)
        check_numbers(self)
        check_call(self)

    @property
    def recipe(self) -> Recipe:
        """The method's parts, those given in their place, and the knobs turned that were given."""
        row = find_method(self.method)
        target = self.target if isinstance(self.target, Target) else row.target
        selector = self.selector if isinstance(self.selector, Selector) else row.selector
        fit = self.fit if isinstance(self.fit, Fit) else row.fit
        patches = None if self.patches == "all" else self.patches
        able = target.sees_pruned and fit.needs_statistics
        refit = row.drift and able if self.drift is None else self.drift
        fit = fit if self.batchnorm == "keep" else fit.without_norms()
        return Recipe(
            tuned(target, patches=patches),
            tuned(selector, epsilon=self.epsilon),
            tuned(fit, ridge=self.ridge, folds=_folds(self, fit)),
            drift=_drift_target(target) if refit else None,
            refine=self.refine,
            name=row.name,
            named=selector is row.selector,
        )

    @property
    def allocator(self) -> Allocator:
        """Who divides the goal among the groups."""
        if isinstance(self.allocate, Allocator):
            return self.allocate
        return ALLOCATORS[find_method(self.method).allocate or DEFAULT_ALLOCATOR]

    @property
    def goal(self) -> Goal:
        """What is asked for."""
        return Goal(**{name: getattr(self, name) for name in GOALS}, of=self.of)

    @property
    def unbounded(self) -> str:
        """Why the bounds of `subprune.guarantees` do not apply to the result; empty if they do."""
        proven = (
            "bounds are proven for plain greedy selection with weights fitted by least squares and "
            "BatchNorm as it is; here "
        )
        if self.recipe.target.unbounded:
            why = f"{proven}{self.recipe.unbounded}; ask for {{method=}} to have them"
            return Message(why, method="asym-in-change")
        if self.recipe.unbounded:
            return proven + self.recipe.unbounded
        if self.batchnorm == "keep":
            return ""
        why = f"{proven}BatchNorm statistics are re-estimated ({{batchnorm=}})"
        return Message(why, batchnorm=self.batchnorm)

    @property
    def multiple(self) -> int:
        """What numbers of units are multiples of; odd widths eat the time that fewer units save."""
        if self.round_to is not None:
            return self.round_to
        return 8 if self.latency is not None else 1

    def to_dict(self) -> dict[str, Any]:
        """Plain data for the plan; the allocator and the multiple are those used."""
        plain = {o.name: o.plain(getattr(self, o.name)) for o in OPTIONS.values() if o.planned}
        used = OPTIONS["allocate"].plain(self.allocator)
        return {**plain, "allocate": used, "round_to": self.multiple}

    def call(self, model: nn.Module) -> str:
        """Python that asks for the same again: the options that differ from their defaults."""
        names = {id(module): name for name, module in model.named_modules()}
        words = ["model", "data"]
        for o in OPTIONS.values():
            value = getattr(self, o.name)
            if o.repeated and o.differs(value):
                source = o.name if o.variable else _source(value, names)
                words.append(f"{KEYWORDS.bare(o.name)}{source}")
        return f"subprune.prune({', '.join(words)})"


_REFINED_FOLDS = 8


def _source(value: Any, modules: Mapping[int, str]) -> str:
    """Python source of a value; modules by their names in the model."""
    if isinstance(value, nn.Module):
        return repr(modules.get(id(value), type(value).__name__))
    if isinstance(value, Method):
        return _method_source(value)
    if isinstance(value, Target | Selector | Fit | Allocator):
        shown = OPTIONS["allocate" if isinstance(value, Allocator) else value.role].plain(value)
        return repr(shown) if shown == value.name else str(shown)
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, tuple):
        return f"[{', '.join(_source(x, modules) for x in value)}]"
    if isinstance(value, Mapping):
        return repr(dict(value))
    return repr(str(value) if isinstance(value, Path) else value)


def _method_source(method: Method) -> str:
    """The name of a registered method; of another its function's, as far as that is one."""
    if METHODS.get(method.name) == method:
        return repr(method.name)
    return method.name if method.name.isidentifier() else "method"


def _folds(options: Options, fit: Fit) -> int | None:
    """Parts of the inputs; more where one of them is left out of every step of refining."""
    if options.folds is not None or not options.refine or not fit.needs_statistics:
        return options.folds
    return _REFINED_FOLDS


def _drift_target(target: Target) -> Target:
    """What layers that lose no input should give, where those that do aim at this.

    Something of the dense model: what they give in the pruned one, they give already.
    """
    return replace(target, patches="all") if isinstance(target, Residual) else Asymmetric()


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class GuaranteeOptions(GuaranteeRows):
    """What `subprune.guarantees` is to prove, and for which selection: its rows, checked."""

    def __post_init__(self) -> None:
        for o in options_of(GuaranteeOptions).values():
            check_kind(o, getattr(self, o.name))
            object.__setattr__(self, o.name, o.kept(getattr(self, o.name)))
        _ = self.recipe  # refuses values that its parts do not take
        if self.target != "layer" and self.budgets is None and len(self.shares) != 1:
            why = "{target=} prunes on the way: give one share, as in {keep=}, or {budgets=}"
            raise OptionError(Message(why, target=self.target, keep=0.5))

    @property
    def recipe(self) -> Recipe:
        """Plain greedy on the target; folds also say where random patches are taken."""
        given = self.fit if isinstance(self.fit, Fit) else FITS[DEFAULT_FIT]
        fit = tuned(given, ridge=self.ridge, folds=self.folds)
        target = tuned(TARGETS[self.target], patches=self.patches)
        return Recipe(target, Greedy(), fit, drift=_drift_target(target) if self.drift else None)

    @property
    def shares(self) -> tuple[float, ...]:
        """The shares of units to look at."""
        return (self.keep,) if isinstance(self.keep, int | float) else tuple(self.keep)
