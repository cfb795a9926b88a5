"""How much of a map's nuclear norm goes with a unit: little, if the others can stand in for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from subprune.errors import OptionError
from subprune.program.precision import single
from subprune.select.selector import Ranking, Selector, View, order_by
from subprune.statistics.trace import Trace

if TYPE_CHECKING:
    from subprune.structure.groups import Consumer

__all__ = ["Independence"]


@dataclass(frozen=True)
class Independence(Selector):
    """‖A‖ − ‖A without the unit‖ in the nuclear norm, mean over inputs (CHIP, Sui et al. 2021, arXiv
    2110.13981).

    A holds what is read of each unit for one input, [units, positions], in the dense model. Several
    readers add.
    """

    name: ClassVar[str] = "independence"
    needs_runs: ClassVar[bool] = True
    needs_statistics: ClassVar[bool] = False
    inputs: int = 32  # that are looked at: every unit of every one takes a decomposition

    def __post_init__(self) -> None:
        if not isinstance(self.inputs, int) or self.inputs < 1:
            raise OptionError(f"inputs of selector {self.name!r} must be at least 1")

    def rank(self, view: View) -> Ranking:
        """By falling independence."""
        total = torch.zeros(view.n_units, dtype=torch.float64)
        for consumer in view.group.reweightable:
            seen: list[Tensor] = []
            trace = Trace([consumer], lambda n, c, x, y, seen=seen: seen.append(x))  # type: ignore[misc]
            view.dense.fork().advance(consumer.use.op + 1, trace.watch(outputs=False))
            sizes = [b.size for b in view.setting.calibration.batches]
            missing = self.inputs
            for x, size in zip(seen, sizes, strict=True):
                maps = _maps(x, consumer, size, view.n_units)[:missing]
                missing -= len(maps)
                for one in maps:
                    total += _drops(one)
        return Ranking(order_by(total))


def _maps(x: Tensor, consumer: Consumer, size: int, n_units: int) -> Tensor:
    """[samples, n_units, positions]: of a unit that is read in several columns, all of them."""
    x = x.movedim(consumer.use.product.features, -1)
    if x.ndim > 2 and x.shape[0] != size and x.shape[1] == size:  # length first
        x = x.transpose(0, 1)
    samples = size if x.shape[0] % size == 0 else 1
    x = single(x).double().cpu().reshape(samples, -1, x.shape[-1])
    columns = torch.as_tensor(consumer.units_of(x.shape[-1]))
    # Units may be read in different numbers of columns: shorter rows end in zeros, which change no
    # singular value.
    counts = torch.bincount(columns[columns >= 0], minlength=n_units)
    maps = x.new_zeros(samples, n_units, int(counts.max()), x.shape[1])
    for unit in range(n_units):
        mine = (columns == unit).nonzero().flatten()
        maps[:, unit, : len(mine)] = x[:, :, mine].transpose(1, 2)
    return maps.flatten(2)


def _drops(one: Tensor) -> Tensor:
    """What the nuclear norm of a map [n_units, positions] loses with each unit: [n_units]."""
    whole = torch.linalg.svdvals(one).sum()
    # As many maps at a time, each with one unit switched off, as fit a few megabytes.
    step = max(1, 2**20 // one.numel())
    drops = []
    for start in range(0, len(one), step):
        units = torch.arange(start, min(start + step, len(one)))
        without = one.repeat(len(units), 1, 1)
        without[torch.arange(len(units)), units] = 0
        drops.append(whole - torch.linalg.svdvals(without).sum(-1))
    return torch.cat(drops).clamp(min=0)
