"""All options of `prune`, `forecast` and `guarantees`: each is declared here, once.

`Options` checks what can be checked without the model and the data: types, closed sets,
contradictions. Goals, names of groups and amounts of data are checked where both are known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from subprune.budget.allocators import ALLOCATORS, DEFAULT, AllocatorName
from subprune.budget.demand import Allocator
from subprune.budget.explicit import share_of
from subprune.budget.goal import Goal, Part, Shares, amount
from subprune.data.tokens import token_limit
from subprune.data.views import VIEWS
from subprune.errors import BudgetError, OptionError, closest
from subprune.fit.fit import Fit
from subprune.fit.fits import FITS, FitName
from subprune.keywords import Option, check_kind, must_be, option, options_of, same
from subprune.loop.recipe import Recipe
from subprune.messages import KEYWORDS, Message, listed
from subprune.methods import DEFAULT_FIT, find_method, tuned
from subprune.progress import Step
from subprune.select.input_change import Greedy
from subprune.select.selector import Selector
from subprune.select.selectors import SELECTORS, SelectorName
from subprune.statistics.batchnorm import BatchNorm
from subprune.statistics.residual import Residual
from subprune.statistics.target import Patches, Target
from subprune.statistics.targets import TARGETS, Asymmetric, TargetName
from subprune.structure.choose import as_items

__all__ = ["GOALS", "OPTIONS", "GuaranteeOptions", "Options"]

GOALS = ("compression", "speedup", "params", "flops", "latency", "keep", "budgets")
"""What is asked for; a call gives exactly one of them."""

_GOAL = "Goal (exactly one)"
_MEASURE = "What the goal is measured on"
_HOW = "How units are chosen and weights fitted"
_WHERE = "Which groups"
_DATA = "Data"
_WORK = "The work itself"


def _amount(text: str) -> str | float:
    """A number, or a share such as ``50%``."""
    try:
        return text if text.strip().endswith("%") else float(text)
    except ValueError:
        return text  # refused, with an explanation, where goals are checked


def _budgets(texts: list[str]) -> dict[str, int]:
    """``["conv1=3"]`` as ``{"conv1": 3}``."""
    counts: dict[str, int] = {}
    for text in texts:
        name, equals, number = text.rpartition("=")
        if not equals or not name or not number.isdigit() or len(number) > 12:
            why = "{budgets:name} {got!r} must look like GROUP=UNITS, e.g. conv1=3"
            raise OptionError(Message(why, got=text))
        counts[name] = int(number)
    return counts


def _views(given: Any) -> tuple[str, ...] | None:
    """Names of views, one or several."""
    names = as_items(given)
    for name in names:
        if name not in VIEWS:
            words = "{augment=}: {hint}allowed are {allowed}"
            hint, allowed = closest(str(name), VIEWS), ", ".join(VIEWS)
            raise OptionError(Message(words, augment=given, hint=hint, allowed=allowed))
    return tuple(dict.fromkeys(names)) or None


def _count(text: str) -> int | str:
    """A number of inputs, or of tokens."""
    try:
        return int(text)
    except ValueError:
        return text  # refused, with an explanation, if it does not speak of tokens


def _keep(texts: list[str]) -> Shares | None:
    """``["0.5"]`` as 0.5, ``["head=0.75", "fc=50%"]`` as a dict."""
    if len(texts) == 1 and "=" not in texts[0]:
        return _share(texts[0])
    shares: dict[str, str | float] = {}
    for text in texts:
        name, equals, share = text.rpartition("=")
        if not equals or not name:
            why = "{keep:name} {got!r} must be one fraction, or NAME=FRACTION, e.g. head=0.75"
            raise OptionError(Message(why, got=text))
        shares[name] = _amount(share)
    return shares


def _share(text: str) -> float:
    """``0.5`` or ``50%``; anything else is refused."""
    return share_of(_amount(text))


def _class_names(items: Iterable[Any]) -> list[str]:
    """Names as they are, types and modules by the name of their class."""
    return [x if isinstance(x, str) else getattr(x, "__name__", type(x).__name__) for x in items]


def _part(option_name: str, kind: type, table: Mapping[str, Any]) -> dict[str, Any]:
    """How a part of a method is given: the name of one, or one itself."""

    def taken(value: Any) -> Any:
        if isinstance(value, kind):
            return value
        if isinstance(value, str) and value in table:
            return table[value]
        words = f"{{{option_name}=}}: {{hint}}allowed are {{allowed}}, or an object of that kind"
        hint, allowed = closest(str(value), table), ", ".join(table)
        raise OptionError(Message(words, **{option_name: value}, hint=hint, allowed=allowed))

    def shown(value: Any) -> str:
        return str(value.name) if table.get(value.name) == value else repr(value)

    return {"panel": _HOW, "metavar": "NAME", "parse": str, "take": taken, "show": shown}


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
        parse=_amount,
    )
    flops: str | float | None = option(
        None,
        "FLOPs left for one input: a number, or a share such as 50%",
        panel=_GOAL,
        metavar="AMOUNT",
        parse=_amount,
    )
    latency: str | float | None = option(
        None,
        "milliseconds that a call on the first batch may take, or a share such as 60%; met by "
        "cutting candidates and timing them here and now",
        panel=_GOAL,
        metavar="AMOUNT",
        parse=_amount,
    )
    keep: Shares | None = option(
        None,
        "fraction of the units of every group; or of some, by kind (head, neuron, channel), name or "
        "wildcard, of which the most specific counts, and what is not named stays whole",
        panel=_GOAL,
        metavar="SHARE or NAME=SHARE",
        several=True,
        parse=_keep,
        show=lambda keep: dict(keep) if isinstance(keep, Mapping) else keep,
    )
    budgets: Mapping[str, int] | None = option(
        None,
        "units to keep, by group; groups that are not named stay whole",
        panel=_GOAL,
        metavar="GROUP=UNITS",
        several=True,
        parse=_budgets,
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
    # ---- how ----------------------------------------------------------------------------------
    method: str = option(
        "auto",
        "preset of the four choices below; `subprune methods` lists them",
        panel=_HOW,
    )
    target: TargetName | Target | None = option(
        None,
        "what a layer should give, and from which inputs: layer, sequential or asymmetric; by "
        "default the method's own",
        **_part("target", Target, TARGETS),
    )
    selector: SelectorName | Selector | None = option(
        None,
        "who chooses the units; by default the method's own",
        **_part("selector", Selector, SELECTORS),
    )
    fit: FitName | Fit | None = option(
        None,
        f"what the remaining weights become: {', '.join(FITS)}; by default the method's own",
        **_part("fit", Fit, FITS),
    )
    allocate: AllocatorName | Allocator | None = option(
        None,
        f"how the goal is divided among the groups: {', '.join(ALLOCATORS)}; by default the "
        "method's own, or balanced",
        **_part("allocate", Allocator, ALLOCATORS),
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
        show=_class_names,
    )
    ignore: Any = option(
        None,
        Message("leave these alone; given like {only:name}"),
        panel=_WHERE,
        metavar="NAME",
        several=True,
        parse=list,
        take=as_items,
        show=_class_names,
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
        parse=_count,
    )
    augment: Any = option(
        None,
        "calibrate also on further views of all images: mirror (left and right exchanged), crop "
        "(moved by a few pixels); for images that mean the same then",
        panel=_DATA,
        metavar="VIEW",
        several=True,
        parse=list,
        take=_views,
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

    def __post_init__(self) -> None:
        _check_goal(self)
        if not isinstance(self.method, str):
            names = "a name that `subprune methods` lists"
            raise OptionError(must_be("method", names, self.method))
        find_method(self.method)
        for o in OPTIONS.values():
            check_kind(o, getattr(self, o.name))
            object.__setattr__(self, o.name, o.kept(getattr(self, o.name)))
        _check_drift(self)
        _ = self.recipe  # refuses knobs that its parts lack, and values they do not take
        _check_refine(self)
        _check_contradictions(self)
        _check_numbers(self)
        _check_call(self)

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
            drift=_drift(target) if refit else None,
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


def _folds(options: Options, fit: Fit) -> int | None:
    """Parts of the inputs; more where one of them is left out of every step of refining."""
    if options.folds is not None or not options.refine or not fit.needs_statistics:
        return options.folds
    return _REFINED_FOLDS


def _drift(target: Target) -> Target:
    """What layers that lose no input should give, where those that do aim at this.

    Something of the dense model: what they give in the pruned one, they give already.
    """
    return replace(target, patches="all") if isinstance(target, Residual) else Asymmetric()


# ---- checks --------------------------------------------------------------------------------------


def _is_number(value: Any, kind: Any = int | float) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _check_goal(options: Options) -> None:
    given = [name for name in GOALS if getattr(options, name) is not None]
    if len(given) != 1:
        raise OptionError(
            Message(
                "give exactly one goal of {goals}; got {given}",
                goals=listed(GOALS),
                given=listed(given, " and ") if given else "none",
            )
        )
    for name in ("compression", "speedup"):
        ratio = getattr(options, name)
        if ratio is not None and not (_is_number(ratio) and ratio >= 1):
            raise BudgetError(must_be(name, "a ratio of at least 1 (before / after)", ratio))
    for name in ("params", "flops", "latency"):
        if getattr(options, name) is not None:
            amount(name, getattr(options, name), 1)
    if isinstance(options.keep, Mapping):
        _check_shares(options.keep)
    if options.budgets is not None and not isinstance(options.budgets, Mapping):
        kind = type(options.budgets).__name__
        why = "{budgets:name} must be a dict such as {example}, got {got}"
        raise BudgetError(Message(why, example={"conv1": 3}, got=kind))


def _check_shares(keep: Mapping[str, Any]) -> None:
    if not keep or not all(isinstance(name, str) for name in keep):
        why = "{keep:name} must be a fraction, or a dict such as {example}, got {got!r}"
        raise BudgetError(Message(why, example={"head": 0.75, "neuron": 0.5}, got=dict(keep)))
    for share in keep.values():
        share_of(share)


def _check_drift(options: Options) -> None:
    """Layers can be refitted on the way where there is a way, and something to fit with."""
    if not options.drift:
        return
    recipe = options.recipe
    if not recipe.target.sees_pruned:
        why = "looks at the dense model alone, where nothing drifts"
        raise OptionError(
            Message(f"{{drift=}} has no effect: target {recipe.target.name!r} {why}", drift=True)
        )
    if not recipe.fit.needs_statistics:
        words = f"{{drift=}} has no effect: fit {recipe.fit.name!r} fits nothing"
        raise OptionError(Message(words, drift=True))


def _check_refine(options: Options) -> None:
    """Steps need the dense values at the landings, and readers that are fitted again."""
    steps = options.refine
    if not (_is_number(steps, int) and 0 <= steps <= 64):
        raise OptionError(must_be("refine", "a whole number from 0 (none) to 64", steps))
    if not steps:
        return
    recipe = options.recipe
    if not isinstance(recipe.target, Residual):
        words = f"{{refine=}} works with target 'residual' only, not with {recipe.target.name!r}"
        raise OptionError(Message(words, refine=steps))
    if not recipe.fit.needs_statistics:
        words = f"{{refine=}} has no effect: fit {recipe.fit.name!r} fits nothing"
        raise OptionError(Message(words, refine=steps))


def _check_contradictions(options: Options) -> None:
    """Options that would be ignored silently are refused."""
    if options.latency is not None and options.time_calls is False:
        raise OptionError(
            Message(
                "{latency=} is met by timing calls, and {time_calls=} forbids it; omit "
                "{time_calls:name}, or ask for {speedup:name} instead",
                latency=options.latency,
                time_calls=False,
            )
        )
    if options.budgets is not None and options.round_to is not None:
        raise OptionError(
            Message(
                "{budgets=} says exactly how many units each group keeps, so {round_to=} has no "
                "effect; omit it",
                round_to=options.round_to,
            )
        )
    if options.budgets is not None and options.allocate is not None:
        raise OptionError(
            Message(
                "{budgets=} says how many units each group keeps, so there is nothing for "
                "{allocate=} to divide; omit one of them",
                allocate=options.allocator.name,
            )
        )
    if options.of != "model" and not options.goal.measured:
        given = next(name for name in GOALS if getattr(options, name) is not None)
        words = (
            f"{{of=}} has no effect with {{{given}:name}}, which says nothing about the model's "
            "size; omit it, or ask for {params:name}, {compression:name}, {flops:name} or "
            "{speedup:name}"
        )
        raise OptionError(Message(words, of=options.of))
    shared = options.allocate is not None and bool(options.allocator.looks_at)
    pooled = options.allocator.pools_units and not isinstance(options.keep, Mapping)
    if options.keep is not None and shared and not pooled:
        raise OptionError(
            Message(
                "{keep=} keeps the same fraction of every group, so {allocate=} has no effect; "
                "omit {allocate:name}, or ask for {compression:name} or {speedup:name} instead",
                keep=options.keep,
                allocate=options.allocator.name,
            )
        )


def _check_numbers(options: Options) -> None:
    token_limit(options.n_samples)  # refuses what is neither inputs nor tokens
    if not (_is_number(options.multiple, int) and options.multiple >= 1):
        raise OptionError(must_be("round_to", "a positive integer", options.round_to))
    if not (_is_number(options.seed, int) and abs(options.seed) < 2**63):
        raise OptionError(must_be("seed", "an integer of 64 bits", options.seed))


def _check_call(options: Options) -> None:
    """Wrong types of what is not kept with the plan."""
    if options.forward is not None and not callable(options.forward):
        allowed = "a function from an item of data to the model's arguments"
        raise OptionError(must_be("forward", allowed, options.forward))
    if options.cache is not None and not isinstance(options.cache, str | Path):
        raise OptionError(must_be("cache", "a folder", options.cache))


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
        return Recipe(target, Greedy(), fit, drift=_drift(target) if self.drift else None)

    @property
    def shares(self) -> tuple[float, ...]:
        """The shares of units to look at."""
        return (self.keep,) if isinstance(self.keep, int | float) else tuple(self.keep)
