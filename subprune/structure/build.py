"""Puts the pieces of every group together."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from subprune.program.ops import argument, belongs
from subprune.structure.groups import Consumer, Group, Narrowing, Slot, Span, Units
from subprune.structure.landing import Landing, find_landing

if TYPE_CHECKING:
    from subprune.program.program import Program
    from subprune.structure.components import Ids
    from subprune.structure.flow import Flow, Use
    from subprune.structure.labels import Dim

__all__ = ["Builder", "Labelled", "SlotKey", "layer", "owner"]

SlotKey = tuple[str, int]  # parameter or buffer, dimension


def owner(tensor: str) -> str:
    """The module that holds a parameter; for a reparametrised one, the layer itself."""
    return (
        tensor.partition(".parametrizations.")[0]
        if ".parametrizations." in tensor
        else tensor.rpartition(".")[0]
    )


def layer(program: Program, tensor: str, op: int) -> str:
    """The layer that uses a weight; for a tied one, the layer that was running."""
    module = program.ops[op].module
    return (
        module
        if any(owner(a) == module for a, b in program.aliases.items() if b == tensor)
        else owner(tensor)
    )


@dataclass(frozen=True, eq=False)
class Labelled:
    """The walked program with every id's component, and every component's group."""

    flow: Flow
    root: Ids
    frozen: Ids
    label: Ids

    def groups_of(self, ids: Ids) -> list[int]:
        """Labels of the groups that some of these positions belong to."""
        live = self.root[ids]
        return np.unique(self.label[live[~self.frozen[live]]]).tolist()

    def carries(self, value: int, group: int) -> bool:
        """Whether a value has units of the group along one of its dimensions."""
        return any(self._has(dim, group) for dim in self.flow.dims(value))

    def _has(self, dim: Dim | None, group: int) -> bool:
        if not dim:
            return False
        live = self.root[dim[0]]
        return bool(((self.label[live] == group) & ~self.frozen[live]).any())


class Builder:
    """Collects the pieces of each group."""

    def __init__(
        self, labelled: Labelled, producers: dict[SlotKey, int], consumers: dict[SlotKey, list[Use]]
    ) -> None:
        self.labelled, self.flow = labelled, labelled.flow
        self.root, self.frozen, self.label = labelled.root, labelled.frozen, labelled.label
        self.producers, self.consumers = producers, consumers
        # component → unit within its group
        self.unit = np.full(self.flow.space.size, -1, dtype=np.int64)
        self.names: dict[int, tuple[str, int]] = {}  # label → name and size of the group
        self.members: dict[int, list[SlotKey]] = defaultdict(list)
        for key, ids in self.flow.slots.items():
            for g in labelled.groups_of(ids):
                self.members[g].append(key)
        self.narrow: dict[int, list[tuple[int, int, int, Ids]]] = defaultdict(list)
        for reduction in self.flow.reductions:
            for dim, labels in reduction.dims:
                for g in labelled.groups_of(labels[0]):
                    self.narrow[g].append(
                        (reduction.op, reduction.value, dim, self.root[labels[0]])
                    )
        self.heads = {
            int(x) for ids in self.flow.space.batch for x in np.unique(self.label[self.root[ids]])
        }
        self.uses = Counter(u.weight for u in self.flow.uses)
        self.readers = Counter(v for op in self.flow.program.ops for v in op.inputs)
        self.tied = set(self.flow.program.aliases.values())
        self.landings: dict[int, Landing | None] = {}  # by operation

    def groups(self) -> tuple[Group, ...]:
        """All groups, in the order in which their units are first made."""
        groups: list[Group] = []
        taken: set[str] = set()
        order = []
        for g, keys in self.members.items():
            made = sorted((self.producers[k], k) for k in keys if k in self.producers)
            if made:
                order.append((made[0][0], g, [k for _, k in made]))
        for first, g, made_keys in sorted(order):
            group = self._group(g, first, made_keys, taken)
            taken.add(group.name)
            self.names[g] = (group.name, group.n_units)
            groups.append(group)
        return tuple(groups)

    def span(self, ids: Ids) -> Span:
        """Length of a dimension with these ids, as a function of the kept units."""
        live = self.root[ids]
        mine = live[(self.unit[live] >= 0) & ~self.frozen[live]]
        parts = []
        for g in np.unique(self.label[mine]).tolist():
            name, count = self.names[g]
            parts.append(
                (name, np.bincount(self.unit[mine[self.label[mine] == g]], minlength=count))
            )
        return Span(ids.size - mine.size, tuple(parts))

    def _group(self, g: int, first: int, made: list[SlotKey], taken: set[str]) -> Group:
        count = self._number(g, made)
        slots = tuple(self._slot(g, key) for key in self.members[g])
        uses = [u for key in self.members[g] for u in self.consumers.get(key, ())]
        consumers = tuple(self._consumer(g, u) for u in sorted(uses, key=lambda u: u.op))
        producers = tuple(
            dict.fromkeys(layer(self.flow.program, k[0], self.producers[k]) for k in made)
        )
        readers = {c.name for c in consumers}
        others = dict.fromkeys(owner(s.tensor) for s in slots)
        followers = tuple(m for m in others if m not in producers and m not in readers)
        kind = self._kind(g, made, consumers)
        narrowings = tuple(
            Narrowing(o, v, d, self._units(g, live)) for o, v, d, live in self.narrow.get(g, ())
        )
        name = _name(producers, taken)
        return Group(
            name=name,
            kind=kind,
            n_units=count,
            slots=slots,
            producers=producers,
            followers=followers,
            consumers=consumers,
            narrowings=narrowings,
            first_op=first,
            program=self.flow.program,
        )

    def _number(self, g: int, made: list[SlotKey]) -> int:
        """Number the units in the order they are first made, so that unit i of a plain layer is
        channel i.
        """
        count = 0
        for key in made:
            live = self.root[self.flow.slots[key]]
            mine = live[(self.label[live] == g) & ~self.frozen[live]]
            # each component once, where it comes first, and not those that have a number already
            _, at = np.unique(mine, return_index=True)
            fresh = mine[np.sort(at)]
            fresh = fresh[self.unit[fresh] < 0]
            self.unit[fresh] = np.arange(count, count + fresh.size)
            count += fresh.size
        return count

    def _units(self, g: int, live: Ids) -> Units:
        return np.where((self.label[live] == g) & ~self.frozen[live], self.unit[live], -1)

    def _slot(self, g: int, key: SlotKey) -> Slot:
        role = (
            "producer"
            if key in self.producers
            else "consumer"
            if key in self.consumers
            else "follower"
        )
        return Slot(key[0], key[1], self._units(g, self.root[self.flow.slots[key]]), role)

    def layers(self) -> tuple[Consumer, ...]:
        """Every layer that multiplies by a weight, as the reader of no group, in forward order."""
        uses = [use for use in self.flow.uses if not use.depthwise]
        return tuple(self._consumer(-1, use) for use in sorted(uses, key=lambda use: use.op))

    def _consumer(self, g: int, use: Use) -> Consumer:
        """The layer as a reader of group g; -1: of none, so that no column belongs to a unit."""
        live = self.root[self.flow.slots[use.weight, use.in_dim]]
        units = np.full(live.size, -1) if g < 0 else self._units(g, live)
        if use.product.transposed:  # its weight holds the inputs of all groups, which read the same
            units = units[: units.size // use.groups]
        name = layer(self.flow.program, use.weight, use.op)
        own_use = replace(use, bias=self._own_bias(use))
        return Consumer(name, own_use, units, self._landing(use, own_use.bias), self._obstacle(use))

    def _landing(self, use: Use, own_bias: str | None) -> Landing | None:
        """Where the layer's output lands; a layer is asked for once for every group it reads."""
        if use.op not in self.landings:
            program = self.flow.program
            shared = {
                name
                for name, vid in program.tensors.items()
                if self.readers[vid] > 1 or name in self.tied
            }
            self.landings[use.op] = find_landing(program, use, own_bias, shared)
        return self.landings[use.op]

    def _own_bias(self, use: Use) -> str | None:
        """The bias, if it is added once, as it is, and to this layer's outputs alone."""
        program = self.flow.program
        if use.bias is None or use.bias in self.tied or self.readers[program.tensors[use.bias]] > 1:
            return None
        factors = [
            argument(program.ops[use.op], f) for f in ("alpha", "beta") if use.product.addend
        ]
        outputs = program.values[use.output].shape[use.product.output]
        whole = program.values[program.tensors[use.bias]].shape == (outputs,)
        return use.bias if whole and all(f == 1 for f in factors) else None

    def _obstacle(self, use: Use) -> str:
        """Why least squares cannot rewrite the weight; empty if it can."""
        if self.uses[use.weight] > 1:
            return f"{use.weight} is used {self.uses[use.weight]} times"
        if not self.flow.origin[use.weight_value].whole:
            return f"just a part of {use.weight} is used"
        if self.readers[self.flow.program.tensors[use.weight]] > 1:
            return f"{use.weight} is read by other operations too"
        if use.weight in self.tied:
            return f"{use.weight} is tied to another parameter"
        return ""

    def _kind(self, g: int, made: list[SlotKey], consumers: tuple[Consumer, ...]) -> str:
        if g in self.heads:
            return "head"
        if self._is_stream(g, made, consumers):
            return "stream"
        if any(
            len(self.flow.program.values[self.flow.program.tensors[k[0]]].shape) > 2 for k in made
        ):
            return "channel"
        return "neuron"

    def _is_stream(self, g: int, made: list[SlotKey], consumers: tuple[Consumer, ...]) -> bool:
        """Whether something made from the units is added to them again: a residual stream."""
        starts = {c.use.op for c in consumers}
        ends = {u.op for u in self.flow.uses if (u.weight, u.out_dim) in made}
        if not starts or min(starts) > max(ends, default=-1):
            return False
        reached: set[int] = set()  # values computed from what a consumer made
        back: set[int] = set()  # of these, the ones that carry units of the group again
        # A walk from the readers on: what they made (`reached`), what comes back from it in the
        # shape of the units (`back`), and whether that is added to something that has them still.
        for op in self.flow.program.ops[min(starts) :]:
            returned = any(v in back for v in op.inputs)
            others = (
                [v for v in op.inputs if v not in back]
                if returned and belongs(op, "sum of two")
                else []
            )
            if any(self.labelled.carries(v, g) for v in others):
                return True
            hit = op.index in starts or any(v in reached for v in op.inputs)
            if (hit and op.index in ends) or (returned and self.labelled.carries(op.outs[0], g)):
                back.update(op.outs)
            if hit:
                reached.update(op.outs)
        return False


def _name(producers: tuple[str, ...], taken: set[str]) -> str:
    """The only producer's name, or that of the module that holds them all; made unique."""
    name = producers[0]
    if len(producers) > 1:
        common = _common([p.split(".") for p in producers])
        name = ".".join(common) if common and ".".join(common) not in taken else producers[0]
    unique, n = name, 2
    while unique in taken or not unique:
        unique, n = f"{name or 'model'}#{n}", n + 1
    return unique


def _common(paths: list[list[str]]) -> list[str]:
    """The longest beginning that all paths share."""
    shared = []
    for parts in zip(*paths, strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    return shared
