"""The fits there are, by the name that stands for them."""

from __future__ import annotations

from subprune.fit.fit import Fit
from subprune.fit.keep import Keep
from subprune.fit.least_squares import LeastSquares

__all__ = ["FITS"]

FITS: dict[str, Fit] = {fit.name: fit for fit in (LeastSquares(), Keep())}
