"""The model pruned so far with one group at the width of its kept units: no zeros are computed.

The walk switches units off by zeros, so that every record of the network goes on fitting. Work that
runs a group's layers again and again, such as Gauss–Newton steps, is several times faster at the
width that the group will have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from subprune.cutting.masking import keep_mask

if TYPE_CHECKING:
    from subprune.fit.fit import Tensors
    from subprune.statistics.runs import Run
    from subprune.structure.groups import Group, Units

__all__ = ["Narrow", "narrow"]


@dataclass(frozen=True, kw_only=True)
class Narrow:
    """A group as it will be, and its tensors on the way there and back."""

    wide: Group  # as it is
    group: Group  # with the kept units only, numbered from 0
    kept: tuple[int, ...]

    @classmethod
    def whole(cls, group: Group) -> Narrow:
        """All units: nothing becomes narrower."""
        return cls(wide=group, group=group, kept=tuple(range(group.n_units)))

    def numbers(self, units: Sequence[int]) -> tuple[int, ...]:
        """Numbers of some of the kept units in the narrow group."""
        return tuple(self.kept.index(unit) for unit in units)

    def tensors(self, wide: Mapping[str, Tensor]) -> Tensors:
        """Tensors of the model without what belongs to removed units."""
        new = dict(wide)
        for slot in self.wide.slots:
            at = self._positions(slot.units).to(new[slot.tensor].device)
            new[slot.tensor] = new[slot.tensor].index_select(slot.dim, at)
        return new

    def widened(self, new: Mapping[str, Tensor], old: Tensors, wide: Tensors) -> Tensors:
        """Narrow tensors at full width, removed units switched off.

        old: `self.tensors(wide)`, which they were made from: what is the same object there stays
        the same object in `wide`.
        """
        cut = {slot.tensor for slot in self.wide.slots}
        result = dict(wide)
        for name, x in new.items():
            if x is not old[name]:
                result[name] = self._spread(name, x, wide[name]) if name in cut else x
        return result

    def removed(self, masks: Mapping[int, Tensor]) -> dict[int, Tensor]:
        """By operation: which inputs of a consumer went with other groups, of those that stay."""
        units = {c.use.op: c.columns for c in self.wide.consumers}
        return {
            op: off[self._positions(units[op])] if op in units else off for op, off in masks.items()
        }

    def _spread(self, name: str, small: Tensor, like: Tensor) -> Tensor:
        """A narrow tensor at the places that it was taken from, zeros elsewhere."""
        places = [torch.arange(n) for n in like.shape]
        for slot in self.wide.slots:
            if slot.tensor == name:
                places[slot.dim] = self._positions(slot.units)
        result = torch.zeros_like(like)
        result[torch.meshgrid(*places, indexing="ij")] = small.to(like)
        return result

    def _positions(self, units: Units) -> Tensor:
        """The positions of a dimension that stay, [q], from the unit of each."""
        return torch.as_tensor(np.flatnonzero((units < 0) | np.isin(units, self.kept)))


def narrow(start: Run, group: Group, kept: Sequence[int]) -> Narrow:
    """The group at the width of its kept units, from the run before its first layer on.

    At full width where that cannot be computed by the same operations: one of them knows the width
    (a view, a depthwise convolution), or the results differ.
    """
    whole, places = Narrow.whole(group), [(slot.tensor, slot.dim) for slot in group.slots]
    if group.narrowings or any(c.groups > 1 for c in group.consumers):
        return whole
    if len(set(places)) < len(places):
        return whole
    small = Narrow(wide=group, group=_numbered(group, kept), kept=tuple(sorted(kept)))
    return small if _agrees(start, small) else whole


def _numbered(group: Group, kept: Sequence[int]) -> Group:
    """The group with the kept units only, numbered from 0."""
    keep = keep_mask(group, kept)
    numbers = np.where(keep, np.cumsum(keep) - 1, -2)

    def renumbered(units: Units) -> Units:
        new = np.where(units < 0, -1, numbers[units])
        return np.asarray(new[new > -2], dtype=np.int64)

    return replace(
        group,
        n_units=len(kept),
        slots=tuple(replace(s, units=renumbered(s.units)) for s in group.slots),
        consumers=tuple(replace(c, columns=renumbered(c.columns)) for c in group.consumers),
    )


def _agrees(start: Run, small: Narrow) -> bool:
    """Whether what the readers of the group give is the same at both widths, on one batch."""
    stop = 1 + max(c.use.op for c in small.group.consumers)
    outs = [v for c in small.group.consumers for v in start.programs[0].ops[c.use.op].outs]
    wanted = set(outs)
    results = []
    for tensors in (start.tensors, small.tensors(start.tensors)):
        env = dict(start.envs[0])
        try:
            start.programs[0].run(
                env,
                tensors,
                start.position,
                stop,
                keep=wanted.__contains__,
                override=start.override,
            )
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, ValueError, TypeError, IndexError):  # an operation knows the width
            return False
        results.append([env[v] for v in outs])
    return all(_near(a, b) for a, b in zip(*results, strict=True))


def _near(a: Tensor, b: Tensor) -> bool:
    """Whether two results differ by rounding alone."""
    if a.shape != b.shape:
        return False
    size = float(a.double().abs().max()) if a.numel() else 0.0
    bound = 64 * torch.finfo(a.dtype).eps ** 0.75
    return float((a.double() - b.double()).abs().max()) <= bound * size if a.numel() else True
