"""One consumer: where its operation keeps input, weight and bias, and what passes it in a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from subprune.cut.masking import Override
from subprune.program.record import Op, Program
from subprune.statistics.patches import Convolution
from subprune.statistics.statistics import Consumer as Reader
from subprune.structure import Consumer

__all__ = [
    "Trace",
    "consumer_weight",
    "input_position",
    "plain_output",
    "reader",
    "scale_units",
    "with_bias",
]


def plain_output(op: Op, args: tuple[Any, ...]) -> tuple[Tensor, Tensor | None]:
    """The product of a linear or convolution operation without its bias, and the bias."""
    if op.kind == "addmm":
        return torch.mm(args[1], args[2]), args[0]
    bias = args[2] if len(args) > 2 else None
    if op.kind in ("mm", "matmul") or bias is None:
        return op.func(*args), None
    return op.func(*args[:2], None, *args[3:]), bias


def with_bias(op: Op, y: Tensor, bias: Tensor | None) -> Tensor:
    if bias is None:
        return y
    return y + (bias.reshape(-1, *[1] * (y.ndim - 2)) if op.kind == "convolution" else bias)


def consumer_weight(consumer: Consumer, tensors: Mapping[str, Tensor]) -> Tensor:
    """The consumer's weight with outputs first: [outputs, inputs / groups, *kernel]."""
    weight = tensors[consumer.use.weight]
    return weight.transpose(0, 1) if consumer.use.in_dim == 0 else weight


def scale_units(consumer: Consumer, tensors: dict[str, Tensor], scale: Tensor) -> None:
    """Multiply the weights that read unit i by scale[i]; the tensor is replaced, never written
    into.
    """
    old = tensors[consumer.use.weight]
    units = torch.as_tensor(consumer.columns)
    factor = torch.where(units >= 0, scale.cpu()[units.clamp(min=0)], 1.0).to(old)
    shape = [1] * old.ndim
    shape[consumer.use.in_dim] = -1
    tensors[consumer.use.weight] = old * factor.reshape(shape)


def input_position(op: Op) -> int:
    """Which argument of a linear, convolution or norm operation is the activation."""
    return 1 if op.kind == "addmm" else 0


def reader(consumer: Consumer, program: Program, where: str) -> Reader:
    """How `statistics` sees the consumer."""
    op = program.ops[consumer.use.op]
    shape = program.values[program.tensors[consumer.use.weight]].shape
    units = torch.as_tensor(consumer.columns).repeat(consumer.groups)
    if consumer.use.kind == "linear":
        return Reader(units, shape[consumer.use.out_dim], None, where)
    stride, padding, dilation = op.args[3:6]
    conv = Convolution.make(shape[2:], stride, padding, dilation, "zeros", consumer.groups)
    return Reader(units, shape[0], conv, where)


class Trace:
    """What passes a group's consumers during an advance of a run: inputs, and outputs without bias."""

    def __init__(
        self,
        consumers: Sequence[Consumer],
        see: Callable[[int, Consumer, Tensor, Tensor | None], None],
    ):
        self.consumers, self.see = consumers, see
        self.batch: dict[int, int] = {}

    def watch(self, outputs: bool) -> dict[int, Override]:
        """Stand-ins for the consumers' operations that report what they see."""
        return {c.use.op: self._stand_in(c, outputs) for c in self.consumers}

    def _stand_in(self, consumer: Consumer, outputs: bool) -> Override:
        def run(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
            number = self.batch.get(op.index, 0)
            self.batch[op.index] = number + 1
            x = args[input_position(op)]
            if not outputs:
                self.see(number, consumer, x, None)
                return op.func(*args, **kwargs)
            y, bias = plain_output(op, (*args, *kwargs.values()))
            self.see(number, consumer, x, y)
            return with_bias(op, y, bias)

        return run
