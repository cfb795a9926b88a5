"""Whether a model is a causal language model, by what it does.

Its classes are the words of a table that something is looked up in, there is one answer for every
token, and later tokens do not change earlier answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from subprune.data.batch import Batch, first_samples
from subprune.measure.answers import main_output
from subprune.measure.language import attended, tokens_of
from subprune.program.borrow import borrowed
from subprune.program.ops import argument, belongs
from subprune.program.program import Inputs, Ref, call, flat_tensors
from subprune.program.record import plain

if TYPE_CHECKING:
    from subprune.program.program import Program

__all__ = ["QUANTISED", "predicts_next"]

QUANTISED = 0.1
"""A slack for layers that are quantised as they run: one scale for all tokens, so that later ones
change the rounding of earlier ones.
"""


def predicts_next(
    model: nn.Module, batch: Batch, program: Program | None = None, slack: float = 0.0
) -> bool:
    """Whether the model is a causal language model, tried out on the batch's first input.

    program: a recorded run of the model, if there is one. slack: how far earlier answers may move
    all the same, as a share of what later ones do.
    """
    sizes = _vocabularies(model, program)
    if not sizes:
        return False
    try:
        one = first_samples(batch, 1)
        before = _answer(model, one.inputs)
        if before.ndim != 3 or not before.is_floating_point() or before.shape[-1] not in sizes:
            return False
        tokens = tokens_of(one, tuple(before.shape[:-1]))
        return tokens is not None and _moved(model, one, *tokens, before, slack)
    except Exception:  # a model that takes whole batches only
        return False


def _vocabularies(model: nn.Module, program: Program | None) -> set[int]:
    """Rows of the tables that something is looked up in."""
    if program is None:
        return {m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding)}
    tables = [argument(op, "weight") for op in program.ops if belongs(op, "look-up")]
    return {program.values[x.id].shape[0] for x in tables if isinstance(x, Ref)}


def _moved(
    model: nn.Module, one: Batch, name: str, tokens: Tensor, before: Tensor, slack: float
) -> bool:
    """Whether the second half of the answers [1, T, V] alone moves when the second half of the
    tokens changes.
    """
    places = attended(one, name, tokens)[0].nonzero().flatten()
    if len(places) < 2:
        return False
    early, late = places[: len(places) // 2], places[len(places) // 2 :]
    other = tokens.clone()  # every late token becomes the next one of the vocabulary
    other[0, late] = (other[0, late] + 1) % before.shape[-1]
    args, kwargs = one.inputs
    changed = tuple(other if str(i) == name else x for i, x in enumerate(args))
    after = _answer(model, (changed, {n: other if n == name else x for n, x in kwargs.items()}))
    rounding = 4 * torch.finfo(before.dtype).eps * float(before.abs().max())
    moved = (after - before)[0].abs().amax(-1)  # [T]
    # Later answers must move, and by more than rounding moves the earlier ones.
    later = float(moved[late].max())
    return float(moved[early].max()) <= max(rounding, slack * later) < later


def _answer(model: nn.Module, inputs: Inputs) -> Tensor:
    with borrowed(model), torch.no_grad():
        return main_output(flat_tensors(plain(call(model, inputs))))
