"""The edges of a model: tables that are looked up or added, and the layers that make its output.

Between them lie the blocks: what people mean by a share of a transformer, whose word tables may be
larger than all of its layers together.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from subprune.program.ops import belongs, norm

if TYPE_CHECKING:
    from subprune.program.program import Op, Program
    from subprune.structure.flow import Flow, Use

__all__ = ["Edges", "find_edges"]


@dataclass(frozen=True)
class Edges:
    """What does not count as part of the blocks."""

    tensors: frozenset[str] = frozenset()  # parameters, by name
    ops: frozenset[int] = frozenset()  # operations that make the output


def find_edges(flow: Flow) -> Edges:
    """Embeddings, positions, and the last layers."""
    heads = _heads(flow.program, flow.uses)
    biases = {use.bias for use in heads if use.bias is not None}
    tensors = _tables(flow) | {use.weight for use in heads} | biases
    return Edges(frozenset(tensors), frozenset(use.op for use in heads))


def _tables(flow: Flow) -> set[str]:
    """Parameters whose rows are looked up, added to what flows, or concatenated with it (positions, tokens
    of the model's own); not weights, biases and factors.
    """
    program = flow.program
    weights = {use.weight for use in flow.uses}
    # values that are a parameter of several dimensions, or a view of one
    held = {
        vid: name
        for name, vid in program.tensors.items()
        if program.values[vid].source == "param" and len(program.values[vid].shape) > 1
    }
    tables: set[str] = set()
    for op in program.ops:
        read = {v: held[v] for v in op.inputs if v in held}
        if belongs(op, "look-up"):
            tables |= set(read.values())
        elif belongs(op, "table"):
            tables |= set(read.values()) - weights
        elif len(read) == len(op.inputs) == 1 and belongs(op, "copy"):
            held.update(dict.fromkeys(op.outs, next(iter(read.values()))))
    return tables


def _heads(program: Program, uses: list[Use]) -> list[Use]:
    """Layers whose output is the model's, or becomes it position by position and nothing else."""
    made = {use.output: use for use in uses}
    maker = {vid: op for op in program.ops for vid in op.outs}
    readers = Counter(vid for op in program.ops for vid in op.inputs)
    known = set(program.tensors.values())
    heads: dict[int, Use] = {}
    for output in program.outputs:
        value: int | None = output
        # what others read too is not an end of the model: keys and values that are returned
        most = 0
        while value is not None and readers[value] <= most:
            if value in made:
                heads[made[value].op] = made[value]
                break
            value, most = _before(maker.get(value), known), 1
    return list(heads.values())


def _before(op: Op | None, known: set[int]) -> int | None:
    """The one value that an operation makes its output of; None if there are several, or a norm
    lies between.
    """
    if op is None or norm(op) is not None:
        return None
    others = [vid for vid in op.inputs if vid not in known]
    return others[0] if len(others) == 1 else None
