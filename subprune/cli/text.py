"""Text files as tokens, with a tokenizer of the transformers library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from subprune.data.batches import Batch
from subprune.errors import DataError, OptionError
from subprune.measure.causality import QUANTISED, predicts_next

__all__ = ["SUFFIXES", "load_text"]

SUFFIXES = (".txt", ".text", ".raw", ".md")
_BATCH = 32  # sentences of a batch
_TRIED = 16  # tokens on which it is tried whether the model is a causal one
_LONGEST = 256  # tokens of a sentence, where no context is given


def load_text(
    path: Path, model: nn.Module, tokenizer: Path, count: int, context: int | None
) -> Tensor | list[dict[str, Tensor]]:
    """For a causal language model one row of tokens; for others the first `count` lines that are
    not empty, as batches with padding, of at most `context` tokens each.
    """
    read = _tokenizer(tokenizer)
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not text in UTF-8: {error}") from error
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        raise DataError(f"{path} has no text in it")
    start = torch.tensor(read(lines[0], verbose=False)["input_ids"])[:_TRIED]
    start = start if len(start) > 1 else start.repeat(2)
    if predicts_next(model, Batch(((start[None],), {}), None, 1), slack=QUANTISED):
        return torch.tensor(read(text, verbose=False)["input_ids"])
    return _sentences(lines[:count], read, context or _LONGEST)


def _sentences(lines: list[str], read: Any, length: int) -> list[dict[str, Tensor]]:
    """Batches of sentences, padded at the end."""
    if read.pad_token is None:
        read.pad_token = read.eos_token
    parts = [lines[i : i + _BATCH] for i in range(0, len(lines), _BATCH)]
    how = {"padding": True, "truncation": True, "max_length": length, "return_tensors": "pt"}
    return [dict(read(part, **how)) for part in parts]


def _tokenizer(folder: Path) -> Any:
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise OptionError(
            "text is read with the transformers library, which is not installed; install it, or "
            "give tokens in a .npy file"
        ) from error
    if not folder.is_dir():
        raise OptionError(f"--tokenizer {str(folder)!r} is not a folder; give one that holds one")
    try:
        return AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:  # whatever a file in it provokes
        first = str(error).strip().splitlines()[:1]
        raise DataError(
            f"--tokenizer {folder} holds no tokenizer that transformers can load: "
            f"{type(error).__name__}: {''.join(first)[:200]}"
        ) from error
