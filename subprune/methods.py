"""Named methods: each is a preset of the parts, found in one registry.

A method ranks the units of one group. It is a function that takes a `Ranker` context and returns the units,
best first (a `KeepOrder` if it also knows the error curve). Registering one in a user's own file is all it
takes to use it by name everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from subprune.calibrate import Run, consumer_weight, group_statistics
from subprune.errors import OptionError, closest
from subprune.greedy import KeepOrder, greedy, stochastic_greedy
from subprune.statistics import Statistics
from subprune.structure import Group

__all__ = ["METHODS", "Method", "Ranker", "find_method", "method"]


@dataclass
class Ranker:
    """Everything a method may look at when it ranks the units of one group; all of it is lazy."""

    group: Group
    form: str
    current: Run  # of the model pruned so far, just before the group's first consumer
    dense: Run  # of the dense model, at the same place
    generator: torch.Generator
    k: int | None = None  # units that will be kept, None if not yet known
    epsilon: float | None = None  # of stochastic greedy, None for the plain one
    labels: Sequence[Tensor] = field(default_factory=list)

    @property
    def n_units(self) -> int:
        return self.group.n_units

    @cached_property
    def statistics(self) -> list[Statistics]:
        """G, C, t of every consumer, in the method's form."""
        return group_statistics(self.group, self.form, self.current, self.dense)

    def weights(self) -> list[Tensor]:
        """Weights of the consumers as [outputs, inputs, kernel positions]."""
        found = [consumer_weight(c, self.current.tensors) for c in self.group.consumers]
        return [w.reshape(w.shape[0], w.shape[1], -1) for w in found]


Order = Callable[[Ranker], "KeepOrder | Sequence[int]"]


@dataclass(frozen=True)
class Method:
    """A preset: who ranks, in which form statistics are taken, and what is needed."""

    name: str
    order: Order
    form: str = "sequential"  # of the statistics used for ranking and reweighting
    needs_labels: bool = False
    summary: str = ""


METHODS: dict[str, Method] = {}


def method(name: str, *, form: str = "sequential", needs_labels: bool = False) -> Callable[[Order], Order]:
    """Register a ranking function as a method: ``@subprune.method("my-method")``."""

    def register(order: Order) -> Order:
        if name in METHODS:
            raise OptionError(f"there is a method named {name!r} already; choose another name")
        summary = (order.__doc__ or "").strip().split("\n")[0]
        METHODS[name] = Method(name, order, form, needs_labels, summary)
        return order

    return register


def find_method(name: str) -> Method:
    """The method of that name; an unknown one is refused with the nearest known."""
    if name not in METHODS:
        raise OptionError(f"unknown method {name!r}: {closest(name, METHODS)}allowed are {', '.join(sorted(METHODS))}")
    return METHODS[name]


def _input_change(ranker: Ranker) -> KeepOrder:
    if ranker.epsilon is not None:
        k = ranker.k or ranker.n_units
        return stochastic_greedy(ranker.statistics, ranker.n_units, k, ranker.epsilon, ranker.generator)
    return greedy(ranker.statistics, ranker.n_units)


@method("layer-in-change", form="layer")
def layer_in_change(ranker: Ranker) -> KeepOrder:
    """Greedy on the reweighted input change, every layer on its own."""
    return _input_change(ranker)


@method("seq-in-change", form="sequential")
def seq_in_change(ranker: Ranker) -> KeepOrder:
    """The same on the activations of the model pruned so far."""
    return _input_change(ranker)


@method("asym-in-change", form="asymmetric")
def asym_in_change(ranker: Ranker) -> KeepOrder:
    """The same, aiming at what the dense model's layers received."""
    return _input_change(ranker)
