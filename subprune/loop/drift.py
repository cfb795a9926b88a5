"""Layers whose inputs drift because earlier layers were cut, though none of their own inputs is.

They are refitted on the way: from what they receive in the pruned model to what they gave in the
dense one.
"""

from __future__ import annotations

from collections.abc import Sequence

from subprune.structure.groups import Consumer, Group, Structure

__all__ = ["drifting", "station"]


def drifting(structure: Structure, pruned: Sequence[Group]) -> list[Consumer]:
    """The layers, in forward order, that can be refitted and read none of the groups pruned.

    Only those after the first layer that is refitted anyway: before it nothing has changed.
    """
    readers = [c.use for g in pruned for c in g.consumers]
    operations, weights = {use.op for use in readers}, {use.weight for use in readers}
    first = min(operations, default=0)
    return [
        layer
        for layer in structure.layers
        if layer.reweightable and layer.use.op > first and layer.use.weight not in weights
    ]


def station(structure: Structure, consumer: Consumer) -> Group:
    """The layer as the reader of a group that none of its columns belongs to: all of them stay."""
    return Group(
        name=consumer.name,
        kind="drift",
        n_units=1,
        slots=(),
        producers=(),
        followers=(),
        consumers=(consumer,),
        first_op=consumer.use.op,
        program=structure.program,
    )
