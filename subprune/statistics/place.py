"""Where both runs stand before a group is looked at, and what is gathered there."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from subprune.statistics.accumulation import Accumulator
    from subprune.statistics.folds import FoldedStatistics
    from subprune.statistics.runs import Run
    from subprune.statistics.shared import SharedInputs
    from subprune.statistics.statistics import Statistics
    from subprune.structure.groups import Consumer, Group

__all__ = ["Gathered", "Place", "generator"]


def generator(seed: int, *purpose: str) -> torch.Generator:
    """Random numbers that depend on the seed and the purpose only, not on what was drawn before."""
    return torch.Generator().manual_seed(zlib.crc32(repr((seed, *purpose)).encode()))


@dataclass(frozen=True, kw_only=True)
class Place:
    """Both runs just before the first layer that reads a group. They belong to the place alone."""

    group: Group
    current: Run  # of the model pruned so far, or of the dense one where only that is looked at
    dense: Run
    # By operation: which inputs of a consumer belonged to units of other groups, removed before.
    removed: Mapping[int, Tensor] = field(default_factory=dict)
    # The current run before the first operation that sees how many units there are, if any does.
    start: Run | None = None
    seed: int = 0
    # By value: what errors of each of its channels count with, where that was measured.
    metric: Mapping[int, Tensor] | None = None
    # By operation of a consumer: what it is to give, batch by batch, where that is known already.
    aims: Mapping[int, Sequence[Tensor]] = field(default_factory=dict)
    # What layers before this one, the only one, have found out about inputs that it may share.
    inputs: SharedInputs | None = None


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """The statistics of a group's reweightable consumers, block by block."""

    blocks: tuple[FoldedStatistics, ...] = ()  # fold by fold
    statistics: tuple[Statistics, ...] = ()  # of all inputs
    # Of the model whose layers give the target: what these add to the product, their bias,
    # belongs to it. Empty: of the model pruned so far.
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    # The dense run past the consumers, where the target made it go there.
    passed: Run | None = None
    # By operation of a consumer: what it is to give, batch by batch, where that may move.
    aims: Mapping[int, Sequence[Tensor]] = field(default_factory=dict)
    # By block: what fits to the same inputs have solved with; more may be added.
    factors: dict[int, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, blocks: Sequence[FoldedStatistics], **rest: Any) -> Gathered:
        """With the statistics of all inputs."""
        whole = tuple(block.whole() for block in blocks)
        return cls(blocks=tuple(blocks), statistics=whole, **rest)

    def with_targets(
        self,
        consumers: Sequence[Consumer],
        new: Mapping[int, Sequence[Sequence[Accumulator]]],
        columns: Mapping[int, Tensor],
    ) -> Gathered:
        """The same with other targets of some consumers, by operation: [folds][blocks].

        columns: by operation, those [q] whose products with the targets are known; all of layers
        with several blocks.
        """
        blocks: list[FoldedStatistics] = []
        for consumer in consumers:
            of_consumer = self.blocks[len(blocks) : len(blocks) + consumer.groups]
            parts = new.get(consumer.use.op)
            if parts is not None:
                which = columns[consumer.use.op] if consumer.groups == 1 else None
                of_consumer = tuple(
                    block.with_targets([fold[i] for fold in parts], which)
                    for i, block in enumerate(of_consumer)
                )
            blocks += of_consumer
        return Gathered.of(blocks, tensors=self.tensors, passed=self.passed, aims=self.aims)

    @property
    def bytes(self) -> int:
        """Memory of the Gram matrices, the largest part."""
        return sum(s.gram.nbytes for s in self.statistics)
