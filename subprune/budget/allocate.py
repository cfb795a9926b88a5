"""The budget rules by name: each turns a demand into ``{group: k}``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from subprune.budget.accuracy import accuracy_curves, equal_accuracy
from subprune.budget.balanced import by_balance
from subprune.budget.cache import Cache
from subprune.budget.rules import by_error, by_knapsack, equal_fractions, explicit, fraction
from subprune.budget.sampling import by_sampling
from subprune.budget.scores import by_score, top_fraction
from subprune.budget.target import Counts, Rounding, Target, amount
from subprune.loop.ranking import comparable_scores, curves, sensitivities
from subprune.messages import Message
from subprune.select.greedy import KeepOrder
from subprune.select.registry import Method
from subprune.statistics.calibrate import Calibration
from subprune.structure import Group
from subprune.structure.cost import CostModel

__all__ = ["LATENCY_STEPS", "RULES", "Demand", "allocate"]

LATENCY_STEPS = 9  # models that are cut and timed for a latency, if every guess is right


@dataclass
class Demand:
    """What is asked for, and everything a rule may look at."""

    calibration: Calibration
    groups: Sequence[Group]
    method: Method
    rounding: Rounding = field(default_factory=Rounding)
    reweight: bool = True
    budgets: Mapping[str, int] | None = None
    keep: float | None = None
    compression: float | None = None
    speedup: float | None = None
    choices: dict[str, Any] = field(default_factory=dict)  # of `walk.rankers`
    verification: Calibration | None = None  # None: the calibration data
    cache: Path | None = None  # folder for accuracy curves
    tick: Callable[[str, Group], None] = lambda stage, group: None
    say: Callable[[str], None] = lambda text: None  # a step that is about no single group begins
    params: str | float | None = None  # "50%", or a number
    flops: str | float | None = None  # "50%", or a number for one input

    @cached_property
    def cost(self) -> CostModel:
        return CostModel(self.calibration.model, self.calibration.structure)

    @cached_property
    def error_curves(self) -> dict[str, KeepOrder]:
        """Keep orders and error curves of all groups on the dense model."""
        return curves(self.calibration, self.groups, self.method, **{**self.looks, "epsilon": None})

    @cached_property
    def typical_curves(self) -> dict[str, KeepOrder]:
        """The same, but that no row of data counts for much more than a typical one."""
        choices = {**self.looks, "epsilon": None, "clip": _CLIP}
        return curves(self.calibration, self.groups, self.method, **choices)

    @cached_property
    def target(self) -> Target:
        if self.compression is not None:
            limit = int(self.cost.params({}) / self.compression)
            return Target("params", limit, Message("{compression=}", compression=self.compression))
        if self.params is not None:
            limit = int(amount("params", self.params, self.cost.params({})))
            return Target("params", limit, Message("{params=}", params=self.params))
        inputs = self.calibration.batches[0].size
        if self.flops is not None:
            limit = int(amount("flops", self.flops, self.cost.flops({}) / inputs) * inputs)
            return Target("flops", limit, Message("{flops=}", flops=self.flops), inputs)
        ratio = self.speedup or 1.0
        return Target(
            "flops", int(self.cost.flops({}) / ratio), Message("{speedup=}", speedup=ratio), inputs
        )

    def counts(self, name: str) -> Counts:
        """Units to keep in every group, by the rule of that name."""
        self.check()
        return allocate(self, name)

    def check(self) -> None:
        """Refuse a target that no budget meets, before anything is computed."""
        if self.budgets is None and self.keep is None:
            self.target.check(
                self.cost, {g.name: self.rounding.of(g).least(g.n_units) for g in self.groups}
            )

    def steps(self, rule: str, latency: object = None) -> int:
        """How many steps of progress the rule takes: one look at every group, where it needs any."""
        looks = (
            rule != "uniform" and self.budgets is None and (self.keep is None or rule == "score")
        )
        return (len(self.groups) if looks else 0) + (0 if latency is None else LATENCY_STEPS)

    @property
    def looks(self) -> dict[str, Any]:
        """Arguments for one look at all groups of the dense model."""
        return {**self.choices, "tick": self.tick}


_CLIP = 10.0  # times the median energy that a row of data counts with at most

RULES: dict[str, Callable[[Demand], Counts]] = {}


def rule(name: str) -> Callable[[Callable[[Demand], Counts]], Callable[[Demand], Counts]]:
    def register(function: Callable[[Demand], Counts]) -> Callable[[Demand], Counts]:
        RULES[name] = function
        return function

    return register


def allocate(demand: Demand, name: str) -> Counts:
    """Units to keep in every group: explicit budgets, a fraction of each group, or by the rule of
    that name.
    """
    if demand.budgets is not None:
        return explicit(demand.groups, demand.budgets, demand.rounding)
    if demand.keep is not None and name != "score":
        return fraction(demand.groups, demand.keep, demand.rounding)
    return RULES[name](demand)


@rule("uniform")
def _uniform(d: Demand) -> Counts:
    """The same fraction of units in every layer."""
    return equal_fractions(d.groups, d.cost, d.target, d.rounding)


@rule("error")
def _error(d: Demand) -> Counts:
    """The same reweighted input change in every layer."""
    return by_error(d.groups, d.error_curves, d.cost, d.target, d.rounding)


@rule("knapsack")
def _knapsack(d: Demand) -> Counts:
    """The smallest sum of all layers' reweighted input changes."""
    return by_knapsack(d.groups, d.error_curves, d.cost, d.target, d.rounding)


@rule("balanced")
def _balanced(d: Demand) -> Counts:
    """Between knapsack and uniform: the geometric mean of both, no layer far below its even share."""
    return by_balance(d.groups, d.typical_curves, d.cost, d.target, d.rounding)


@rule("score")
def _score(d: Demand) -> Counts:
    """One ranking over all layers; for methods with scores that compare: act-grad, weight-norm,
    random.
    """
    scores = comparable_scores(d.calibration, d.groups, d.method, **d.looks)
    if d.keep is not None:
        return top_fraction(d.groups, scores, d.keep, d.rounding)
    return by_score(d.groups, scores, d.cost, d.target, d.rounding)


@rule("sampling")
def _sampling(d: Demand) -> Counts:
    """The expected number of different units in a sample of sensitivity sampling."""
    own = sensitivities(d.calibration, d.groups, d.method, **d.looks)
    return by_sampling(d.groups, own, d.cost, d.target, d.rounding)


@rule("equal-accuracy")
def _equal_accuracy(d: Demand) -> Counts:
    """The same drop in accuracy for every layer pruned alone; needs verification data with labels."""
    return _by_accuracy(d, labels=True)


@rule("equal-agreement")
def _equal_agreement(d: Demand) -> Counts:
    """The same drop in agreement with the dense model for every layer pruned alone; needs no
    labels.
    """
    return _by_accuracy(d, labels=False)


def _by_accuracy(d: Demand, labels: bool) -> Counts:
    verification = d.verification or d.calibration
    cache = None
    if d.cache is not None:
        plain = {k: v for k, v in d.choices.items() if k != "train_data"}
        key = (
            d.method.name,
            d.reweight,
            labels,
            [g.name for g in d.groups],
            sorted(plain.items(), key=str),
        )
        pool = d.choices.get("train_data")
        cache = Cache(d.cache, *key, d.calibration, verification, *([] if pool is None else [pool]))
    found = accuracy_curves(
        d.calibration,
        verification,
        d.groups,
        d.method,
        reweight=d.reweight,
        labels=labels,
        cache=cache,
        **d.looks,
    )
    return equal_accuracy(d.groups, found, d.cost, d.target, d.rounding)
