"""Named methods: each is a preset of the four choices, one row of data.

A user's own ranking function becomes a method with ``@subprune.method("my-method")``, which is all
it takes to use it by name everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

from subprune.budget.allocators import ALLOCATORS
from subprune.errors import OptionError, closest
from subprune.fit.fit import Fit
from subprune.fit.fits import FITS
from subprune.messages import Message
from subprune.select.forward_selection import GreedyLoss, GreedyPoolLoss
from subprune.select.input_change import Greedy
from subprune.select.scores import ActGrad, Random, WeightNorm
from subprune.select.selector import Answer, Function, Selector, View
from subprune.select.sensitivity import Sampling
from subprune.statistics.targets import TARGETS, Asymmetric, Layer, Sequential, Target

__all__ = ["METHODS", "Method", "find_method", "method", "tuned"]

DEFAULT_FIT = "ridge"


@dataclass(frozen=True)
class Method:
    """One row: a name for a target, a selector, an allocator and a fit."""

    name: str
    target: Target
    selector: Selector
    summary: str = ""
    allocate: str | None = None  # its own allocator; None: the default
    fit: Fit = field(default_factory=lambda: FITS[DEFAULT_FIT])


_ROWS = (
    Method(
        "layer-in-change",
        Layer(),
        Greedy(),
        "Greedy on the reweighted input change, every layer in the dense model on its own.",
    ),
    Method(
        "seq-in-change",
        Sequential(),
        Greedy(),
        "Greedy on the reweighted input change, on the activations of the model pruned so far.",
    ),
    Method(
        "asym-in-change",
        Asymmetric(),
        Greedy(),
        "Greedy on the reweighted input change of the model pruned so far, aiming at the dense "
        "model's values.",
    ),
    Method(
        "layer-greedy-fs",
        Sequential(),
        GreedyLoss(),
        "Greedy on the loss of one batch at a time, outgoing weights scaled (Ye et al. 2020).",
    ),
    Method(
        "layer-greedy-fs-fd",
        Sequential(),
        GreedyPoolLoss(),
        "Greedy on the loss, as layer-greedy-fs, with batches drawn from a training set of its own.",
    ),
    Method(
        "layer-sampling",
        Sequential(),
        Sampling(),
        "Units drawn in proportion to their sensitivity (Liebenwein et al. 2020).",
        "sampling",
    ),
    Method(
        "act-grad",
        Sequential(),
        ActGrad(unit_length=True),
        "|activation × gradient|, of length 1 in every layer, ranked over all layers "
        "(Molchanov et al. 2017).",
        "score",
    ),
    Method(
        "layer-act-grad",
        Sequential(),
        ActGrad(),
        "|activation × gradient|, every layer on its own.",
    ),
    Method(
        "weight-norm",
        Sequential(),
        WeightNorm(mean=True),
        "Mean size of a unit's outgoing weights, ranked over all layers (He et al. 2014).",
        "score",
    ),
    Method(
        "layer-weight-norm",
        Sequential(),
        WeightNorm(),
        "ℓ1 norm of a unit's outgoing weights, every layer on its own (Li et al. 2017).",
    ),
    Method("random", Sequential(), Random(), "Uniform scores, ranked over all layers.", "score"),
    Method("layer-random", Sequential(), Random(), "A uniform random order in every layer."),
)

METHODS: dict[str, Method] = {row.name: row for row in _ROWS}
"""By name, with those that were registered."""


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
        if not callable(function):
            raise OptionError(f"method {name!r} must be a function of a View, got {function!r:.80}")
        if name in METHODS:
            raise OptionError(f"there is a method named {name!r} already; choose another name")
        summary = (function.__doc__ or "").strip().split("\n")[0]
        selector = Function(function, labels=labels, pool=train_data, runs=runs)
        METHODS[name] = Method(name, target, selector, summary, allocate)
        return function

    return register


def _check_choice(name: str, option: str, value: object, allowed: Iterable[str]) -> None:
    names = list(allowed)
    if value not in names:
        near = closest(str(value), names)
        raise OptionError(
            f"method {name!r}: {option}={value!r}: {near}allowed are {', '.join(names)}"
        )


def find_method(name: str) -> Method:
    """The method of that name; an unknown one is refused with the nearest known."""
    if name not in METHODS:
        raise OptionError(
            Message(
                "unknown {method=}: {hint}allowed are {allowed}",
                method=name,
                hint=closest(name, METHODS),
                allowed=", ".join(sorted(METHODS)),
            )
        )
    return METHODS[name]


Part = TypeVar("Part", Target, Selector, Fit)


def tuned(part: Part, **knobs: object) -> Part:
    """The part with those of its knobs turned that were given; one that it lacks is refused."""
    given: dict[str, Any] = {n: value for n, value in knobs.items() if value is not None}
    known = [f.name for f in fields(part)]
    for name, value in given.items():
        if name not in known:
            why = f"{{{name}=}} has no effect with {part.role} {part.name!r}; omit it"
            raise OptionError(Message(why, **{name: value}))
    return replace(part, **given) if given else part
