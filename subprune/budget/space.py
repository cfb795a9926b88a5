"""The budgets that a rule chooses from: groups, what their units cost, a limit, allowed widths."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from subprune.budget.goal import Counts, Limit, Rounding

if TYPE_CHECKING:
    from subprune.structure.cost import CostModel
    from subprune.structure.groups import Group

__all__ = ["BudgetSpace"]


@dataclass(frozen=True, kw_only=True)
class BudgetSpace:
    """What every rule needs to know that divides a limit among groups."""

    groups: Sequence[Group]
    cost: CostModel
    limit: Limit
    rounding: Rounding = field(default_factory=Rounding)

    def down(self, group: Group, k: float) -> int:
        """The largest number of units not above k that the group may keep."""
        return self.rounding.of(group).down(k, group.n_units)

    def up(self, group: Group, k: int) -> int:
        """The smallest number of units not below k that the group may keep."""
        return self.rounding.of(group).up(k, group.n_units)

    def next(self, group: Group, k: int) -> int:
        """The next number of units above k that the group may keep."""
        return self.rounding.of(group).next(k, group.n_units)

    def fits(self, counts: Counts) -> bool:
        """Whether the limit is met."""
        return self.limit.fits(self.cost, counts)

    def check(self, smallest: Counts) -> None:
        """Refuse a limit that even these counts do not meet."""
        self.limit.check(self.cost, smallest)

    @property
    def fractions(self) -> list[float]:
        """Every fraction of its units that some group can keep, ascending from 0."""
        kept = {k / g.n_units for g in self.groups for k in range(1, g.n_units + 1)}
        return sorted({0.0} | kept)

    def largest(self, levels: Sequence[float], counts_at: Callable[[float], Counts]) -> Counts:
        """The counts of the last level that fits; levels are ordered from the smallest model to the
        largest.
        """
        low, high = 0, len(levels) - 1
        self.check(counts_at(levels[0]))
        while low < high:
            middle = (low + high + 1) // 2
            if self.fits(counts_at(levels[middle])):
                low = middle
            else:
                high = middle - 1
        return counts_at(levels[low])

    def fill(self, counts: Counts, urgency: Callable[[Group, int], float]) -> Counts:
        """Add units, most urgent group first, until not one more fits: the largest model within the
        limit.
        """
        result = dict(counts)
        open_ = {g.name: g for g in self.groups if result[g.name] < g.n_units}
        while open_:
            group = max(open_.values(), key=lambda g: urgency(g, result[g.name]))
            more = {**result, group.name: self.next(group, result[group.name])}
            if self.fits(more):
                result = more
            if result is not more or more[group.name] >= group.n_units:
                del open_[group.name]
        return result
