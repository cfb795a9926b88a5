"""What every operation costs, as a function of the units that are left.

The count of an operation is a product of dimension lengths (for attention: two of them). The
recorder notes what PyTorch's own counter says at the recorded shapes; here it is divided by the
lengths, so that what is left is a constant and the prediction for the cut model is exact.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from subprune.errors import StructureError
from subprune.program.program import Op
from subprune.structure.flow import Flow
from subprune.structure.groups import Span, Term
from subprune.structure.labels import Ids

__all__ = ["flop_terms"]

Place = tuple[int, int]  # value id, dimension


def _factors(flow: Flow, op: Op) -> list[list[Place]]:
    """The dimensions whose lengths are multiplied; several lists are added up. Empty: a constant
    cost.
    """
    refs = [a.id for a in op.args[:3] if hasattr(a, "id")]
    rank = [len(flow.shape(v)) for v in refs]
    if op.kind in ("linear", "mm", "addmm", "matmul"):
        x, w = refs[1:3] if op.kind == "addmm" else refs[:2]
        made = 0 if op.kind == "linear" else 1
        return [[*((x, d) for d in range(len(flow.shape(x)))), (w, made)]]
    if op.kind in ("bmm", "baddbmm"):
        a, b = refs[-2:]
        return [[(op.outs[0], 0), (a, 1), (a, 2), (b, 2)]]
    if op.kind == "convolution":
        x, w = refs[:2]
        return [[(x, 0), (w, 0), (w, 1)]]
    if op.kind == "scaled_dot_product_attention":
        q, k, v = refs
        common = [*((op.outs[0], d) for d in range(rank[0] - 1)), (k, rank[1] - 2)]
        return [[*common, (q, rank[0] - 1)], [*common, (v, rank[2] - 1)]]
    return []


def flop_terms(flow: Flow, owner: Callable[[Ids], Span]) -> tuple[Term, ...]:
    """Terms of every operation that PyTorch counts; `owner` turns the ids of a dimension into its
    length.
    """
    known: dict[tuple[int, int], Span] = {}

    def span(place: Place) -> Span:
        if place not in known:
            dim = flow.dims(place[0])[place[1]]
            size = flow.shape(place[0])[place[1]]
            known[place] = owner(dim[0]) if dim and dim[0].size == size else Span(size)
        return known[place]

    terms = []
    for op in flow.program.ops:
        if not op.flops:
            continue
        products = _factors(flow, op)
        unit = sum(int(np.prod([flow.shape(v)[d] for v, d in places])) for places in products)
        if not products:
            terms.append(Term(op.index, op.flops, ()))
            continue
        if op.flops % unit:
            raise StructureError(
                f"{op.where}: {op.flops} operations are not a multiple of its dimensions; report this"
            )
        terms += [
            Term(op.index, op.flops // unit, tuple(span(p) for p in places)) for places in products
        ]
    return tuple(terms)
