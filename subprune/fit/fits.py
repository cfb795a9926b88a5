"""The fits there are, by the name that stands for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from subprune.fit.affine import Affine
from subprune.fit.constant import Constant
from subprune.fit.keep import Keep
from subprune.fit.least_squares import LeastSquares
from subprune.fit.ridge import Ridge

if TYPE_CHECKING:
    from subprune.fit.fit import Fit

__all__ = ["FITS"]

FITS: dict[str, Fit] = {
    fit.name: fit for fit in (Ridge(), Affine(), LeastSquares(), Constant(), Keep())
}
