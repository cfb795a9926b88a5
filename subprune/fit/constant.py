"""The old weights stay; a constant makes up for the mean of what is gone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import ClassVar

from subprune.fit.affine import WithConstant
from subprune.fit.cross_fit import FOLDS

__all__ = ["Constant"]


@dataclass(frozen=True)
class Constant(WithConstant):
    """Weights stay as they are; what removed units gave on average goes into the bias.

    The bias compensation of FLAP (An et al. 2024, arXiv 2312.11983). A layer without a bias, and
    without a norm with one after it, is left as it is.
    """

    name: ClassVar[str] = "constant"

    @property
    def parts(self) -> int:
        """Constants are fitted, so that inputs are held out to judge them."""
        return FOLDS if self.folds is None else self.folds

    @property
    def bounded(self) -> bool:
        """The bounds are about least squares."""
        return False

    def plain(self) -> Constant:
        """Without anything held out."""
        return replace(self, folds=1)

    def strengths(self) -> Sequence[float]:
        """A ridge that holds the weights where they are."""
        return (inf,)
