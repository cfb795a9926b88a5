"""What is asked for, everything an allocator may look at, and what an allocator is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from subprune.budget.explicit import explicit, fractions, shares
from subprune.budget.goal import Counts, Goal, Limit, Rounding
from subprune.budget.space import BudgetSpace
from subprune.budget.ties import Ties
from subprune.budget.whole import in_the_way

if TYPE_CHECKING:
    from subprune.loop.recipe import Recipe
    from subprune.loop.visits import Tick
    from subprune.loop.walk import Walk
    from subprune.select.selector import Setting
    from subprune.statistics.calibration import Calibration
    from subprune.structure.cost import CostModel
    from subprune.structure.groups import Group

__all__ = ["LATENCY_STEPS", "Allocator", "Demand"]

LATENCY_STEPS = 9  # models that are cut and timed for a latency, if every guess is right

Outcome = TypeVar("Outcome")


@dataclass(frozen=True)
class Allocator(ABC):
    """Divides a goal among the groups: who gives up how much."""

    role: ClassVar[str] = "allocator"
    name: ClassVar[str]
    # What it looks at before it can say anything, in words; empty: at nothing but the goal.
    looks_at: ClassVar[str] = ""
    # Whether units of all groups are ranked together, so that a fraction is one of all of them.
    pools_units: ClassVar[bool] = False
    # Whether it runs pruned models to see what they answer, which takes long.
    measures_answers: ClassVar[bool] = False
    # Whether it compares errors by how much the model's output feels them.
    needs_metric: ClassVar[bool] = False
    # Whether it measures accuracy, which is honest only on verification data.
    needs_verification: ClassVar[bool] = False

    @abstractmethod
    def counts(self, demand: Demand) -> Counts:
        """Units to keep in every group; not one more would fit."""


@dataclass(frozen=True, kw_only=True)
class Demand:
    """What is asked for, and everything an allocator may look at.

    Looks at the network are calls, and each is made once: `remember` keeps what they gave, also for
    demands made from this one with another goal or fewer groups. What those look at, they keep to
    themselves.
    """

    setting: Setting
    recipe: Recipe
    goal: Goal
    allocator: Allocator
    cost: CostModel
    rounding: Rounding = field(default_factory=Rounding)
    ties: Ties = field(default_factory=Ties)  # groups that keep the same number of units
    verification: Calibration | None = None  # None: the calibration data
    cache: Path | None = None  # folder for accuracy curves
    # Prunes with given budgets, for allocators that try some.
    walk: Callable[[Setting, Recipe, Counts], Walk] | None = None
    tick: Tick = lambda group: None
    say: Callable[[str], None] = lambda text: None  # a step that is about no single group begins
    memory: dict[Any, Any] = field(default_factory=dict, repr=False)

    @property
    def calibration(self) -> Calibration:
        return self.setting.calibration

    @property
    def groups(self) -> tuple[Group, ...]:
        return self.setting.groups

    @property
    def limit(self) -> Limit:
        """What the whole model may cost."""
        return self.goal.limit(self.cost, self.calibration.batches[0].size)

    @property
    def space(self) -> BudgetSpace:
        """The budgets to choose from."""
        return BudgetSpace(
            groups=self.groups, cost=self.cost, limit=self.limit, rounding=self.rounding
        )

    def remember(self, key: Any, look: Callable[[], Outcome]) -> Outcome:
        """What the look gave when it was first made."""
        if key not in self.memory:
            self.memory[key] = look()
        known: Outcome = self.memory[key]
        return known

    def outcome(self, look: Callable[..., Outcome], **how: Any) -> Outcome:
        """What a look at all groups gives, such as `subprune.loop.looks.curves`; made once."""
        return self.remember(
            (look.__name__, *sorted(how.items())),
            lambda: look(self.setting, self.recipe, tick=self.tick, **how),
        )

    def counts(self) -> Counts:
        """Units to keep in every group; a goal that no budget meets is refused before any look."""
        self.check()
        return self.shared_out()

    def shared_out(self) -> Counts:
        """Explicit budgets, a fraction of each group, or what the allocator says."""
        if self.goal.budgets is not None:
            self.ties.check(self.goal.budgets, "budgets")
            return explicit(self.groups, self.goal.budgets, self.rounding)
        tied = self.tied()
        if self.goal.keep is not None and not self.pooled:
            asked = shares(self.groups, self.goal.keep)
            self.ties.check(asked, "keep")
            return self.ties.spread(fractions(tied.groups, asked, tied.rounding))
        return self.ties.spread(self.allocator.counts(tied))

    def tied(self) -> Tied:
        """What an allocator is asked: one group of every tie."""
        same = {f.name: getattr(self, f.name) for f in fields(Demand)}
        return Tied(**{**same, "rounding": self.ties.rounding(self.rounding)})

    @property
    def pooled(self) -> bool:
        """Whether a fraction is one of all units together."""
        return self.allocator.pools_units and isinstance(self.goal.keep, int | float)

    def check(self) -> None:
        """Refuse a goal that no budget meets, before anything is computed."""
        if self.goal.limits_size:
            self.limit.check(self.cost, self.smallest(), self.rounding.to, self._whole)

    def _whole(self) -> str:
        """What is not cut, and why."""
        structure = self.calibration.structure
        edges = structure.edges.tensors if self.goal.of == "blocks" else frozenset[str]()
        return in_the_way(self.calibration.model, structure, [g.name for g in self.groups], edges)

    def smallest(self) -> Counts:
        """The smallest number of units of every group."""
        tied = self.tied()
        return self.ties.spread({g.name: tied.rounding.of(g).least(g.n_units) for g in tied.groups})

    @property
    def looks(self) -> bool:
        """Whether the allocator looks at every group."""
        asked = self.goal.limits_size or self.pooled
        return asked and bool(self.allocator.looks_at)

    def steps(self) -> int:
        """How many steps of progress it takes: one look at every group, where any is needed."""
        timed = 0 if self.goal.latency is None else LATENCY_STEPS
        return (len(self.groups) if self.looks else 0) + timed

    def remarks(self, kept: Mapping[str, Sequence[int]]) -> list[str]:
        """For the report: what the blocks have become, where the goal is about them."""
        if self.goal.of != "blocks":
            return []
        p, q = (self.cost.params_of(x, "blocks") for x in ({}, kept))
        f, h = (self.cost.flops_of(x, "blocks") for x in ({}, kept))
        sizes = f"{q:,} of {p:,} parameters ({q / p:.1%}) and {h / max(1, f):.1%} of the FLOPs"
        return [f"of the blocks, without embeddings, positions and last layer, {sizes} are left"]

    def without(self, names: Sequence[str]) -> Demand:
        """The same without some groups."""
        others = tuple(g for g in self.groups if g.name not in names)
        setting = replace(self.setting, groups=others)
        memory = dict(self.memory)  # a look at fewer groups is not one at all of them
        return replace(self, setting=setting, ties=self.ties.without(names), memory=memory)


class Tied(Demand):
    """A demand in which one group of every tie speaks for all of them.

    Looks are made at all groups, and remembered as they are.
    """

    @property
    def groups(self) -> tuple[Group, ...]:
        return self.ties.firsts(self.setting.groups)

    @property
    def limit(self) -> Limit:
        return super().limit.spreading(self.ties.spread)

    def remember(self, key: Any, look: Callable[[], Outcome]) -> Outcome:
        joined: Outcome = self.ties.joined(super().remember(key, look))
        return joined
