"""Statistics of one layer, fold by fold, so that a fit can be judged on inputs it has not seen.

The calibration inputs are divided into folds. Sums of products add up, so the statistics of all
inputs, of all but one fold, and of one fold alone come from the same single pass:

    G = Σ_f G_f        fit without fold f: G − G_f        judged on: G_f
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from subprune.program.ranks import ALONE, Ranks
from subprune.statistics.accumulation import Accumulator

if TYPE_CHECKING:
    from subprune.statistics.statistics import Statistics

__all__ = ["FoldedStatistics"]


class FoldedStatistics:
    """One block of a consumer's columns: d columns, m outputs.

    parts: the sums over each fold. weight: None where the target was seen with the
    rows; otherwise [d, m], and the target is ``Y = B·W``. gone: [d] bool, columns
    that were removed with other groups before. scale: [m], what the targets are multiplied by: the
    weights that are fitted to them are, too. ranks: those who have the same sums, and may share
    what is made of them. columns: [q], those that statistics are wanted of; None: all.
    """

    def __init__(
        self,
        parts: Sequence[Accumulator],
        weight: Tensor | None = None,
        gone: Tensor | None = None,
        *,
        scale: Tensor | None = None,
        ranks: Ranks = ALONE,
        columns: Tensor | None = None,
    ) -> None:
        self.parts, self.gone, self.scale, self._columns = parts, gone, scale, columns
        self.ranks = ranks
        self.weight = weight
        if weight is not None and scale is not None:
            self.weight = weight.double() * scale.to(weight.device)

    def with_targets(
        self, parts: Sequence[Accumulator], columns: Tensor | None = None
    ) -> FoldedStatistics:
        """The same columns with other targets: parts hold the sums with these.

        columns: [q], those that the parts are about; None: all.
        """
        pairs = zip(self.parts, parts, strict=True)
        moved = [old.with_targets(new, columns) for old, new in pairs]
        return FoldedStatistics(moved, gone=self.gone, scale=self.scale, ranks=self.ranks)

    def part(self, columns: Tensor) -> FoldedStatistics:
        """The same of some columns [q] only; the targets stay."""
        if len(columns) == self.parts[0].d:
            return self
        if self.weight is not None:  # it makes the targets of all columns
            return FoldedStatistics(
                self.parts, self.weight, self.gone, ranks=self.ranks, columns=columns
            )
        own = [part.part(columns) for part in self.parts]
        gone = None if self.gone is None else self.gone[columns]
        return FoldedStatistics(own, gone=gone, scale=self.scale, ranks=self.ranks)

    @property
    def folds(self) -> int:
        """How many parts there are; with one, nothing can be held out."""
        return len(self.parts)

    @property
    def bytes(self) -> int:
        """Memory that the parts hold."""
        return sum(part.bytes for part in self.parts)

    def whole(self) -> Statistics:
        """The statistics of all inputs."""
        return self._statistics(self.parts)

    def without(self, fold: int) -> Statistics:
        """The statistics of all inputs but those of one fold."""
        return self._statistics([p for f, p in enumerate(self.parts) if f != fold])

    def only(self, fold: int) -> Statistics:
        """The statistics of one fold."""
        return self._statistics([self.parts[fold]])

    def _statistics(self, parts: Sequence[Accumulator]) -> Statistics:
        total = Accumulator.merged(parts)
        result = total.result() if self.weight is None else total.result_for_weight(self.weight)
        result = result if self.gone is None else result.without(self.gone)
        return result if self._columns is None else result.part(self._columns)
