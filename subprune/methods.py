"""Named methods: each is a preset of the four choices, one row of data.

A user's own ranking function becomes a method with ``@subprune.method("my-method")``, which is all
it takes to use it by name everywhere; or it is given itself, as ``method=my_function``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from typing import Any, TypeVar

from subprune.errors import OptionError, closest
from subprune.fit.fit import Fit
from subprune.fit.fits import FITS
from subprune.keywords import must_be, takes_one
from subprune.messages import Message
from subprune.select.contribution import Contribution
from subprune.select.fluctuation import Fluctuation
from subprune.select.forward_selection import GreedyLoss, GreedyPoolLoss
from subprune.select.independence import Independence
from subprune.select.input_change import Greedy
from subprune.select.scores import ActGrad, Random, WeightNorm
from subprune.select.selector import Answer, Function, Selector, View
from subprune.select.sensitivity import Sampling
from subprune.select.wanda import Wanda
from subprune.statistics.products import Asymmetric, Layer, Sequential
from subprune.statistics.residual import Residual
from subprune.statistics.target import Target

__all__ = ["METHODS", "Method", "as_method", "find_method", "of_function", "tuned"]

DEFAULT_FIT = "ridge"


@dataclass(frozen=True)
class Method:
    """A preset by name: a target, a selector, an allocator and a fit."""

    name: str
    target: Target
    selector: Selector
    summary: str = ""
    allocate: str | None = None  # its own allocator; None: the default
    _: KW_ONLY
    fit: Fit = field(default_factory=lambda: FITS[DEFAULT_FIT])
    drift: bool = False  # whether layers that lose no input are refitted, too


_ROWS = (
    Method(
        "auto",
        Residual(),
        Greedy(),
        "Every layer whose inputs changed is refitted to the dense model, where its output lands.",
        "output",
        fit=FITS["affine"],
        drift=True,
    ),
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
        "Greedy on the loss, as layer-greedy-fs, with batches drawn from a "
        "training set of its own.",
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
    Method(
        "wanda-sp",
        Sequential(),
        Wanda(),
        "|weight| × size of its input, summed over units; weights stay (Sun et al. 2024).",
        "uniform",
        fit=FITS["keep"],
    ),
    Method(
        "flap",
        Layer(),
        Fluctuation(),
        "Variance of inputs × squared weights, ranked over all layers; their means go into biases "
        "(An et al. 2024).",
        "score",
        fit=FITS["constant"],
    ),
    Method(
        "thinet",
        Sequential(),
        Contribution(),
        "Units go whose outputs, weights as they are, add up to least (Luo et al. 2017).",
        "uniform",
    ),
    Method(
        "chip",
        Sequential(),
        Independence(),
        "Units go whose maps the others can stand in for, by nuclear norms (Sui et al. 2021).",
        "uniform",
    ),
    Method("random", Sequential(), Random(), "Uniform scores, ranked over all layers.", "score"),
    Method("layer-random", Sequential(), Random(), "A uniform random order in every layer."),
)

METHODS: dict[str, Method] = {row.name: row for row in _ROWS}
"""By name, with those that were registered."""


def of_function(
    function: Callable[[View], Answer],
    name: str = "",
    *,
    target: Target | None = None,
    allocate: str | None = None,
    **needs: bool,
) -> Method:
    """A function that ranks the units of a group, as a method; `needs` are those of `Function`."""
    named = name or getattr(function, "__name__", type(function).__name__)
    summary = (function.__doc__ or "").strip().split("\n")[0]
    return Method(named, target or Sequential(), Function(function, **needs), summary, allocate)


def as_method(given: Any) -> Any:
    """The name of a method, one itself, or a ranking function as a method of its own name."""
    if not callable(given) or isinstance(given, type):
        return given
    if not takes_one(given):
        allowed = "a function that takes one argument, a subprune.View, and ranks units"
        raise OptionError(must_be("method", allowed, given))
    return of_function(given)


def find_method(name: str | Method | Callable[[View], Answer]) -> Method:
    """The method of that name; an unknown one is refused with the nearest known."""
    if isinstance(name, Method):
        return name
    if not isinstance(name, str):
        allowed = "a name that `subprune methods` lists, or a function that ranks units"
        raise OptionError(must_be("method", allowed, name))
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
    turned: dict[str, Any] = {n: value for n, value in knobs.items() if value is not None}
    known = [f.name for f in fields(part)]
    for name, value in turned.items():
        if name not in known:
            why = f"{{{name}=}} has no effect with {part.role} {part.name!r}; omit it"
            raise OptionError(Message(why, **{name: value}))
    return replace(part, **turned) if turned else part
