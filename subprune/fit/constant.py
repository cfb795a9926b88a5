"""A constant makes up for the mean of what is gone: with fitted weights, or with the old ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, ClassVar

import torch

from subprune.fit.cross_fit import FOLDS
from subprune.fit.least_squares import LeastSquares
from subprune.statistics.arrival import factors

if TYPE_CHECKING:
    from subprune.fit.cross_fit import Fitted
    from subprune.fit.fit import Tensors, Work
    from subprune.structure.groups import Consumer

__all__ = ["Constant", "WithConstant"]


@dataclass(frozen=True)
class WithConstant(LeastSquares):
    """A fit whose constant goes into the bias: what removed units gave on average is not lost.

    The bias is the layer's own, or that of the norm that follows it; a layer without either is
    fitted without the constant.
    """

    norms: bool = True  # whether biases of norms take constants, or those of layers alone

    def without_norms(self) -> WithConstant:
        """With constants in biases of layers alone: the norms see to the means themselves."""
        return replace(self, norms=False)

    def has_constant(self, consumer: Consumer) -> bool:
        """Where there is a bias for it."""
        landing = consumer.landing
        if landing is None or landing.constant is None:
            return False
        return self.norms or not landing.before

    def write(
        self, work: Work, consumer: Consumer, models: Sequence[Tensors], fits: Sequence[Fitted]
    ) -> None:
        """Put new weights and biases into the model and its versions."""
        super().write(work, consumer, models, fits)
        if self.has_constant(consumer):
            _write_constants(work, consumer, models, fits)


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


def _write_constants(
    work: Work, consumer: Consumer, models: Sequence[Tensors], fits: Sequence[Fitted]
) -> None:
    """Put new biases into the model and its versions.

    The constant is added to the bias that goes with the target: the present one may have been
    fitted already, with another group that the layer reads.
    """
    landing = consumer.landing
    assert landing is not None
    assert landing.constant is not None
    name = landing.constant
    old = work.gathered.tensors.get(name, models[0][name])
    factor = factors(landing, models[0], landing.before)  # from the layer to that bias
    for i, tensors in enumerate(models):
        shifts = [f.shift if i == 0 else f.shifts[i - 1] for f in fits]
        change = torch.cat([s for s in shifts if s is not None])  # [outputs]
        change = change if factor is None else change * factor.to(change)
        tensors[name] = (old.double() + change.to(old.device)).to(old)
