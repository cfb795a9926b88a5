"""Groups that keep the same number of units, and what a look at them gives together.

An allocator that is asked about tied groups sees one of each tie: its error curve is that of all of
them, a unit more costs what it costs in all of them, and what the allocator says about it holds for
all. So no allocator knows of ties.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from subprune.errors import BudgetError
from subprune.messages import Message

if TYPE_CHECKING:
    from subprune.budget.goal import Counts, Rounding
    from subprune.structure.groups import Group

__all__ = ["Ties"]


@dataclass(frozen=True)
class Ties:
    """Sets of groups that keep the same number of units; the first of each speaks for all."""

    sets: tuple[tuple[str, ...], ...] = ()
    # numbers of units that are possible, by the first of a set; none: any
    allowed: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def firsts(self, groups: Iterable[Group]) -> tuple[Group, ...]:
        """The groups that speak for others, and those that are in no tie."""
        others = {name for names in self.sets for name in names[1:]}
        return tuple(g for g in groups if g.name not in others)

    def spread(self, counts: Mapping[str, int]) -> Counts:
        """Numbers of units of the firsts → those of all groups."""
        result = dict(counts)
        for first, *others in self.sets:
            if first in result:
                result.update(dict.fromkeys(others, result[first]))
        return result

    def rounding(self, rounding: Rounding) -> Rounding:
        """The rounding of the firsts: what suits every group they speak for."""
        steps = dict(rounding.own)
        for first, *others in self.sets:
            steps[first] = math.lcm(*(steps.get(name, 1) for name in (first, *others)))
        return replace(rounding, own=steps, allowed={**rounding.allowed, **self.allowed})

    def joined(self, outcome: Any) -> Any:
        """What a look at all groups gave, by name, with one entry for each tie."""
        if not isinstance(outcome, Mapping):
            return outcome
        result = dict(outcome)
        for names in self.sets:
            if names[0] in result:
                result[names[0]] = _together([result.pop(name) for name in names])
        return result

    def mates(self, names: Iterable[str]) -> set[str]:
        """These groups and all that are tied to them."""
        asked = set(names)
        return asked.union(*(tied for tied in self.sets if asked & set(tied)))

    def without(self, names: Iterable[str]) -> Ties:
        """The ties that hold none of these groups."""
        gone = set(names)
        return replace(self, sets=tuple(tied for tied in self.sets if not gone & set(tied)))

    def check(self, asked: Mapping[str, float], option: str) -> None:
        """Refuse numbers that were asked for, by group, and differ within a tie."""
        for tied in self.sets:
            differing = {asked.get(name): name for name in tied}
            if len(differing) > 1:
                shown = ", ".join(f"{name}: {x or 'all'}" for x, name in differing.items())
                words = (
                    f"{{{option}=}} and {{uniform=}} contradict each other: groups that must keep "
                    "the same number of units are given different ones ({shown}); give them the "
                    "same, or omit {uniform:name}"
                )
                raise BudgetError(Message(words, uniform=True, shown=shown))


def _together(entries: Sequence[Any]) -> Any:
    """One entry for several groups: scores by rank, their mean; curves say it themselves."""
    if isinstance(entries[0], Tensor):
        # Tied groups keep the same number of units, each its own best ones: the mean of the best
        # scores, of the second best, and so on.
        falling = [x.sort(descending=True).values for x in entries]
        return torch.stack(falling).mean(dim=0)
    return entries[0].together(entries)
