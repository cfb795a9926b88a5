"""All options of `prune`, `forecast` and `guarantees`: each is declared here, once.

`Options` checks what can be checked without the model and the data: types, closed sets,
contradictions. Goals, names of groups and amounts of data are checked where both are known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from subprune.budget.allocators import ALLOCATORS, DEFAULT, AllocatorName
from subprune.budget.demand import Allocator
from subprune.budget.goal import Goal, Part, Shares
from subprune.errors import OptionError
from subprune.fit.fit import Fit
from subprune.fit.fits import FITS, FitName
from subprune.keywords import Option, check_kind, option, options_of, same
from subprune.loop.recipe import Recipe
from subprune.messages import KEYWORDS, Message
from subprune.methods import DEFAULT_FIT, METHODS, Method, find_method, tuned
from subprune.options.checks import (
    GOALS,
    check_call,
    check_contradictions,
    check_drift,
    check_goal,
    check_numbers,
    check_refine,
)
from subprune.options.texts import (
    as_amount,
    as_budgets,
    as_count,
    as_method,
    as_part,
    as_shares,
    as_views,
    checked_shares,
    class_names,
)
from subprune.plan import GroupPlan
from subprune.progress import Step
from subprune.select.input_change import Greedy
from subprune.select.selector import Answer, Selector, View
from subprune.select.selectors import SELECTORS, SelectorName
from subprune.statistics.batchnorm import BatchNorm
from subprune.statistics.residual import Residual
from subprune.statistics.target import Patches, Target
from subprune.statistics.targets import TARGETS, Asymmetric, TargetName
from subprune.structure.choose import as_items

__all__ = ["OPTIONS", "GuaranteeOptions", "Options"]

_GOAL = "Goal (one of these, or several limits at once)"
_MEASURE = "What the goal is measured on"
_HOW = "How units are chosen and weights fitted"
_WHERE = "Which groups"
_DATA = "Data"
_WORK = "The work itself"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Options:
    """What one call asks for.

    A field is one option: its default, what it does, and how text says it. To add one, add a
    field; signature, flags, keys, the reference page and the call in the report follow.
    """

    # ---- the goal -----------------------------------------------------------------------------
    compression: float | None = option(None, "parameters before / after", panel=_GOAL)
    speedup: float | None = option(None, "FLOPs before / after", panel=_GOAL)
    params: str | float | None = option(
        None,
        "parameters left: a number, or a share such as 50%",
        panel=_GOAL,
        metavar="AMOUNT",
        parse=as_amount,
    )
    flops: str | float | None = option(
        None,
        "FLOPs left for one input: a number, or a share such as 50%",
        panel=_GOAL,
        metavar="AMOUNT",
        parse=as_amount,
    )
    latency: str | float | None = option(
        None,
        "milliseconds that a call on the first batch may take, or a share such as 60%; met by "
        "cutting candidates and timing them here and now",
        panel=_GOAL,
        metavar="AMOUNT",
        parse=as_amount,
    )
    keep: Shares | str | None = option(
        None,
        "fraction of the units of every group; or of some, by kind (head, neuron, channel), name or "
        "wildcard, of which the most specific counts, and what is not named stays whole, unless * "
        "says how much of the rest is kept; 0.5 or 50%",
        panel=_GOAL,
        metavar="SHARE or NAME=SHARE",
        several=True,
        parse=as_shares,
        take=checked_shares,
        show=lambda keep: dict(keep) if isinstance(keep, Mapping) else keep,
    )
    budgets: Mapping[str, int] | None = option(
        None,
        "units to keep, by group; groups that are not named stay whole",
        panel=_GOAL,
        metavar="GROUP=UNITS",
        several=True,
        parse=as_budgets,
        show=dict,
    )
    of: Part = option(
        "model",
        Message(
            "what {compression:name}, {speedup:name}, {params:name} and {flops:name} are measured "
            "on: all of the model, or its blocks, which are everything but tables of embeddings "
            "and positions and the layers that make the output"
        ),
        panel=_MEASURE,
    )
    uniform: bool = option(
        False,
        "layers that repeat keep the same number of units, so that one number in a config can say "
        "it; of a transformers model only what its config can express is pruned, and the result "
        "loads with from_pretrained",
        panel=_WHERE,
    )
    streams: bool = option(
        False,
        "prune residual streams as well, which everything reads; by default only those that are "
        "named themselves",
        panel=_WHERE,
    )
    # ---- how ----------------------------------------------------------------------------------
    method: str | Method | Callable[[View], Answer] = option(
        "auto",
        "preset of the four choices below; `subprune methods` lists them; in Python also a function "
        "that ranks the units of a group, as one given to subprune.method",
        panel=_HOW,
        metavar="NAME",
        take=as_method,
        show=lambda method: find_method(method).name,
    )
    target: TargetName | Target | None = option(
        None,
        "what a layer should give, and from which inputs: layer, sequential or asymmetric; by "
        "default the method's own",
        panel=_HOW,
        **as_part("target", Target, TARGETS),
    )
    selector: SelectorName | Selector | None = option(
        None,
        "who chooses the units; by default the method's own",
        panel=_HOW,
        **as_part("selector", Selector, SELECTORS),
    )
    fit: FitName | Fit | None = option(
        None,
        f"what the remaining weights become: {', '.join(FITS)}; by default the method's own",
        panel=_HOW,
        **as_part("fit", Fit, FITS),
    )
    allocate: AllocatorName | Allocator | None = option(
        None,
        f"how the goal is divided among the groups: {', '.join(ALLOCATORS)}; by default the "
        "method's own, or balanced",
        panel=_HOW,
        **as_part("allocate", Allocator, ALLOCATORS),
    )
    ridge: float | None = option(
        None,
        "strength that draws new weights toward the old ones, relative to the inputs' mean "
        "energy; 0 is the paper's plain fit, by default it is chosen on held-out inputs",
        panel=_HOW,
    )
    folds: int | None = option(
        None,
        Message(
            "parts into which the inputs are divided, each judged by a model fitted to the "
            "others; by default 4, or 1 with {ridge=}, where nothing is held out",
            ridge=0,
        ),
        panel=_HOW,
    )
    drift: bool | None = option(
        None,
        "refit also the layers that lose no input, but whose inputs change because earlier layers "
        "were cut, to what they gave in the dense model; by default as the method says",
        panel=_HOW,
    )
    refine: int = option(
        0,
        "Gauss–Newton steps, at most, on the layers that make a group's units, with those that "
        "read them fitted again after each; 4 suit 512 inputs",
        panel=_HOW,
    )
    epsilon: float | None = option(
        None, "between 0 and 1: stochastic greedy, for methods that select greedily", panel=_HOW
    )
    patches: Patches = option("all", "patches of each image that are looked at", panel=_HOW)
    batchnorm: BatchNorm = option(
        "keep",
        "BatchNorm statistics: kept, re-estimated on the data at the end (recalibrate), or layer "
        "after layer on the way (sequential), so that later layers are chosen and reweighted for "
        "what the smaller model computes",
        panel=_HOW,
    )
    # ---- other data, and where curves are kept ------------------------------------------------
    train_data: Any = option(
        None,
        "labelled pool that layer-greedy-fs-fd draws from",
        panel=_DATA,
        metavar="DATA",
        planned=False,
        variable=True,
    )
    verify_data: Any = option(
        None,
        "labelled data for the equal-accuracy rule, and for the accuracy in the report",
        panel=_DATA,
        metavar="DATA",
        planned=False,
        variable=True,
    )
    cache: str | Path | None = option(
        None,
        "folder for accuracy curves, which are used again for other goals and after a break",
        panel=_WORK,
        metavar="FOLDER",
        parse=Path,
        planned=False,
        show=str,
    )
    # ---- which groups, and how wide -----------------------------------------------------------
    round_to: int | None = option(
        None,
        Message(
            "numbers of units are multiples of this, 8 or 16 suit most hardware; by default 1, or "
            "8 with {latency=}"
        ),
        panel=_WHERE,
    )
    only: Any = option(
        None,
        "prune these groups and no others: names of groups or modules, wildcards such as "
        "layer*.conv1, patterns such as re:conv, in Python also module types and modules; a "
        "container stands for all layers in it, and residual streams are pruned only if named "
        "themselves",
        panel=_WHERE,
        metavar="NAME",
        several=True,
        parse=list,
        take=as_items,  # a generator is read once
        show=class_names,
    )
    ignore: Any = option(
        None,
        Message("leave these alone; given like {only:name}"),
        panel=_WHERE,
        metavar="NAME",
        several=True,
        parse=list,
        take=as_items,
        show=class_names,
    )
    # ---- inputs -------------------------------------------------------------------------------
    n_samples: int | str | None = option(
        512,
        Message(
            "how many inputs are used, drawn at random from all of the data by {seed:name}, or the "
            "first of a stream; if there are no more, all in their own order; in Python None takes "
            'all; "4096 tokens": as many inputs as have so many tokens that are no padding'
        ),
        panel=_DATA,
        metavar="NUMBER",
        parse=as_count,
    )
    augment: Any = option(
        None,
        "calibrate also on further views of all images: mirror (left and right exchanged), crop "
        "(moved by a few pixels); for images that mean the same then",
        panel=_DATA,
        metavar="VIEW",
        several=True,
        parse=list,
        take=as_views,
    )
    forward: Callable[[Any], Any] | None = option(
        None,
        "function from an item of the data to the model's arguments",
        panel=_DATA,
        flag=False,
        planned=False,
        variable=True,
    )
    seed: int = option(0, "of everything random", panel=_DATA)
    # ---- the work itself ----------------------------------------------------------------------
    time_calls: bool | None = option(
        None,
        "measure both models' latency on the first batch, or not at all; by default on one input, "
        "with a latency as goal on the first batch",
        panel=_WORK,
        planned=False,  # changes nothing in the result
    )
    progress: bool | Callable[[Step], None] | None = option(
        None,
        "True, False, a function that gets every step, or None for a bar in a terminal or notebook",
        panel=_WORK,
        flag=False,
        planned=False,
        repeated=False,
        variable=True,
    )

    callback: Callable[[GroupPlan], Any] | None = option(
        None,
        "function that is told what was decided, group after group; an error that it raises stops "
        "the work, and the model given is as it was",
        panel=_WORK,
        flag=False,
        planned=False,
        repeated=False,
        variable=True,
    )

    def __post_init__(self) -> None:
        check_goal(self)
        for o in OPTIONS.values():
            check_kind(o, getattr(self, o.name))
            object.__setattr__(self, o.name, o.kept(getattr(self, o.name)))
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
        return ALLOCATORS[find_method(self.method).allocate or DEFAULT]

    @property
    def goal(self) -> Goal:
        """What is asked for."""
        return Goal(**{name: getattr(self, name) for name in GOALS}, of=self.of)

    @property
    def unbounded(self) -> str:
        """Why the bounds of `subprune.guarantees` do not speak of the result; empty if they do."""
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


OPTIONS: Mapping[str, Option] = options_of(Options)
"""The table of options, by name, in the order of the signature."""


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
class GuaranteeOptions:
    """What `subprune.guarantees` is to prove, and for which selection."""

    target: TargetName = option(
        "layer",
        "the model that is looked at: the dense one, or one that is pruned group after group on "
        "the way, which needs one share, or budgets",
    )
    keep: float | Sequence[float] = option(
        (0.25, 0.5, 0.75), "shares of the units of every group for which bounds are given"
    )
    budgets: Mapping[str, int] | None = same(Options, "budgets")
    only: Any = same(Options, "only")
    ignore: Any = same(Options, "ignore")
    patches: Patches = same(Options, "patches")
    fit: FitName | Fit | None = same(Options, "fit")
    ridge: float | None = same(Options, "ridge")
    folds: int | None = same(Options, "folds")
    drift: bool | None = same(Options, "drift")
    n_samples: int | str | None = same(Options, "n_samples")
    forward: Callable[[Any], Any] | None = same(Options, "forward")
    seed: int = same(Options, "seed")
    double: bool = option(
        True,
        "compute in float64, on a copy; otherwise in the model's own precision, with wider margins "
        "for rounding",
    )
    progress: bool | Callable[[Step], None] | None = same(Options, "progress")

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
