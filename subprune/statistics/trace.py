"""What passes a group's consumers during a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from subprune.program.ops import argument

if TYPE_CHECKING:
    from subprune.program.program import Op, Override
    from subprune.structure.groups import Consumer

__all__ = ["Trace"]


class Trace:
    """What passes a group's consumers during an advance of a run:
    inputs, and outputs without bias.
    """

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
        entry = consumer.use.product

        def run(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
            number = self.batch.get(op.index, 0)
            self.batch[op.index] = number + 1
            x = argument(op, entry.activation, args, kwargs)
            if not outputs:
                self.see(number, consumer, x, None)
                return op.func(*args, **kwargs)
            y, bias = entry.without_bias(op, args, kwargs)
            self.see(number, consumer, x, y)
            return entry.with_bias(op, y, bias)

        return run
