"""What every operation costs, as a function of the units that are left.

The count of an operation is a product of dimension lengths (for attention: two of them). The
recorder notes what PyTorch's own counter says at the recorded shapes; here it is divided by the
lengths, so that what is left is a constant and the prediction for the cut model is exact.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from subprune.errors import StructureError
from subprune.program.ops import lengths
from subprune.structure.groups import Span, Term

if TYPE_CHECKING:
    from subprune.structure.components import Ids
    from subprune.structure.flow import Flow

__all__ = ["flop_terms"]

Place = tuple[int, int]  # value id, dimension


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
        # What PyTorch has counted is a multiple of the product of these lengths: of kernels, of two
        # for multiply and add, of output positions.
        products = lengths(op, lambda value: len(flow.shape(value)))
        unit = sum(int(np.prod([flow.shape(v)[d] for v, d in places])) for places in products)
        if not products:
            terms.append(Term(op.index, op.flops, ()))
            continue
        if op.flops % unit:
            raise StructureError(
                f"{op.where}: {op.flops} operations are not a multiple of "
                "its dimensions; report this"
            )
        terms += [
            Term(op.index, op.flops // unit, tuple(span(p) for p in places)) for places in products
        ]
    return tuple(terms)
