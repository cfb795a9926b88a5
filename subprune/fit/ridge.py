"""Least squares drawn toward the old weights, by a strength that held-out inputs choose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import ClassVar

from subprune.errors import OptionError
from subprune.fit.cross_fit import FOLDS, STRENGTHS
from subprune.fit.least_squares import LeastSquares
from subprune.keywords import must_be

__all__ = ["Ridge"]


@dataclass(frozen=True)
class Ridge(LeastSquares):
    """Least squares with a ridge toward the old weights."""

    name: ClassVar[str] = "ridge"
    # Relative to the mean energy of a kept column; None chooses it on held-out inputs.
    ridge: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        ridge = self.ridge
        is_number = isinstance(ridge, int | float) and not isinstance(ridge, bool)
        if ridge is not None and not (is_number and 0 <= ridge < inf):
            allowed = "a number of at least 0 (0.01 is strong); without it one is chosen"
            raise OptionError(must_be("ridge", allowed, ridge))
        if ridge is not None:
            object.__setattr__(self, "ridge", float(ridge))

    @property
    def parts(self) -> int:
        """Without a ridge nothing is chosen, and all inputs are fitted at once."""
        if self.folds is not None:
            return self.folds
        return 1 if self.ridge == 0 else FOLDS

    def plain(self) -> Ridge:
        """With the strength given, or none: nothing is held out that could choose it."""
        return replace(self, ridge=self.ridge or 0.0, folds=1)

    def strengths(self) -> Sequence[float]:
        """All that are tried, or the one given; an infinite one keeps the old weights.

        Where held-out inputs say that no fit is better than those, none is made.
        """
        return (*STRENGTHS, inf) if self.ridge is None else (float(self.ridge),)
