"""A transformers model's ``config`` follows its layers, where it can say what they have become."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from subprune.structure.groups import Structure

__all__ = ["sync_config"]

_HEADS = ("num_attention_heads", "num_heads", "encoder_attention_heads")
# a config without one takes the head size from the width and the heads
_HEAD_SIZE = ("head_dim", "d_kv")
_WIDTHS = ("intermediate_size", "ffn_dim", "d_ff", "n_inner", "encoder_ffn_dim")


def sync_config(
    model: nn.Module, structure: Structure, kept: Mapping[str, Sequence[int]]
) -> list[str]:
    """Write new numbers of heads and hidden units into ``model.config``; what it cannot express
    comes back in words.

    A config has one number for all layers, so every layer must have been cut to the same.
    """
    config: Any = getattr(model, "config", None)
    if config is None or not hasattr(config, "to_dict"):
        return []
    notes = []
    for kind, sync in (("head", _sync_heads), ("neuron", _sync_widths)):
        cut = {
            g.name: len(kept[g.name]) for g in structure.groups if g.kind == kind and g.name in kept
        }
        changed = {n: k for n, k in cut.items() if k < structure[n].n_units}
        if changed:
            notes += sync(config, structure, changed)
    if any(
        g.kind == "stream" and len(kept.get(g.name, ())) not in (0, g.n_units)
        for g in structure.groups
    ):
        notes.append("the config still names the old width of the residual stream")
    return notes


def _sync_heads(config: Any, structure: Structure, changed: Mapping[str, int]) -> list[str]:
    name = next((n for n in _HEADS if isinstance(getattr(config, n, None), int)), None)
    size = next((n for n in _HEAD_SIZE if isinstance(getattr(config, n, None), int)), None)
    everywhere = [g for g in structure.groups if g.kind == "head"]
    if name is None or size is None:
        return [
            "the config cannot express fewer heads of the same size; the layers have "
            "them, the config does not"
        ]
    if len(set(changed.values())) > 1 or len(changed) < len(everywhere):
        return [_uneven("heads", changed)]
    (k,) = set(changed.values())
    units = {structure[n].n_units for n in changed}
    if len(units) > 1:
        return [_uneven("heads", changed)]
    n = units.pop()
    for field in (name, "num_key_value_heads"):
        old = getattr(config, field, None)
        if isinstance(old, int) and old % n == 0:
            setattr(config, field, old // n * k)
    return []


def _sync_widths(config: Any, structure: Structure, changed: Mapping[str, int]) -> list[str]:
    notes = []
    for size in sorted({structure[n].n_units for n in changed}):
        names = [n for n in _WIDTHS if getattr(config, n, None) == size]
        same = [g.name for g in structure.groups if g.kind == "neuron" and g.n_units == size]
        new = {changed.get(n, size) for n in same}
        if names and len(new) == 1:
            setattr(config, names[0], new.pop())
        else:
            notes.append(_uneven("hidden units", {n: changed[n] for n in same if n in changed}))
    return notes


def _uneven(what: str, changed: Mapping[str, int]) -> str:
    shown = ", ".join(f"{n}: {k}" for n, k in list(changed.items())[:3])
    more = ", …" if len(changed) > 3 else ""
    return (
        f"the config has no place for numbers of {what} that differ from layer "
        f"to layer ({shown}{more})"
    )
