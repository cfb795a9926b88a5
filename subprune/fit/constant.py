"""The old weights stay; a constant makes up for the mean of what is gone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, ClassVar

from subprune.fit.affine import has_place, write_constants
from subprune.fit.cross_fit import FOLDS
from subprune.fit.least_squares import LeastSquares

if TYPE_CHECKING:
    from subprune.fit.cross_fit import Fitted
    from subprune.fit.fit import Tensors, Work
    from subprune.structure.groups import Consumer

__all__ = ["Constant"]


@dataclass(frozen=True)
class Constant(LeastSquares):
    """Weights stay as they are; what removed units gave on average goes into the bias.

    The bias compensation of FLAP (An et al. 2024, arXiv 2312.11983). A layer without a bias, and
    without a norm with one after it, is left as it is.
    """

    name: ClassVar[str] = "constant"
    norms: bool = True  # whether biases of norms take constants, or those of layers alone

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

    def without_norms(self) -> Constant:
        """With constants in biases of layers alone: the norms see to the means themselves."""
        return replace(self, norms=False)

    def strengths(self) -> Sequence[float]:
        """A ridge that holds the weights where they are."""
        return (inf,)

    def has_constant(self, consumer: Consumer) -> bool:
        """Where there is a bias for it."""
        return has_place(consumer, self.norms)

    def write(
        self, work: Work, consumer: Consumer, models: Sequence[Tensors], fits: Sequence[Fitted]
    ) -> None:
        """Put the biases into the model and its versions; removed columns become zero."""
        super().write(work, consumer, models, fits)
        if self.has_constant(consumer):
            write_constants(work, consumer, models, fits)
