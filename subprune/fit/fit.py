"""What a fit is: an object that gives the layers which read a group their new weights."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, TypeVar

import torch
from torch import Tensor

from subprune.fit.solver import relative_error
from subprune.statistics.consumers import consumer_weight, stored_weight

if TYPE_CHECKING:
    from subprune.fit.cross_fit import FoldFactors
    from subprune.statistics.folds import FoldedStatistics
    from subprune.statistics.place import Gathered
    from subprune.statistics.statistics import Statistics
    from subprune.structure.groups import Consumer, Group

__all__ = [
    "Figures",
    "Fit",
    "Tensors",
    "Work",
    "as_weight",
    "error_before",
    "matrices",
    "weight_growth",
]

Tensors = dict[str, Tensor]
"""Parameters and buffers of a model, by name."""

Item = TypeVar("Item")


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What was measured while the layers that read one group were fitted."""

    error: float = float("nan")  # relative input change left, on the inputs that were fitted
    held_out: float = float("nan")  # the same on inputs that were not fitted
    ridge: tuple[float, ...] = ()  # strength of the ridge of every fit
    growth: float = float("nan")  # the largest ‖new weights‖ / ‖old weights‖
    rows: int = 0  # the fewest rows that a fit had
    rank: int = 0  # independent columns among those kept, over all consumers
    columns: int = 0  # columns kept
    # what was done, one after another, and the error left after each, on inputs not fitted if any
    stages: tuple[tuple[str, float], ...] = ()

    @property
    def left(self) -> float:
        """The error on inputs that were not fitted, if there are any; else on those that were."""
        return self.error if math.isnan(self.held_out) else self.held_out


@dataclass(frozen=True, kw_only=True)
class Work:
    """One group whose kept units are known."""

    group: Group
    kept: tuple[int, ...]
    gathered: Gathered
    scale: Tensor | None = None  # [n_units], what a selector wants outgoing weights multiplied by
    changed: bool = False  # whether the units are no longer what they were: all may stay, then
    # Strengths of a ridge that were chosen before, block by block; empty: they are to be chosen.
    ridge: tuple[float, ...] = ()
    # Whether anybody looks at the errors that are left, or at the weights alone.
    measured: bool = True
    # By block: what solved for its columns, which other targets need again.
    factors: dict[int, FoldFactors] = field(default_factory=dict)

    def blocks(self) -> Iterator[tuple[Consumer, Sequence[tuple[FoldedStatistics, Statistics]]]]:
        """Every consumer with the statistics of its blocks, fold by fold and whole."""
        pairs = list(zip(self.gathered.blocks, self.gathered.statistics, strict=True))
        start = 0
        for consumer in self.group.reweightable if pairs else ():
            yield consumer, pairs[start : start + consumer.groups]
            start += consumer.groups


@dataclass(frozen=True)
class Fit(ABC):
    """Gives the consumers of a group their weights once the kept units are known."""

    role: ClassVar[str] = "fit"
    name: ClassVar[str]
    needs_statistics: ClassVar[bool] = True

    @property
    def parts(self) -> int:
        """Into how many folds the inputs are divided; 1: nothing is held out."""
        return 1

    @property
    def bounded(self) -> bool:
        """Whether the paper's bounds apply to what it leaves."""
        return False

    def seen(self, group: Group, gathered: Gathered) -> tuple[Statistics, ...]:
        """What a selection for this fit should look at: the statistics of what it can make."""
        return gathered.statistics

    @abstractmethod
    def apply(self, work: Work, models: Sequence[Tensors]) -> Figures:
        """Replace weights in `models`: the model itself, then its version fitted without each fold.

        Tensors are replaced in the dicts, never written into.
        """

    def plain(self) -> Fit:
        """The fit for quick looks at many budgets: nothing is held out."""
        return self

    def without_norms(self) -> Fit:
        """The fit for a model whose norms are re-estimated: it leaves their biases alone."""
        return self


def matrices(consumer: Consumer, tensors: Mapping[str, Tensor]) -> list[Tensor]:
    """A consumer's weight as one matrix [d, m] for each block."""
    return [w.flatten(1).T for w in consumer_weight(consumer, tensors).chunk(consumer.groups)]


def as_weight(
    consumer: Consumer, tensors: Mapping[str, Tensor], blocks: Sequence[Tensor]
) -> Tensor:
    """Matrices [d, m], one per block, as the consumer holds its weight."""
    old = tensors[consumer.use.weight]
    rows = torch.cat([block.T for block in blocks])  # [outputs, inputs / groups · taps]
    new = rows.reshape(consumer_weight(consumer, tensors).shape).to(old)
    return stored_weight(consumer, new)


def error_before(work: Work, tensors: Mapping[str, Tensor]) -> float:
    """The relative error with the present weights on the columns that stay; nan: nothing to see."""
    energy = residual = 0.0
    for consumer, blocks in work.blocks():
        for (folded, whole), old in zip(blocks, matrices(consumer, tensors), strict=True):
            columns = whole.columns(work.kept)
            weight = old.detach().to(whole.cross)[columns]
            if folded.scale is not None:
                weight = weight * folded.scale.to(weight)
            residual += relative_error(whole.part(columns), weight) * whole.energy
            energy += whole.energy
    return residual / energy if energy else float("nan")


def weight_growth(columns: Tensor, new: Tensor, old: Tensor) -> float:
    """‖new‖ / ‖old‖ on some columns [q] of weights [d, m]."""
    before = float(torch.linalg.vector_norm(old.to(new)[columns]))
    return float(torch.linalg.vector_norm(new[columns])) / before if before else float("nan")
