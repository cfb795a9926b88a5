"""Which layers keep a goal out of reach, since they stay whole, and why."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from subprune.messages import Message, joined

if TYPE_CHECKING:
    from torch import nn

    from subprune.structure.groups import Structure

__all__ = ["in_the_way"]

_NAMES = 3


def in_the_way(
    model: nn.Module, structure: Structure, pruned: Collection[str], edges: Collection[str] = ()
) -> str:
    """What stays whole, the largest first, each with why; empty if nothing does.

    pruned: groups that are cut. edges: parameters that the goal does not count.
    """
    cut = {c.name for g in structure.groups if g.name in pruned for c in g.consumers}
    sizes = dict.fromkeys(structure.left_whole(pruned), 0)
    for tensor, weight in model.named_parameters():
        for name in sizes:
            if tensor not in edges and (not name or tensor.startswith(f"{name}.")):
                sizes[name] += weight.numel()
    whole = [x for x in sorted(sizes, key=lambda name: -sizes[name]) if sizes[x] and x not in cut]
    reasons: dict[str, list[str]] = {}
    for name in whole[:_NAMES]:
        why = structure.left_whole(pruned)[name]
        reasons.setdefault(why, []).append(name or "the model itself")
    shown = [
        Message("{names} ({why})", names=", ".join(names), why=why)
        for why, names in reasons.items()
    ]
    more = len(whole) - _NAMES
    if more > 0:
        shown.append(Message(f"and {more} other{'s' if more > 1 else ''}"))
    return Message("; left whole: {shown}", shown=joined(shown, ", ")) if shown else ""
