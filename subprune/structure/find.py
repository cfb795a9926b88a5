"""From labels to groups."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
from torch import nn

from subprune.accept import check_kind
from subprune.borrow import given_back
from subprune.record import Program, as_inputs, record
from subprune.structure import rules_index, rules_linear, rules_shape  # noqa: F401  (importing registers the rules)
from subprune.structure.build import Builder, Labelled, SlotKey, layer, owner
from subprune.structure.flow import Flow, Use
from subprune.structure.groups import Structure
from subprune.structure.labels import Ids, components
from subprune.structure.terms import flop_terms

__all__ = ["analyse", "find_groups"]


@given_back
def find_groups(model: nn.Module, example_inputs: Any) -> Structure:
    """Every group of units that can be removed from the model, and why the rest cannot.

    `example_inputs` is a tensor, a tuple of arguments or a dict of keyword arguments. The model is run once,
    on fake tensors: nothing is computed, nothing is changed.
    """
    check_kind(model)
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
    builder = Builder(Labelled(flow, root, frozen, label), producers, consumers)
    groups = builder.groups()
    refused = _refusals(flow, root, reasons, producers)
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


def _refusals(flow: Flow, root: Ids, reasons: dict[int, str], producers: dict[SlotKey, int]) -> dict[str, str]:
    """Layers none of whose outputs can go, each with the first reason found."""
    refused: dict[str, str] = {}
    made = {name for name, _ in producers}
    hidden: dict[str, list[int]] = defaultdict(list)  # weights that no known operation makes units with
    for (name, _), ids in flow.slots.items():
        if name not in made and flow.program.values[flow.program.tensors[name]].source == "param":
            hidden[name] += root[ids].tolist()
    found = [(layer(flow.program, k[0], op), root[flow.slots[k]].tolist()) for k, op in producers.items()]
    found += [(owner(n), u) for n, u in hidden.items() if len(flow.shape(flow.program.tensors[n])) > 1]
    for name, units in found:
        if units and all(u in reasons for u in units):
            refused.setdefault(name, reasons[units[0]])
    for name, why in flow.program.opaque.items():
        refused[name] = why
    return refused
