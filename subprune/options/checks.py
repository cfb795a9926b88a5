"""What options must not be, by themselves and together; refused before any work."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from subprune.budget.goal import amount
from subprune.data.tokens import token_limit
from subprune.errors import BudgetError, OptionError
from subprune.keywords import must_be, takes_one
from subprune.messages import Message, listed
from subprune.statistics.residual import Residual

if TYPE_CHECKING:
    from subprune.options.options import Options

__all__ = [
    "GOALS",
    "LIMITS",
    "check_call",
    "check_contradictions",
    "check_divisible",
    "check_drift",
    "check_goal",
    "check_numbers",
    "check_refine",
]

GOALS = ("compression", "speedup", "params", "flops", "latency", "keep", "budgets")
"""What may be asked for."""

LIMITS = ("compression", "speedup", "params", "flops", "latency")
"""Those that limit the whole model: several may be given, and all are met."""


def _is_number(value: Any, kind: Any = int | float) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def check_goal(options: Options) -> None:
    given = [name for name in GOALS if getattr(options, name) is not None]
    if not given or (len(given) > 1 and not set(given) <= set(LIMITS)):
        raise OptionError(
            Message(
                "give one goal, or several limits: {limits} can be combined, {others} stand alone; "
                "got {given}",
                limits=listed(LIMITS),
                others=listed([name for name in GOALS if name not in LIMITS], " and "),
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


def check_drift(options: Options) -> None:
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


def check_refine(options: Options) -> None:
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


def check_divisible(options: Options, ranks: int) -> None:
    """Refuse what looks at all inputs at once, where every rank of a job runs some of them."""
    if ranks == 1:
        return
    recipe, words = options.recipe, ""
    if not recipe.selector.divisible:
        words = "{who} looks at the inputs one by one"
    elif recipe.target.patches == "random":
        words = "{patches=} draws them from one batch after another"
    elif recipe.refine:
        words = "{refine=} looks at one batch after another"
    if words:
        how = "; give {distributed=} on one rank, or another choice"
        given = {"patches": "random", "refine": recipe.refine, "distributed": False}
        reason = f"{words}, which the {ranks} ranks of this job have some each of{how}"
        raise OptionError(Message(reason, who=recipe.who, **given))


def check_contradictions(options: Options) -> None:
    """Options that would be ignored silently are refused."""
    if options.streams and options.budgets is not None:
        words = (
            "{budgets=} names the groups that are cut, so {streams=} has no effect; omit it, and "
            "name the streams there"
        )
        raise OptionError(Message(words, streams=True))
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


def check_numbers(options: Options) -> None:
    token_limit(options.n_samples)  # refuses what is neither inputs nor tokens
    if not (_is_number(options.multiple, int) and options.multiple >= 1):
        raise OptionError(must_be("round_to", "a positive integer", options.round_to))
    threads = options.threads
    if threads is not None and not (_is_number(threads, int) and 1 <= threads <= 1024):
        raise OptionError(
            must_be("threads", "a whole number from 1 to 1024 (in Python also None)", threads)
        )
    if not (_is_number(options.seed, int) and abs(options.seed) < 2**63):
        raise OptionError(must_be("seed", "an integer of 64 bits", options.seed))


def check_call(options: Options) -> None:
    """Wrong types of what is not kept with the plan."""
    if options.forward is not None and not callable(options.forward):
        allowed = "a function from an item of data to the model's arguments"
        raise OptionError(must_be("forward", allowed, options.forward))
    callback = options.callback
    if callback is not None and not (callable(callback) and takes_one(callback)):
        allowed = "a function that takes one argument, a subprune.plan.GroupPlan"
        raise OptionError(must_be("callback", allowed, options.callback))
    for name in ("cache", "checkpoint"):
        folder = getattr(options, name)
        if folder is not None and not isinstance(folder, str | Path):
            raise OptionError(must_be(name, "a folder", folder))
