"""What structure discovery finds: groups of units, and the reasons why everything else stays."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from subprune.errors import closest
from subprune.messages import Message
from subprune.structure.edges import Edges

if TYPE_CHECKING:
    from subprune.program.program import Program
    from subprune.structure.flow import Use
    from subprune.structure.landing import Landing

__all__ = ["Consumer", "Group", "Narrowing", "Slot", "Span", "Structure", "Term", "in_order"]

Units = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Slot:
    """Where a group's units sit in one dimension of one parameter or buffer."""

    tensor: str
    dim: int
    units: Units  # unit of each position; -1: stays whatever happens
    role: str  # "producer", "follower" or "consumer"


@dataclass(frozen=True, eq=False)
class Consumer:
    """A layer that reads the units."""

    name: str  # module
    use: Use
    # unit of each input of one of its groups, [inputs / groups]; -1: not of this group
    columns: Units
    # where its output can be compared with the dense model's; None: nowhere but at the product
    landing: Landing | None
    obstacle: str = ""  # why it cannot be reweighted, empty if it can

    @property
    def reweightable(self) -> bool:
        return not self.obstacle

    @property
    def groups(self) -> int:
        """Groups of a grouped convolution, all of which read the same units; 1 otherwise."""
        return self.use.groups

    def units_of(self, count: int) -> Units:
        """Unit of each of `count` inputs: the columns, once for every group among them."""
        return np.tile(self.columns, count // max(1, self.columns.size))


@dataclass(frozen=True, eq=False)
class Narrowing:
    """An operation that runs over the units and notices how many there are (a norm, a mean)."""

    op: int
    value: int
    dim: int
    units: Units  # unit of each position of that dimension, -1: stays


@dataclass(frozen=True, eq=False, kw_only=True)
class Group:
    """Units that are cut together everywhere they appear."""

    name: str
    kind: str  # "neuron", "channel", "head" or "stream"
    n_units: int
    slots: tuple[Slot, ...]
    producers: tuple[str, ...]
    followers: tuple[str, ...]
    consumers: tuple[Consumer, ...]
    narrowings: tuple[Narrowing, ...] = ()
    first_op: int = 0
    program: Program = field(repr=False)  # the record that the group was found in

    @property
    def reweightable(self) -> tuple[Consumer, ...]:
        """Consumers whose weights least squares can rewrite."""
        return tuple(c for c in self.consumers if c.reweightable)

    @cached_property
    def parts(self) -> tuple[frozenset[int], ...]:
        """Sets of units that are all there is of some tensor:
        at least one unit of each must stay.
        """
        whole = {
            frozenset(np.unique(s.units).tolist())
            for s in self.slots
            if s.units.size and s.units.min() >= 0
        }
        return tuple(sorted((p for p in whole if len(p) < self.n_units), key=sorted))

    @property
    def least(self) -> int:
        """The smallest number of units that holds one of every part."""
        return max(1, len(self._ones(range(self.n_units))))

    def choice(self, order: Sequence[int], k: int) -> tuple[int, ...]:
        """The first k units of an order, sorted; the best unit of every part is among them."""
        ones = self._ones(order) if k < self.n_units else []
        if len(ones) > k:
            ones = self._ones(range(self.n_units))
        return tuple(sorted(list(dict.fromkeys([*ones, *order]))[:k]))

    def _ones(self, order: Sequence[int]) -> list[int]:
        """The first unit of every part, but for parts that hold one of another part's already."""
        place = {unit: i for i, unit in enumerate(order)}
        ones: list[int] = []
        for part in sorted(self.parts, key=len):
            if not part & set(ones):
                ones.append(min(part, key=lambda u: (place.get(u, self.n_units), u)))
        return ones

    @property
    def inner(self) -> bool:
        """Whether the group is pruned by default: not a residual stream, and read by a reweightable
        layer.
        """
        return not self.obstacle

    @property
    def barrier(self) -> str:
        """Why the group cannot be pruned at all; empty if it can."""
        if self.n_units < 2:
            return "has a single unit"
        if not self.consumers:
            return "no layer with a weight of its own reads it"
        if not self.reweightable:
            return f"its consumers cannot be reweighted: {self.consumers[0].obstacle}"
        return ""

    @property
    def obstacle(self) -> str:
        """Why the group is not pruned by default; empty if it is."""
        if self.barrier:
            return self.barrier
        if self.kind == "stream":
            return Message(
                "residual stream: cut only when named itself in {only=}, {budgets=} or {keep=}, or "
                "with {streams=}",
                streams=True,
            )
        if self.parts:
            return Message(
                "some layers hold just a part of its units and must keep one: cut only when named "
                "itself in {only=}, {budgets=} or {keep=}"
            )
        return ""

    def __repr__(self) -> str:
        readers = ", ".join(c.name for c in self.consumers)
        return (
            f"Group({self.name!r}, {self.kind}, {self.n_units} units, "
            f"read by {readers or 'nothing'})"
        )


def in_order(groups: Sequence[Group]) -> list[Group]:
    """Forward order: by the first layer that reads the units."""
    return sorted(groups, key=lambda g: (min(c.use.op for c in g.reweightable), g.first_op))


@dataclass(frozen=True, eq=False)
class Span:
    """The length of a dimension, as a function of the kept units: fixed positions, and some
    per unit.
    """

    fixed: int
    parts: tuple[tuple[str, Units], ...] = ()  # group name, positions that each of its units takes


@dataclass(frozen=True, eq=False)
class Term:
    """A share of the model's multiply-adds: ``factor ×`` the product of the lengths."""

    op: int
    factor: int
    spans: tuple[Span, ...]


@dataclass(kw_only=True)
class Structure:
    """All groups of a model in forward order, and in words why everything else cannot go."""

    program: Program
    groups: tuple[Group, ...]
    refused: dict[str, str] = field(default_factory=dict)  # layer → reason
    terms: tuple[Term, ...] = ()  # what every operation costs, for `cost.CostModel`
    # every layer with a weight of its own but depthwise ones, as the reader of no group
    layers: tuple[Consumer, ...] = ()
    edges: Edges = field(default_factory=Edges)  # what is not part of the blocks

    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter(self.groups)

    def __len__(self) -> int:
        return len(self.groups)

    def __getitem__(self, name: str) -> Group:
        for group in self.groups:
            if group.name == name:
                return group
        raise KeyError(
            f"no group {name!r}: {closest(str(name), self.names)}groups are {', '.join(self.names)}"
        )

    @property
    def names(self) -> list[str]:
        return [g.name for g in self.groups]

    def left_whole(self, pruned: Collection[str]) -> dict[str, str]:
        """Every group that is not among those pruned, and every layer that stays, or stays in part;
        each with why.
        """
        reasons = {
            g.name: g.obstacle or "not asked for" for g in self.groups if g.name not in pruned
        }
        for name, why in self.refused.items():
            known = reasons.get(name, "not asked for")
            reasons[name] = why if known == "not asked for" else f"{known}; {why}"
        return reasons

    def inner(self) -> tuple[Group, ...]:
        """The groups that are pruned by default."""
        return tuple(g for g in self.groups if g.inner)
