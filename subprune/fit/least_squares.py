"""Least squares: the kept columns give what all of them gave, as nearly as they can."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from subprune.errors import OptionError
from subprune.fit.cross_fit import Fitted, cross_fit, together
from subprune.fit.fit import Figures, Fit, Tensors, Work, as_weight, matrices
from subprune.keywords import must_be

if TYPE_CHECKING:
    from subprune.statistics.folds import FoldedStatistics
    from subprune.statistics.place import Gathered
    from subprune.statistics.statistics import Statistics
    from subprune.structure.groups import Consumer, Group

__all__ = ["LeastSquares"]


@dataclass(frozen=True)
class LeastSquares(Fit):
    """New weights by least squares, for all inputs, and without each fold of them."""

    name: ClassVar[str] = "least-squares"
    folds: int | None = None  # parts of the inputs, each judged by a fit to the others; None: 1

    def __post_init__(self) -> None:
        folds = self.folds
        is_count = isinstance(folds, int) and not isinstance(folds, bool)
        if folds is not None and not (is_count and 1 <= folds <= 64):
            allowed = "a whole number from 1 (hold nothing out) to 64"
            raise OptionError(must_be("folds", allowed, folds))

    @property
    def parts(self) -> int:
        """By default all inputs are fitted at once."""
        return self.folds or 1

    @property
    def bounded(self) -> bool:
        return True

    def plain(self) -> Fit:
        """Without anything held out."""
        return replace(self, folds=None)

    def strengths(self) -> Sequence[float]:
        """The strengths of a ridge toward the old weights that are tried."""
        return (0.0,)

    def seen(self, group: Group, gathered: Gathered) -> tuple[Statistics, ...]:
        """Less the means, where a constant is fitted: it needs no unit."""
        if not gathered.statistics:
            return ()
        constant = [self.has_constant(c) for c in group.reweightable for _ in range(c.groups)]
        pairs = zip(gathered.statistics, constant, strict=True)
        return tuple(s.centred() if free else s for s, free in pairs)

    def apply(self, work: Work, models: Sequence[Tensors]) -> Figures:
        """Fit every consumer; nothing is fitted where all units stay as they were."""
        if len(work.kept) == work.group.n_units and not work.changed:
            return Figures()
        fits: list[Fitted] = []
        for consumer, blocks in work.blocks():
            old = matrices(consumer, models[0])
            own: list[Fitted] = []
            for (folded, whole), weight in zip(blocks, old, strict=True):
                number = len(fits) + len(own)
                strengths = work.ridge[number:][:1] or self.strengths()
                factors = work.factors.setdefault(number, {})
                constant = self.has_constant(consumer)
                judged = len(models) - 1
                more = {"intercept": constant, "factors": factors, "judged": judged or None}
                own.append(_block(folded, whole, work, weight, strengths, more))
            self.write(work, consumer, models, own)
            fits += own
        return together(fits)

    def has_constant(self, consumer: Consumer) -> bool:
        """Whether a constant column joins in, whose weights go into the layer's bias."""
        return False

    def write(
        self, work: Work, consumer: Consumer, models: Sequence[Tensors], fits: Sequence[Fitted]
    ) -> None:
        """Put new weights, one for each block, into the model and its versions."""
        for i, tensors in enumerate(models):
            new = [f.weight if i == 0 else f.versions[i - 1] for f in fits]
            tensors[consumer.use.weight] = as_weight(consumer, tensors, new)


def _block(
    folded: FoldedStatistics,
    whole: Statistics,
    work: Work,
    old: Tensor,
    strengths: Sequence[float],
    more: dict[str, Any],
) -> Fitted:
    """One block of a consumer; old: [d, m], its present weights; more: what `cross_fit` is told.

    Where no version of the model is kept, all folds say which fit is best.
    """
    more, scale, kept = {**more, "measured": work.measured}, folded.scale, work.kept
    if scale is None:
        return cross_fit(folded, whole, kept, old, strengths, **more)
    # Fitted as its errors are felt, and scaled back.
    felt = old.double() * scale.to(old.device)
    fitted = cross_fit(folded, whole, kept, felt, strengths, **more)
    return fitted.divided(scale, old, whole.columns(kept))
