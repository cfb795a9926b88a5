"""Which tokens count: padding is not data.

A mask among the inputs, `attention_mask` or `decoder_attention_mask`, [N, L] of zeros and ones,
says which tokens of a batch count; `subprune.data.layouts` where they lie in the values of a
network.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.utils._pytree import tree_flatten

from subprune.errors import DataError
from subprune.messages import Message
from subprune.program.layout import Layout, counted

if TYPE_CHECKING:
    from subprune.data.batch import Batch
    from subprune.program.program import Inputs, Program

__all__ = [
    "IGNORED",
    "MASKS",
    "counted_by_shape",
    "counted_labels",
    "masks",
    "token_counts",
    "token_limit",
    "unclear",
]

IGNORED = -100  # PyTorch's label for answers that do not count

MASKS: Mapping[str, str] = {"attention_mask": "", "decoder_attention_mask": "decoder_"}
"""Inputs that say which tokens count, and how the names of other inputs of their side begin."""


def masks(inputs: Inputs) -> dict[str, Tensor]:
    """By name: which tokens count, [N, L] bool. Masks that let all count are left out."""
    given = {name: _clear(inputs[1].get(name)) for name in MASKS}
    return {name: x for name, x in given.items() if x is not None and not bool(x.all())}


def _clear(x: Any) -> Tensor | None:
    """A mask [N, L] of zeros and ones, not all zeros, as bool; None for anything else."""
    if not isinstance(x, Tensor) or x.ndim != 2:
        return None
    ones = x == 1
    return ones if bool(ones.any()) and bool((ones | (x == 0)).all()) else None


def unclear(inputs: Inputs) -> list[str]:
    """Remarks on masks that cannot be read."""
    remarks = []
    for name in MASKS:
        x = inputs[1].get(name)
        if isinstance(x, Tensor) and _clear(x) is None:
            remarks.append(
                f"{name} of shape {tuple(x.shape)} is not [inputs, length] of zeros and ones, so "
                "all tokens count as data"
            )
    return remarks


# ---- what counts of a value ----------------------------------------------------------------------


def counted_by_shape(inputs: Inputs, shape: Sequence[int]) -> Tensor | None:
    """The same of a value [N, L, …] of which just the shape is known.

    Where masks of both sides fit, positions count that count on both.
    """
    counting: Tensor | None = None
    for name, mask in masks(inputs).items():
        fits = len(shape) > 2 and tuple(shape[:2]) == tuple(mask.shape)
        wide = Layout(name, 0, 1).spread(mask, shape) if fits else None
        if wide is not None:
            counting = wide if counting is None else counting & wide
    return counting


def counted_labels(program: Program, batch: Batch) -> Tensor | None:
    """The labels, with `IGNORED` where the output's position does not count."""
    labels, known = batch.labels, masks(batch.inputs)
    if labels is None or not known or labels.is_floating_point():
        return labels
    valid = counted(program, known, program.answer)
    if valid is None:
        return labels
    # Of the output [N, L, classes] the labels have all dimensions but one.
    for dim in range(valid.ndim - 1, 0, -1):
        if valid.shape[dim] == 1 and valid.ndim - 1 == labels.ndim:
            return labels.masked_fill(~valid.squeeze(dim).to(labels.device), IGNORED)
    return labels


# ---- how many ------------------------------------------------------------------------------------

_TOKENS = re.compile(r"\s*(\d[\d_,]*)\s*tokens?\s*")


def token_limit(n_samples: int | str | None) -> int | None:
    """How many tokens ``n_samples="4096 tokens"`` asks for; None where it counts inputs."""
    whole = type(n_samples) is int and n_samples > 0
    if n_samples is None or whole:
        return None
    text = _TOKENS.fullmatch(n_samples) if isinstance(n_samples, str) else None
    number = 0 if text is None else int(re.sub("[_,]", "", text[1]))
    if number < 1:
        why = (
            "{n_samples:name} must be a positive integer, or a number of tokens such as "
            '"4096 tokens" (in Python also None, for all), got {got!r}'
        )
        raise DataError(Message(why, got=n_samples))
    return number


def token_counts(batch: Batch) -> list[int]:
    """How many tokens of each sample count: by the mask, or by whole-number inputs [N, L]."""
    for name in MASKS:
        mask = _clear(batch.inputs[1].get(name))
        if mask is not None:
            return [int(n) for n in mask.sum(1)]
    for x in tree_flatten(batch.inputs)[0]:
        if not isinstance(x, Tensor) or x.is_floating_point():
            continue
        if x.ndim == 2 and x.shape[0] == batch.size:
            return [x.shape[1]] * batch.size
    raise DataError(
        Message(
            "{n_samples:name} counts tokens, and the inputs have none: neither an attention_mask "
            "[inputs, length] nor whole numbers of that shape; give a number of inputs"
        )
    )
