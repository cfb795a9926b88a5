"""The fit that fits nothing: the old weights stay, or are scaled as the selector says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from subprune.fit.fit import Figures, Fit, Tensors, Work, matrices
from subprune.fit.solver import relative_error, unfitted
from subprune.statistics.consumers import scale_units

__all__ = ["Keep"]


@dataclass(frozen=True)
class Keep(Fit):
    """Remaining weights stay as they are."""

    name: ClassVar[str] = "keep"
    needs_statistics: ClassVar[bool] = False

    def apply(self, work: Work, models: Sequence[Tensors]) -> Figures:
        """Scale where the selector asks for it; measure where statistics are there anyway."""
        if work.scale is not None:
            for tensors in models:
                for consumer in work.group.reweightable:
                    scale_units(consumer, tensors, work.scale)
        return Figures(error=_error(work, models[0])) if work.gathered.blocks else Figures()


def _error(work: Work, tensors: Tensors) -> float:
    """The relative input change with these weights on the kept columns."""
    residual = total = 0.0
    for consumer, blocks in work.blocks():
        for (_, whole), weight in zip(blocks, matrices(consumer, tensors), strict=True):
            residual += relative_error(whole, unfitted(whole, work.kept, weight)) * whole.energy
            total += whole.energy
    return residual / total if total else 0.0
