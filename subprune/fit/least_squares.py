"""Least squares: the kept columns give what all of them gave, as nearly as they can."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import ClassVar

from torch import Tensor

from subprune.errors import OptionError
from subprune.fit.cross_fit import FOLDS, STRENGTHS, Fitted, cross_fit, together
from subprune.fit.fit import Figures, Fit, Tensors, Work, as_weight, matrices
from subprune.statistics.folds import FoldedStatistics
from subprune.statistics.statistics import Statistics
from subprune.structure import Consumer

__all__ = ["LeastSquares"]


@dataclass(frozen=True)
class LeastSquares(Fit):
    """New weights by least squares, for all inputs, and without each fold of them."""

    name: ClassVar[str] = "least-squares"
    # Strength that draws new weights toward the old ones; None chooses it on held-out inputs.
    ridge: float | None = None
    folds: int | None = None  # None: 4, or 1 for the plain fit

    def __post_init__(self) -> None:
        ridge, folds = self.ridge, self.folds
        if ridge is not None and (
            isinstance(ridge, bool) or not isinstance(ridge, int | float) or not 0 <= ridge < inf
        ):
            raise OptionError(
                "ridge must be None, which chooses it, or a number of at least 0 (0.01 is strong), "
                f"got {ridge!r}"
            )
        check_folds(folds)

    @property
    def parts(self) -> int:
        """The plain fit sees all inputs at once."""
        if self.folds is not None:
            return self.folds
        return 1 if self.ridge == 0 else FOLDS

    @property
    def bounded(self) -> bool:
        return True

    def plain(self) -> Fit:
        """Without a ridge and folds."""
        return LeastSquares(ridge=0.0, folds=1)

    def strengths(self) -> Sequence[float]:
        """The strengths of the ridge that are tried."""
        return STRENGTHS if self.ridge is None else (float(self.ridge),)

    def apply(self, work: Work, models: Sequence[Tensors]) -> Figures:
        """Fit every consumer; nothing is fitted where all units stay."""
        if len(work.kept) == work.group.n_units:
            return Figures()
        fits: list[Fitted] = []
        for consumer, blocks in work.blocks():
            old = matrices(consumer, models[0])
            own = [
                self.block(folded, whole, work.kept, weight)
                for (folded, whole), weight in zip(blocks, old, strict=True)
            ]
            self.write(consumer, models, own)
            fits += own
        return together(fits)

    def block(
        self, folded: FoldedStatistics, whole: Statistics, kept: Sequence[int], old: Tensor
    ) -> Fitted:
        """One block of a consumer; old: [d, m], its present weights."""
        return cross_fit(folded, whole, kept, old, self.strengths())

    def write(self, consumer: Consumer, models: Sequence[Tensors], fits: Sequence[Fitted]) -> None:
        """Put new weights, one for each block, into the model and its versions."""
        for i, tensors in enumerate(models):
            new = [f.weight if i == 0 else f.versions[i - 1] for f in fits]
            tensors[consumer.use.weight] = as_weight(consumer, tensors, new)


def check_folds(folds: object) -> None:
    """Refuse what is not a number of folds."""
    if folds is not None and (
        isinstance(folds, bool) or not isinstance(folds, int) or not 1 <= folds <= 64
    ):
        raise OptionError(
            f"folds must be a whole number from 1 (hold nothing out) to 64, got {folds!r}"
        )
