"""From labels to groups."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from subprune.program.ops import belongs
from subprune.structure.build import Builder, Labelled, SlotKey, layer, owner
from subprune.structure.components import Ids, components
from subprune.structure.edges import find_edges
from subprune.structure.flow import Flow, Use
from subprune.structure.groups import Group, Structure
from subprune.structure.rules import index, linear, shape  # noqa: F401  (importing registers the rules)
from subprune.structure.terms import flop_terms

if TYPE_CHECKING:
    from subprune.program.program import Program

__all__ = ["analyse"]


def analyse(program: Program) -> Structure:
    """Groups of a recorded program."""
    flow = Flow(program)
    flow.walk()
    root, reasons = flow.space.solve()
    frozen = np.zeros(flow.space.size, dtype=bool)
    frozen[list(reasons)] = True
    producers, consumers = _roles(flow)
    label = _group_labels(flow, root, frozen, producers)
    builder = Builder(Labelled(flow, root, frozen, label), producers, consumers)
    groups = builder.groups()
    refused = _Refusals(flow, root, reasons, producers).all(groups)
    terms = flop_terms(flow, builder.span)
    return Structure(
        program=program,
        groups=groups,
        refused=refused,
        terms=terms,
        layers=builder.layers(),
        edges=find_edges(flow),
    )


def _roles(flow: Flow) -> tuple[dict[SlotKey, int], dict[SlotKey, list[Use]]]:
    """Dimensions that units are made in (with the first operation), and those they are summed over
    in.
    """
    producers: dict[SlotKey, int] = {}
    consumers: dict[SlotKey, list[Use]] = defaultdict(list)
    for use in flow.uses:
        if not use.depthwise:
            producers.setdefault((use.weight, use.out_dim), use.op)
            consumers[use.weight, use.in_dim].append(use)
    for op in flow.program.ops:
        if belongs(op, "look-up") and op.inputs[0] in flow.origin:
            producers.setdefault((flow.origin[op.inputs[0]].name, 1), op.index)
    return producers, consumers


def _group_labels(flow: Flow, root: Ids, frozen: Ids, producers: dict[SlotKey, int]) -> Ids:
    """Group of every component: units made in the same dimension belong together."""
    pairs = {}
    for key in producers:
        units = root[flow.slots[key]]
        units = units[~frozen[units]]
        if units.size:
            pairs[units.tobytes()] = (units, np.full_like(units, units[0]))
    return components(flow.space.size, list(pairs.values()))


class _Refusals:
    """Why positions stay: every parameter is in a group, or named here, or both where some of it
    stays.
    """

    def __init__(
        self, flow: Flow, root: Ids, reasons: dict[int, str], producers: dict[SlotKey, int]
    ) -> None:
        self.flow, self.root, self.reasons, self.producers = flow, root, reasons, producers
        self.refused: dict[str, str] = {}

    def all(self, groups: Sequence[Group]) -> dict[str, str]:
        """Layer → reason; a parameter of its own name where its module has others that can go."""
        self._outputs()
        self._others({slot.tensor for g in groups for slot in g.slots})
        opaque = {name: why for name, why in self.flow.program.opaque.items() if why}
        return {**self.refused, **opaque}

    def _outputs(self) -> None:
        """Layers none of whose outputs can go, or just some of them."""
        partly: dict[str, str] = {}
        for key, op in self.producers.items():
            name, units = (
                layer(self.flow.program, key[0], op),
                self.root[self.flow.slots[key]].tolist(),
            )
            stay = Counter(self.reasons[u] for u in units if u in self.reasons)
            if not stay:
                continue
            why, count = stay.most_common(1)[0][0], stay.total()
            if count == len(units):
                self.refused.setdefault(name, self.reasons[units[0]])
            else:
                partly.setdefault(name, f"{count} of its {len(units)} outputs stay: {why}")
        for name, why in partly.items():
            self.refused.setdefault(name, why)

    def _others(self, grouped: set[str]) -> None:
        """Parameters in no group that no refused layer holds: of norms, of rules that are not
        known, single numbers.
        """
        program = self.flow.program
        read = {v for op in program.ops for v in op.inputs}
        busy = {owner(name) for name in grouped}
        for name, vid in program.tensors.items():
            holder = owner(name)
            if name in grouped or vid not in read or program.values[vid].source != "param":
                continue
            if holder in self.refused or any(
                f"{name}.".startswith(f"{o}.") for o in program.opaque
            ):
                continue
            self.refused[name if holder in busy or not holder else holder] = self._why(name)

    def _why(self, name: str) -> str:
        ids = [ids for (tensor, _), ids in self.flow.slots.items() if tensor == name]
        units = [u for some in ids for u in self.root[some].tolist()]
        if not ids or all(some.size == 1 for some in ids):
            return "is a single number for all units"
        return next(
            (self.reasons[u] for u in units if u in self.reasons),
            "no layer makes the units that it holds",
        )
