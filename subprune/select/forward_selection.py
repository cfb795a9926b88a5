"""Greedy forward selection on the loss (Ye et al. 2020), as the paper compares with it.

A layer starts with all its units off. At each step one batch is drawn, every remaining unit is
tried on it, and the one with the smallest cross-entropy stays; with t + 1 units on, their outgoing
weights are scaled by n / (t + 1). No unit is taken twice. What lies before the layer that reads the
units is never run again, and of that layer only the part of the unit on trial: its output is linear
in the units.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from subprune.cutting.masking import keep_mask, overrides, zero
from subprune.data.tokens import counted_labels
from subprune.program.ops import argument, replaced
from subprune.program.precision import single
from subprune.select.scores import label_loss
from subprune.select.selector import Ranking, Selector, View
from subprune.statistics.consumers import scale_units

if TYPE_CHECKING:
    from subprune.program.program import Op, Override, Program
    from subprune.statistics.calibration import Calibration
    from subprune.statistics.runs import Run
    from subprune.structure.groups import Consumer, Group

__all__ = ["GreedyLoss", "GreedyPoolLoss", "greedy_loss"]

TOGETHER = 2**22  # numbers in the outputs of units tried together


@dataclass(frozen=True)
class GreedyLoss(Selector):
    """Each time the unit with the smallest loss on a batch of the calibration inputs."""

    name: ClassVar[str] = "greedy-loss"
    needs_labels: ClassVar[bool] = True
    needs_runs: ClassVar[bool] = True
    needs_statistics: ClassVar[bool] = False

    def rank(self, view: View) -> Ranking:
        """In the order they were added."""
        return greedy_loss(view)


@dataclass(frozen=True)
class GreedyPoolLoss(Selector):
    """The same on batches drawn from a training set of its own."""

    name: ClassVar[str] = "greedy-pool-loss"
    needs_pool: ClassVar[bool] = True
    needs_runs: ClassVar[bool] = True
    needs_statistics: ClassVar[bool] = False

    def rank(self, view: View) -> Ranking:
        """In the order they were added."""
        return greedy_loss(view, view.setting.pool)


def greedy_loss(view: View, pool: Calibration | None = None) -> Ranking:
    """The units in the order they were added; batches are drawn from `pool`, or from the
    calibration data.
    """
    n = view.n_units
    source = pool or view.setting.calibration
    run = view.start
    kept: list[int] = []
    while len(kept) < (n if view.k is None else view.k):
        number = int(torch.randint(len(source.batches), (1,), generator=view.generator))
        trial = _batch_trial(run, view.group, source, number, fresh=pool is not None)
        candidates = [u for u in range(n) if u not in kept]
        losses = (
            trial.losses(kept, candidates)
            if not view.group.narrowings
            else trial.masked_losses(kept, candidates)
        )
        kept.append(candidates[_lowest(losses)])
    return Ranking(tuple(kept), scale=lambda k: torch.full((n,), n / k, dtype=torch.float64))


def _batch_trial(
    run: Run, group: Group, source: Calibration, number: int, fresh: bool
) -> _BatchTrial:
    """One batch, run up to the place from which on the units matter."""
    batch, program = source.batches[number], source.programs[number]
    if fresh:
        env = program.run(
            program.bind(batch.inputs),
            run.tensors,
            0,
            run.position,
            override=run.override,
            fuse=run.fuse,
        )
    else:
        env = run.envs[number]
    labels = counted_labels(program, batch)
    assert labels is not None
    return _BatchTrial(program, env, run, group, labels)


def _lowest(losses: Tensor) -> int:
    """Place of the smallest loss; ties, up to rounding, go to the first; a loss that is NaN is
    never chosen.
    """
    values = losses.double().nan_to_num(nan=float("inf"))
    tolerance = 1e-12 if losses.dtype == torch.float64 else 1e-6
    least = float(values.min())
    return (
        int((values <= least + tolerance * abs(least)).nonzero()[0]) if least < float("inf") else 0
    )


@dataclass
class _BatchTrial:
    """Losses of one batch with different units switched on."""

    program: Program
    env: dict[int, Tensor]
    run: Run  # of the model pruned so far: its tensors and corrected operations
    group: Group
    labels: Tensor

    def losses(self, kept: Sequence[int], candidates: Sequence[int]) -> Tensor:
        """Loss with `kept` and one candidate after another: [candidates]."""
        parts = [_Part(self, c, kept) for c in self.group.consumers if self._direct(c)]
        scales = self._scales(kept, candidates)
        size = max((p.kept.numel() for p in parts), default=TOGETHER)
        step = max(1, TOGETHER // max(1, size))
        pieces = []
        for at in range(0, len(candidates), step):
            outs = {
                p.op.index: torch.stack([p.output(u) for u in candidates[at : at + step]])
                for p in parts
            }
            pieces.append(self._replay(outs, scales[at : at + step]))
        return torch.cat(pieces)

    def _direct(self, consumer: Consumer) -> bool:
        """Whether the consumer's input is there already,
        so that no other consumer comes before it.
        """
        return consumer.use.input in self.env

    def _scales(self, kept: Sequence[int], candidates: Sequence[int]) -> Tensor:
        """Factor of each unit for each candidate: [candidates, n_units]."""
        scales = torch.zeros(len(candidates), self.group.n_units, dtype=self._dtype())
        scales[:, list(kept)] = self.group.n_units / (len(kept) + 1)
        scales[torch.arange(len(candidates)), list(candidates)] = self.group.n_units / (
            len(kept) + 1
        )
        return scales

    def _dtype(self) -> torch.dtype:
        return self.run.tensors[self.group.consumers[0].use.weight].dtype

    def _replay(self, outs: dict[int, Tensor], scales: Tensor) -> Tensor:
        """Losses [q] given outputs [q, ...] of the direct consumers;
        all at once where that works.
        """
        if len(scales) > 1 and not self._fused:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("error")  # slow batching is announced by a warning
                    return torch.func.vmap(self._loss)(outs, scales)
            except Exception:  # an operation that cannot be batched: one by one
                pass
        return torch.stack(
            [self._loss({i: x[j] for i, x in outs.items()}, s) for j, s in enumerate(scales)]
        )

    @property
    def _fused(self) -> bool:
        """Whether some of what is left runs as one operation, which is faster than several units at
        once.
        """
        if self.run.fuse is None or self._dtype() != torch.float32 or not self.run.on_cpu:
            return False
        changed = {*self.run.override, *(c.use.op for c in self.group.consumers)}
        return any(
            c.ops[0] >= self.run.position and changed.isdisjoint(c.ops)
            for c in self.program.chains.values()
        )

    def _loss(self, outs: dict[int, Tensor], scale: Tensor) -> Tensor:
        override: dict[int, Override] = dict(self.run.override)
        for consumer in self.group.consumers:
            if consumer.use.op in outs:
                override[consumer.use.op] = _return(outs[consumer.use.op])
            else:
                override[consumer.use.op] = _scaled(consumer, scale)
        env = self.program.run(
            dict(self.env),
            self.run.tensors,
            self.run.position,
            override=override,
            fuse=self.run.fuse,
        )
        return label_loss(self._output(env), self.labels)

    def _output(self, env: dict[int, Tensor]) -> Tensor:
        return single(self.program.fetch_output(self.program.answer, env, self.run.tensors))

    def masked_losses(self, kept: Sequence[int], candidates: Sequence[int]) -> Tensor:
        """The same for groups whose units are seen together by a norm: each trial is a masked run
        of its own.
        """
        losses = []
        for unit, scale in zip(candidates, self._scales(kept, candidates), strict=True):
            keep = keep_mask(self.group, [*kept, unit])
            tensors = dict(self.run.tensors)
            for consumer in self.group.reweightable:
                scale_units(consumer, tensors, scale)
            zero(tensors, self.group, keep)
            override = {**self.run.override, **overrides(self.program, [(self.group, keep)])}
            env = self.program.run(dict(self.env), tensors, self.run.position, override=override)
            losses.append(label_loss(self._output(env), self.labels))
        return torch.stack(losses)


def _return(value: Tensor) -> Override:
    return lambda op, args, kwargs: value


def _scaled(consumer: Consumer, scale: Tensor) -> Override:
    """The consumer's operation on inputs whose units are scaled; only switched off where weights
    stay.
    """

    def run(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = consumer.use.product.activation
        factor = scale if consumer.reweightable else (scale > 0).to(scale)
        x = _times(argument(op, name, args, kwargs), consumer, factor)
        args, kwargs = replaced(op, args, kwargs, {name: x})
        return op.func(*args, **kwargs)

    return run


def _times(x: Tensor, consumer: Consumer, factor: Tensor, other: float = 1.0) -> Tensor:
    """x with the inputs of unit i multiplied by factor[i], and those of no unit by `other`."""
    dim = consumer.use.product.features
    units = torch.as_tensor(consumer.units_of(x.shape[dim]))
    wide = torch.cat([factor, factor.new_full((1,), other)])[units]  # unit -1 is the last
    shape = [1] * x.ndim
    shape[dim] = -1
    return x * wide.reshape(shape).to(x)


class _Part:
    """The output of one consumer as a sum: fixed + scale · (kept + the unit on trial)."""

    def __init__(self, trial: _BatchTrial, consumer: Consumer, kept: Sequence[int]) -> None:
        self.consumer, self.op = consumer, trial.program.ops[consumer.use.op]
        self.entry = consumer.use.product
        self.args, self.kwargs = trial.program.arguments(self.op, trial.env, trial.run.tensors)
        n = trial.group.n_units
        self.scale = n / (len(kept) + 1) if consumer.reweightable else 1.0
        on = torch.zeros(n, dtype=trial._dtype())
        fixed, bias = self._plain(_times(self._x, consumer, on))
        self.fixed = self.entry.with_bias(self.op, fixed, bias)
        on[list(kept)] = 1.0
        self.kept = self._plain(_times(self._x, consumer, on, 0.0))[0]

    @property
    def _x(self) -> Tensor:
        x: Tensor = argument(self.op, self.entry.activation, self.args, self.kwargs)
        return x

    def _plain(self, x: Tensor, weight: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """The output without bias for another input, and the bias."""
        new = {self.entry.activation: x}
        if weight is not None:
            new[self.entry.weight] = weight
        return self.entry.without_bias(self.op, *replaced(self.op, self.args, self.kwargs, new))

    def output(self, unit: int) -> Tensor:
        """With one more unit, computed from its own columns only."""
        return self.fixed + self.scale * (self.kept + self._alone(unit))

    def _alone(self, unit: int) -> Tensor:
        weight = argument(self.op, self.entry.weight, self.args, self.kwargs)
        columns = self._places(weight.shape[self.entry.summed], unit)
        if not len(columns):
            return torch.zeros_like(self.kept)
        inputs = self._places(self._x.shape[self.entry.features], unit)
        x = self._x.index_select(self.entry.features, inputs.to(weight.device))
        narrow = weight.index_select(self.entry.summed, columns.to(weight.device))
        return self._plain(x, narrow)[0]

    def _places(self, count: int, unit: int) -> Tensor:
        """Which of `count` inputs belong to the unit."""
        return torch.as_tensor((self.consumer.units_of(count) == unit).nonzero()[0])
