"""From labels to groups."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
from torch import nn

from subprune.record import Program, as_inputs, record
from subprune.structure import rules_linear, rules_shape  # noqa: F401  (importing registers the rules)
from subprune.structure.flow import Flow, Use
from subprune.structure.groups import Consumer, Group, Narrowing, Slot, Span, Structure, Units
from subprune.structure.labels import Ids, components
from subprune.structure.terms import flop_terms

__all__ = ["analyse", "find_groups"]

SlotKey = tuple[str, int]


def find_groups(model: nn.Module, example_inputs: Any) -> Structure:
    """Every group of units that can be removed from the model, and why the rest cannot.

    `example_inputs` is a tensor, a tuple of arguments or a dict of keyword arguments. The model is run once,
    on fake tensors: nothing is computed, nothing is changed.
    """
    return analyse(record(model, as_inputs(example_inputs)))


def analyse(program: Program) -> Structure:
    """Groups of a recorded program."""
    flow = Flow(program)
    flow.walk()
    root, reasons = flow.space.solve()
    frozen = np.zeros(flow.space.size, dtype=bool)
    frozen[list(reasons)] = True
    producers, consumers = _roles(flow)
    label = _group_labels(flow, root, frozen, producers)
    builder = _Builder(flow, root, frozen, label, producers, consumers)
    groups = builder.groups()
    refused = _refusals(flow, root, frozen, reasons, producers)
    return Structure(program, groups, refused, flop_terms(flow, builder.span))


def _roles(flow: Flow) -> tuple[dict[SlotKey, int], dict[SlotKey, list[Use]]]:
    """Dimensions that units are made in (with the first operation), and those they are summed over in."""
    producers: dict[SlotKey, int] = {}
    consumers: dict[SlotKey, list[Use]] = defaultdict(list)
    for use in flow.uses:
        if use.kind != "depthwise":
            producers.setdefault((use.weight, use.out_dim), use.op)
            consumers[use.weight, use.in_dim].append(use)
    for op in flow.program.ops:
        if op.kind == "embedding" and op.inputs[0] in flow.origin:
            producers.setdefault((flow.origin[op.inputs[0]][0], 1), op.index)
    return producers, consumers


def _group_labels(flow: Flow, root: Ids, frozen: Ids, producers: dict[SlotKey, int]) -> Ids:
    """Group of every component: units made in the same dimension belong together."""
    pairs = []
    for key in producers:
        units = root[flow.slots[key]]
        units = units[~frozen[units]]
        if units.size:
            pairs.append((units, np.full_like(units, units[0])))
    return components(flow.space.size, pairs)


def _module(tensor: str) -> str:
    return tensor.rpartition(".")[0]


class _Builder:
    """Collects the pieces of each group."""

    def __init__(
        self, flow: Flow, root: Ids, frozen: Ids, label: Ids, producers: dict[SlotKey, int],
        consumers: dict[SlotKey, list[Use]],
    ) -> None:  # fmt: skip
        self.flow, self.root, self.frozen, self.label = flow, root, frozen, label
        self.producers, self.consumers = producers, consumers
        self.unit = np.full(flow.space.size, -1, dtype=np.int64)  # component → unit within its group
        self.names: dict[int, tuple[str, int]] = {}  # label → name and size of the group
        self.members: dict[int, list[SlotKey]] = defaultdict(list)
        for key, ids in flow.slots.items():
            live = root[ids]
            for g in np.unique(label[live[~frozen[live]]]).tolist():
                self.members[g].append(key)
        self.narrow: dict[int, list[tuple[int, int, int, Ids]]] = defaultdict(list)
        for reduction in flow.reductions:
            for dim, found in reduction.dims:
                live = root[found[0]]
                for g in np.unique(label[live[~frozen[live]]]).tolist():
                    self.narrow[g].append((reduction.op, reduction.value, dim, live))

    def groups(self) -> tuple[Group, ...]:
        found: list[Group] = []
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
            found.append(group)
        return tuple(found)

    def _group(self, g: int, first: int, made: list[SlotKey], taken: set[str]) -> Group:
        count = self._number(g, made)
        slots = tuple(self._slot(g, key) for key in self.members[g])
        uses = [u for key in self.members[g] for u in self.consumers.get(key, ())]
        consumers = tuple(self._consumer(g, u) for u in sorted(uses, key=lambda u: u.op))
        producers = tuple(dict.fromkeys(_module(k[0]) for k in made))
        readers = {c.name for c in consumers}
        others = dict.fromkeys(_module(s.tensor) for s in slots)
        followers = tuple(m for m in others if m not in producers and m not in readers)
        kind = self._kind(g, made, consumers)
        narrowings = tuple(Narrowing(o, v, d, self._units(g, live)) for o, v, d, live in self.narrow.get(g, ()))
        name = _name(producers, taken)
        return Group(name, kind, count, slots, producers, followers, consumers, narrowings, first)

    def _number(self, g: int, made: list[SlotKey]) -> int:
        """Number the units in the order they are first made, so that unit i of a plain layer is channel i."""
        count = 0
        for key in made:
            live = self.root[self.flow.slots[key]]
            mine = live[(self.label[live] == g) & ~self.frozen[live]]
            _, at = np.unique(mine, return_index=True)
            for component in mine[np.sort(at)].tolist():
                if self.unit[component] < 0:
                    self.unit[component] = count
                    count += 1
        return count

    def _units(self, g: int, live: Ids) -> Units:
        return np.where((self.label[live] == g) & ~self.frozen[live], self.unit[live], -1)

    def span(self, ids: Ids) -> Span:
        """Length of a dimension with these ids, as a function of the kept units."""
        live = self.root[ids]
        unit = np.where(self.frozen[live], -1, self.unit[live])
        mine = live[unit >= 0]
        parts = []
        for g in np.unique(self.label[mine]).tolist():
            name, count = self.names[g]
            parts.append((name, np.bincount(self.unit[mine[self.label[mine] == g]], minlength=count)))
        return Span(ids.size - mine.size, tuple(parts))

    def _slot(self, g: int, key: SlotKey) -> Slot:
        role = "producer" if key in self.producers else "consumer" if key in self.consumers else "follower"
        return Slot(key[0], key[1], self._units(g, self.root[self.flow.slots[key]]), role)

    def _consumer(self, g: int, use: Use) -> Consumer:
        units = self._units(g, self.root[self.flow.slots[use.weight, use.in_dim]])
        op = self.flow.program.ops[use.op]
        groups = int(op.args[8]) if use.kind.startswith("conv") else 1
        return Consumer(_module(use.weight), use, units, groups, self._obstacle(use))

    def _obstacle(self, use: Use) -> str:
        times = len([u for u in self.flow.uses if u.weight == use.weight])
        vid = self.flow.program.tensors[use.weight]
        readers = sum(vid in op.inputs for op in self.flow.program.ops)
        if times > 1:
            return f"{use.weight} is used {times} times"
        if readers > 1:
            return f"{use.weight} is shared with another layer"
        if use.weight in self.flow.program.aliases.values():
            return f"{use.weight} is tied to another parameter"
        if use.kind == "conv-transpose":
            return "least squares is not set up for transposed convolutions"
        return ""

    def _kind(self, g: int, made: list[SlotKey], consumers: tuple[Consumer, ...]) -> str:
        batch = {int(x) for ids in self.flow.space.batch for x in self.root[ids[:: max(1, ids.size // 8)]]}
        if batch & set(self.root[self.flow.slots[made[0]]].tolist()):
            return "head"
        if self._is_stream(made, consumers):
            return "stream"
        if any(len(self.flow.program.values[self.flow.program.tensors[k[0]]].shape) > 2 for k in made):
            return "channel"
        return "neuron"

    def _is_stream(self, made: list[SlotKey], consumers: tuple[Consumer, ...]) -> bool:
        """Whether something made from the units is added to them again: a residual stream."""
        if len(made) < 2 or not consumers:
            return False
        reached: set[int] = set()
        starts = {c.use.op for c in consumers}
        ends = {u.op for u in self.flow.uses if (u.weight, u.out_dim) in made}
        for op in self.flow.program.ops[min(starts) :]:
            hit = any(v in reached for v in op.inputs)
            if hit and op.index in ends:
                return True
            if hit or op.index in starts:
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


def _refusals(
    flow: Flow, root: Ids, frozen: Ids, reasons: dict[int, str], producers: dict[SlotKey, int]
) -> dict[str, str]:
    """Layers none of whose outputs can go, each with the first reason found."""
    refused: dict[str, str] = {}
    for key in sorted(producers, key=lambda k: producers[k]):
        units = root[flow.slots[key]]
        if frozen[units].all():
            refused[_module(key[0])] = reasons[int(units[0])]
    for name, why in flow.program.opaque.items():
        refused[name] = why
    return refused
