"""Weights and bias fitted together, where there is a place for a constant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import torch

from subprune.fit.ridge import Ridge
from subprune.statistics.arrival import factors

if TYPE_CHECKING:
    from subprune.fit.cross_fit import Fitted
    from subprune.fit.fit import Tensors, Work
    from subprune.structure.groups import Consumer

__all__ = ["Affine", "has_place", "write_constants"]


@dataclass(frozen=True)
class Affine(Ridge):
    """Least squares with a ridge, and a constant that goes into the bias.

    What removed units gave on average is then not lost. The bias is the layer's own, or that of the
    norm that follows it; a layer without either is fitted without the constant.
    """

    name: ClassVar[str] = "affine"
    norms: bool = True  # whether biases of norms take constants, or those of layers alone

    def without_norms(self) -> Affine:
        """With constants in biases of layers alone: the norms see to the means themselves."""
        return replace(self, norms=False)

    def has_constant(self, consumer: Consumer) -> bool:
        """Where there is a bias for it."""
        return has_place(consumer, self.norms)

    def write(
        self, work: Work, consumer: Consumer, models: Sequence[Tensors], fits: Sequence[Fitted]
    ) -> None:
        """Put new weights and biases into the model and its versions."""
        super().write(work, consumer, models, fits)
        if self.has_constant(consumer):
            write_constants(work, consumer, models, fits)


def has_place(consumer: Consumer, norms: bool) -> bool:
    """Whether there is a bias that takes a constant: the layer's own, or with `norms` that of the
    norm that follows it.
    """
    landing = consumer.landing
    if landing is None or landing.constant is None:
        return False
    return norms or not landing.before


def write_constants(
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
