"""Layers that read the same inputs, one after another: sums over those are made once.

The projections q, k and v of an attention layer, say, or the two halves of a gated MLP.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from subprune.statistics.accumulation import Accumulator
    from subprune.statistics.runs import Run
    from subprune.structure.groups import Consumer

__all__ = ["SharedInputs"]


class SharedInputs:
    """What is known about the inputs of the last layer, for the next one, if it reads the same."""

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._sums: list[Accumulator] = []  # fold by fold
        self._inputs: list[Tensor] = []  # of every batch; held, so that no others take their place
        self._states: list[Any] = []
        self._counted: list[Tensor | None] = []
        self.factors: dict[int, Any] = {}  # what a fit made of these sums alone

    def known(self, consumer: Consumer, run: Run) -> bool:
        """Whether the layer, the next one of the run, reads what the last one has read.

        If not, what was known is forgotten.
        """
        inputs, counted = _read(consumer, run)
        same = (
            bool(self._sums)
            and [_state(x) for x in inputs] == self._states
            and all(_equal(a, b) for a, b in zip(counted, self._counted, strict=True))
        )
        if not same:
            self._forget()
        return same

    def note(self, consumer: Consumer, run: Run, sums: Sequence[Accumulator]) -> None:
        """Keep sums over the inputs of a layer, the next one of the run."""
        self._inputs, self._counted = _read(consumer, run)
        self._states = [_state(x) for x in self._inputs]
        self._sums, self.factors = list(sums), {}

    def with_targets(self, targets: Sequence[Accumulator]) -> list[Accumulator]:
        """The known sums with those of other targets, which were made without them."""
        return [sums.with_targets(new) for sums, new in zip(self._sums, targets, strict=True)]


def _read(consumer: Consumer, run: Run) -> tuple[list[Tensor], list[Tensor | None]]:
    """What a layer reads, batch by batch, and which rows count."""
    batches = range(len(run.envs))
    inputs = [run.argument(consumer.use.op, i) for i in batches]
    return inputs, [run.counted_rows(consumer, i) for i in batches]


def _state(x: Tensor) -> tuple[Any, ...]:
    """Changes when the tensor is another one, or was written into."""
    return x.data_ptr(), x._version, x.dtype, tuple(x.shape), x.stride()


def _equal(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return torch.equal(a.reshape(-1), b.reshape(-1))
