"""Greedy selection on the reweighted input change: the paper's method, on any target."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import ClassVar

from subprune.errors import OptionError
from subprune.keywords import must_be
from subprune.select.greedy import greedy, stochastic_greedy
from subprune.select.selector import Ranking, Selector, View
from subprune.statistics.shrinkage import shrunk

__all__ = ["Greedy"]


@dataclass(frozen=True)
class Greedy(Selector):
    """Each time the unit with the largest gain, of all, or of a random part of those left."""

    name: ClassVar[str] = "greedy"
    # between 0 and 1: stochastic greedy, which looks at ⌈n/k·log(1/ε)⌉ units at every step
    epsilon: float | None = None
    # Whether correlations are shrunk where a layer has few rows for its columns, so that they do
    # not seem to stand in for each other; decides the budgets of such a layer, too.
    shrink: bool = False

    def __post_init__(self) -> None:
        epsilon = self.epsilon
        if epsilon is not None and not (isinstance(epsilon, int | float) and 0 < epsilon < 1):
            allowed = "a number between 0 and 1, for stochastic greedy"
            raise OptionError(must_be("epsilon", allowed, epsilon))

    def __repr__(self) -> str:
        """The call that makes it again: what is not as usual."""
        given = {f: getattr(self, f.name) for f in fields(self)}
        words = [f"{f.name}={value!r}" for f, value in given.items() if value != f.default]
        return f"{type(self).__name__}({', '.join(words)})"

    @property
    def nested(self) -> bool:
        """Random parts depend on the budget."""
        return self.epsilon is None

    @property
    def bounded(self) -> bool:
        """The paper's theorems are about plain greedy, on what was seen."""
        return self.epsilon is None and not self.shrink

    def whole(self) -> Greedy:
        """Plain greedy, whose order serves every budget."""
        return replace(self, epsilon=None)

    def rank(self, view: View) -> Ranking:
        """The keep order with its error curve."""
        statistics = view.statistics
        if self.shrink:
            statistics = tuple(shrunk(s) for s in statistics)
        if self.epsilon is None:
            curve = greedy(statistics, view.n_units)
        else:
            k = view.k or view.n_units
            curve = stochastic_greedy(statistics, view.n_units, k, self.epsilon, view.generator)
        return Ranking(curve.order, curve=curve)
