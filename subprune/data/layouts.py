"""Where the tokens of a batch lie in the values of a network.

It is found out once for each model: it is recorded again, on shapes alone, with another length on
the mask's side and more samples. The dimensions of a value that follow both are those of the
tokens. Shapes alone would not tell: the two sides of an encoder-decoder may be of one length, and
a length may be the width of a layer too.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from subprune.data.tokens import MASKS, masks
from subprune.program.layout import Layout
from subprune.program.ops import product
from subprune.program.record import record

if TYPE_CHECKING:
    from subprune.data.batch import Batch
    from subprune.program.program import Inputs, Program

__all__ = ["lay_out"]


def lay_out(
    model: nn.Module,
    batches: Sequence[Batch],
    programs: Sequence[Program],
    known: Mapping[int, Layout] | None = None,
) -> list[str]:
    """Tell the programs, one per batch, where tokens lie in their values; returns remarks.

    All programs have the same operations. known: what was found out with other batches.
    Nothing is run where all tokens count.
    """
    layouts, remarks = dict(known or {}), []
    read = {layout.mask for layout in layouts.values()}
    for name in MASKS:
        padded = [(b, p) for b, p in zip(batches, programs, strict=True) if name in masks(b.inputs)]
        if not padded or name in read:
            continue
        batch, program = max(padded, key=lambda pair: pair[0].inputs[1][name].shape[1])
        new = _layouts(model, program, batch.inputs, name)
        if not any(op.outs[0] in new for op in program.ops if product(op) is not None):
            remarks.append(
                f"{name}: the positions that it is about were not found in the model, so all "
                "tokens count as data"
            )
        layouts = {**new, **layouts}
    for program in programs:
        program.layouts = layouts
    return remarks


def _layouts(model: nn.Module, program: Program, inputs: Inputs, name: str) -> dict[int, Layout]:
    """By value: where the tokens of a mask lie; empty if the model does not take other lengths."""
    count, length = inputs[1][name].shape
    # Learned positions may have no room for a longer one, and length 1 may be a case of its own.
    for new in (length - 1, length + 1):
        # Another number of samples, such that the product changes too: [N·L, …] shows itself.
        more = next(n for n in (count + 1, count + 2) if n * new != count * length)
        other = _recorded(model, _resized(inputs, name, more, new), program) if new else None
        if other is not None:
            return _compared(program, other, name, (count, more), (length, new))
    return {}


def _recorded(model: nn.Module, inputs: Inputs, like: Program) -> Program | None:
    """The record of another call, if it takes the same path."""
    try:
        program = record(model, inputs)
    except Exception:  # whatever a model may raise on inputs of another shape
        return None
    same = [str(op.func) for op in program.ops] == [str(op.func) for op in like.ops]
    return program if same else None


def _compared(
    program: Program, other: Program, name: str, counts: tuple[int, int], lengths: tuple[int, int]
) -> dict[int, Layout]:
    """By value: its dimensions that follow the number of samples and their length.

    counts, lengths: those of the two programs.
    """
    layouts = {}
    both = (counts[0] * lengths[0], counts[1] * lengths[1])
    for vid, value in program.values.items():
        if vid not in other.values or len(other.values[vid].shape) != len(value.shape):
            continue
        pairs = list(zip(value.shape, other.values[vid].shape, strict=True))
        samples = [d for d, pair in enumerate(pairs) if pair == counts]
        positions = [d for d, pair in enumerate(pairs) if pair == lengths]
        flat = [d for d, pair in enumerate(pairs) if pair == both]
        if len(samples) == len(positions) == 1:
            layouts[vid] = Layout(name, samples[0], positions[0])
        elif len(flat) == 1 and not samples and not positions:
            layouts[vid] = Layout(name, flat[0], flat[0])
    return layouts


def _resized(inputs: Inputs, name: str, samples: int, length: int) -> Inputs:
    """Arguments for a number of samples, with this length on the side of the mask `name`."""
    args, kwargs = inputs
    count, old = kwargs[name].shape

    def resized(x: Any, own: bool) -> Any:
        if not isinstance(x, Tensor) or not x.ndim:
            return x
        if own and x.ndim > 1 and x.shape[1] == old:
            x = x[:, torch.arange(length).clamp(max=old - 1)]
        if x.shape[0] == count:
            x = x[torch.arange(samples).clamp(max=count - 1)]
        return x

    decoder = MASKS["decoder_attention_mask"]
    side = name.startswith(decoder)
    new = {}
    for key, value in kwargs.items():
        own = key.startswith(decoder) == side
        new[key] = tree_map(functools.partial(resized, own=own), value)
    return tree_map(lambda x: resized(x, not side), args), new
