"""All options of `subprune.prune` and `subprune.forecast`: declared and checked here, once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, Literal

from torch import nn

from subprune.budget.target import amount
from subprune.errors import BudgetError, OptionError
from subprune.fit.ridge import fold_count
from subprune.keywords import Option, check_kind, must_be, option, options_of
from subprune.messages import KEYWORDS, Message, listed
from subprune.progress import Step
from subprune.select.presets import find_method
from subprune.select.registry import Patches
from subprune.statistics.batchnorm import BatchNorm
from subprune.structure.choose import as_items

__all__ = ["GOALS", "OPTIONS", "Options", "check_fit"]

GOALS = ("compression", "speedup", "params", "flops", "latency", "keep", "budgets")
"""What is asked for; a call gives exactly one of them."""

Rule = Literal[
    "balanced",
    "knapsack",
    "error",
    "uniform",
    "equal-accuracy",
    "equal-agreement",
    "score",
    "sampling",
]

_GOAL = "Target (exactly one)"
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


def _class_names(items: Iterable[Any]) -> list[str]:
    """Names as they are, types and modules by the name of their class."""
    return [x if isinstance(x, str) else getattr(x, "__name__", type(x).__name__) for x in items]


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
    keep: float | None = option(None, "fraction of the units of every group", panel=_GOAL)
    budgets: Mapping[str, int] | None = option(
        None,
        "units to keep, by group; groups that are not named stay whole",
        panel=_GOAL,
        metavar="GROUP=UNITS",
        several=True,
        parse=_budgets,
        show=dict,
    )
    # ---- how ----------------------------------------------------------------------------------
    method: str = option(
        "asym-in-change", "who chooses the units; `subprune methods` lists them", panel=_HOW
    )
    allocate: Rule | None = option(
        None,
        "how the target is shared out over the groups; by default the method's own rule, or "
        "balanced",
        panel=_HOW,
    )
    reweight: bool = option(
        True, "rewrite the weights of the layers that read the units, by least squares", panel=_HOW
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
    epsilon: float | None = option(
        None, "between 0 and 1: stochastic greedy, for the in-change methods", panel=_HOW
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
        "folder for accuracy curves, which are used again for other targets and after a break",
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
    n_samples: int | None = option(
        512,
        Message(
            "how many inputs are used, drawn at random from all of the data by {seed:name}, or the "
            "first of a stream; if there are no more, all in their own order; in Python None takes "
            "all"
        ),
        panel=_DATA,
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
        "with a latency as target on the first batch",
        panel=_WORK,
        planned=False,  # changes nothing in the result
    )
    progress: bool | Callable[[Step], None] | None = option(
        None,
        "True, False, a function that gets every step, or None for a bar where somebody looks",
        panel=_WORK,
        flag=False,
        planned=False,
        repeated=False,
        variable=True,
    )

    def __post_init__(self) -> None:
        _check_goal(self)
        _check_method(self)
        for o in OPTIONS.values():
            check_kind(o, getattr(self, o.name))
        _check_contradictions(self)
        _check_numbers(self)
        _check_call(self)
        for o in OPTIONS.values():
            object.__setattr__(self, o.name, o.kept(getattr(self, o.name)))

    @property
    def rule(self) -> str:
        """The budget rule that is used."""
        return self.allocate or find_method(self.method).allocate or "balanced"

    @property
    def measures_answers(self) -> bool:
        """Whether budgets are measured by answers of pruned models, which takes long."""
        return self.rule.startswith("equal-")

    @property
    def parts(self) -> int:
        """Into how many folds the inputs are divided."""
        return fold_count(self.folds, self.ridge, self.reweight)

    @property
    def multiple(self) -> int:
        """What numbers of units are multiples of; odd widths eat the time that fewer units save."""
        if self.round_to is not None:
            return self.round_to
        return 8 if self.latency is not None else 1

    def to_dict(self) -> dict[str, Any]:
        """Plain data for the plan; the rule and the multiple are those that were used."""
        plain = {o.name: o.plain(getattr(self, o.name)) for o in OPTIONS.values() if o.planned}
        return {**plain, "allocate": self.rule, "round_to": self.multiple}

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


OPTIONS: Mapping[str, Option] = options_of(Options)
"""The table of options, by name, in the order of the signature."""


def _source(value: Any, modules: Mapping[int, str]) -> str:
    """Python source of a value; modules by their names in the model."""
    if isinstance(value, nn.Module):
        return repr(modules.get(id(value), type(value).__name__))
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, tuple):
        return f"[{', '.join(_source(x, modules) for x in value)}]"
    if isinstance(value, Mapping):
        return repr(dict(value))
    return repr(str(value) if isinstance(value, Path) else value)


# ---- checks --------------------------------------------------------------------------------------


def _is_number(value: Any, kind: Any = int | float) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _check_goal(options: Options) -> None:
    given = [name for name in GOALS if getattr(options, name) is not None]
    if len(given) != 1:
        raise OptionError(
            Message(
                "give exactly one target of {goals}; got {given}",
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
    if options.budgets is not None and not isinstance(options.budgets, Mapping):
        kind = type(options.budgets).__name__
        why = "{budgets:name} must be a dict such as {example}, got {got}"
        raise BudgetError(Message(why, example={"conv1": 3}, got=kind))


def _check_method(options: Options) -> None:
    """The method and what it fits: everything about reweight, ridge, folds and epsilon."""
    if not isinstance(options.method, str):
        names = "a name that `subprune methods` lists"
        raise OptionError(must_be("method", names, options.method))
    method = find_method(options.method)
    ridge, folds, epsilon = options.ridge, options.folds, options.epsilon
    check_fit(ridge, folds)
    for name, value, plain in (("ridge", ridge, 0), ("folds", folds, 1)):
        if value not in (None, plain) and options.reweight is False:
            why = "is about fitted weights, and {reweight=} fits none; omit one of them"
            raise OptionError(Message(f"{{{name}=}} {why}", **{name: value}, reweight=False))
    if epsilon is None:
        return
    if not (_is_number(epsilon) and 0 < epsilon < 1):
        why = "{epsilon:name} of stochastic greedy must lie between 0 and 1, got {got!r}"
        raise OptionError(Message(why, got=epsilon))
    shipped = method.order.__module__ == "subprune.select.presets"
    if shipped and not options.method.endswith("in-change"):
        raise OptionError(
            Message(
                "{epsilon=} is for stochastic greedy, which {method=} does not use; omit it, or "
                "use one of layer-in-change, seq-in-change, asym-in-change",
                method=options.method,
            )
        )


def check_fit(ridge: Any, folds: Any) -> None:
    """Numbers that say how weights are fitted; None leaves them to the data."""
    if ridge is not None and not (_is_number(ridge) and 0 <= ridge < inf):
        allowed = "None, which chooses it, or a number of at least 0 (0.01 is strong)"
        raise OptionError(must_be("ridge", allowed, ridge))
    if folds is not None and not (_is_number(folds, int) and 1 <= folds <= 64):
        allowed = "a whole number from 1 (hold nothing out) to 64"
        raise OptionError(must_be("folds", allowed, folds))


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
                "say; omit it",
                round_to=options.round_to,
            )
        )
    if options.budgets is not None and options.allocate is not None:
        raise OptionError(
            Message(
                "{budgets=} says how many units each group keeps, so there is nothing for "
                "{allocate=} to share out; omit one of them",
                allocate=options.allocate,
            )
        )
    if options.keep is not None and options.allocate not in (None, "uniform", "score"):
        raise OptionError(
            Message(
                "{keep=} keeps the same fraction of every group, so {allocate=} has no say; omit "
                "{allocate:name}, or ask for {compression:name} or {speedup:name} instead",
                keep=options.keep,
                allocate=options.allocate,
            )
        )


def _check_numbers(options: Options) -> None:
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
