"""Causal language models: which output predicts which token, and how well."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from subprune.data.tokens import IGNORED
from subprune.program.program import flat_tensors

if TYPE_CHECKING:
    from subprune.data.batch import Batch

__all__ = ["Surprise", "attended", "next_tokens", "surprise", "token_count", "tokens_of"]

_WHOLE_NUMBERS = (torch.int64, torch.int32)


def tokens_of(batch: Batch, shape: tuple[int, ...]) -> tuple[str, Tensor] | None:
    """The integer input of that shape with its name, a decoder's own first; None if there is none."""
    args, kwargs = batch.inputs
    named = {**{str(i): x for i, x in enumerate(args)}, **kwargs}
    whole = [
        (name, x)
        for name, x in named.items()
        if isinstance(x, Tensor) and x.dtype in _WHOLE_NUMBERS and tuple(x.shape) == tuple(shape)
    ]
    ids = [(name, x) for name, x in whole if not name.endswith(("mask", "type_ids"))]
    ids.sort(key=lambda pair: not pair[0].startswith("decoder"))
    return ids[0] if ids else None


def token_count(batch: Batch) -> int:
    """Tokens in the first integer input [N, T], padding included; 0 if there is none."""
    shapes = [x.shape for x in flat_tensors(batch.inputs) if x.dtype in _WHOLE_NUMBERS]
    return next((shape[0] * shape[1] for shape in shapes if len(shape) == 2 and shape[1] > 1), 0)


def attended(batch: Batch, name: str, tokens: Tensor) -> Tensor:
    """Which tokens count: [N, T] bool; those that the attention mask leaves out are padding."""
    key = "decoder_attention_mask" if name.startswith("decoder") else "attention_mask"
    mask = batch.inputs[1].get(key)
    if isinstance(mask, Tensor) and mask.shape == tokens.shape:
        return mask.bool()
    return torch.ones_like(tokens, dtype=torch.bool)


def next_tokens(batch: Batch, shape: tuple[int, ...]) -> Tensor:
    """What the answer at every position should be: [N, T]; `IGNORED` where nothing is predicted.

    That is the next token, unless one of the two is padding. Labels that repeat the tokens mark
    with -100 those that do not count; other labels are themselves what every position should give.
    """
    named = tokens_of(batch, shape)
    assert named is not None
    name, tokens = named
    on = attended(batch, name, tokens)
    targets = torch.full_like(tokens, IGNORED, dtype=torch.int64)
    targets[:, :-1] = torch.where(on[:, :-1] & on[:, 1:], tokens[:, 1:].long(), IGNORED)
    labels = batch.labels
    if labels is None or labels.is_floating_point() or labels.shape != tokens.shape:
        return targets
    counted = labels != IGNORED
    if bool((labels == tokens)[counted].all()):
        targets[:, :-1] = torch.where(counted[:, 1:], targets[:, :-1], IGNORED)
        return targets
    return labels.long()


_AT_ONCE = 2**20  # logits


def surprise(logits: Tensor, targets: Tensor) -> tuple[float, int]:
    """−log of the probability of what came, summed over tokens, and how many there were.

    logits: [N, T, V]; targets: [N, T], `IGNORED` where nothing counts.
    """
    rows = max(1, _AT_ONCE // logits.shape[-1])
    total, wanted = 0.0, targets.to(logits.device).reshape(-1)
    pieces = logits.reshape(-1, logits.shape[-1]).split(rows)
    for piece, expected in zip(pieces, wanted.split(rows), strict=True):
        exact = piece if piece.dtype == torch.float64 else piece.float()
        total += float(F.cross_entropy(exact, expected, ignore_index=IGNORED, reduction="sum"))
    return total, int((targets != IGNORED).sum())


class Surprise:
    """The sum over batches."""

    def __init__(self) -> None:
        self.total, self.tokens = 0.0, 0

    def add(self, total: float, tokens: int) -> None:
        """What `surprise` gave for one batch."""
        self.total, self.tokens = self.total + total, self.tokens + tokens

    @property
    def perplexity(self) -> float:
        """exp of the mean; nan without tokens, infinite where that is too large a number."""
        if not self.tokens:
            return float("nan")
        mean = self.total / self.tokens
        return math.exp(mean) if mean < 700 else math.inf
