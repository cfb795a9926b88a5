"""Texts as tokens, with a tokenizer of the transformers library, or any other that is called."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from subprune.data.batch import Batch
from subprune.data.sources import draw
from subprune.errors import DataError, OptionError
from subprune.measure.causality import QUANTISED, predicts_next
from subprune.messages import Message

__all__ = ["SUFFIXES", "load_text", "read_lines", "sentences", "token_row", "windows"]

SUFFIXES = (".txt", ".text", ".raw", ".md")
_BATCH = 32  # sentences of a batch
_TRIED = 16  # tokens on which it is tried whether the model is a causal one
_LONGEST = 256  # tokens of a sentence or a window, where no context is given


def load_text(
    path: Path, model: nn.Module, tokenizer: Any, count: int, context: int | None
) -> Tensor | list[dict[str, Tensor]]:
    """For a causal language model one row of tokens; for others the first `count` lines that are
    not empty, as batches with padding, of at most `context` tokens each.
    """
    read = as_tokenizer(tokenizer)
    text = _text(path)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if is_causal(model, read, lines[0]):
        return torch.tensor(read(text, verbose=False)["input_ids"])
    return sentences(lines[:count], read, context)


def read_lines(path: Path) -> list[str]:
    """The lines of a text that are not empty."""
    return [line.strip() for line in _text(path).splitlines() if line.strip()]


def _text(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not text in UTF-8: {error}") from error
    if not text.strip():
        raise DataError(f"{path} has no text in it")
    return text


def is_causal(model: nn.Module, read: Any, line: str) -> bool:
    """Whether the model predicts the next token, tried out on a line."""
    start = torch.tensor(read(line)["input_ids"])[:_TRIED]
    start = start if len(start) > 1 else start.repeat(2)
    return predicts_next(model, Batch(((start[None],), {}), None, 1), slack=QUANTISED)


def token_row(texts: Sequence[str], read: Any) -> Tensor:
    """All texts as one row of tokens, with the tokenizer's mark of an end between them."""
    end = getattr(read, "eos_token_id", None)
    row: list[int] = []
    for text in texts:
        row += [*read(text)["input_ids"], *([] if end is None else [end])]
    return torch.tensor(row, dtype=torch.int64)


def windows(row: Tensor, context: int | None, model: nn.Module, n: int | None, seed: int) -> Tensor:
    """Pieces of a row of tokens that follow each other, [pieces, context]; `n` of them by seed."""
    length = min(context or _LONGEST, len(row), _positions(model) or len(row))
    if length < 2:
        raise DataError(f"the text has {len(row)} tokens; at least 2 are needed")
    count = len(row) // length
    pieces = row[: count * length].view(count, length)
    rows = draw(count, n, seed)
    return pieces if rows is None else pieces[rows]


def _positions(model: nn.Module) -> int | None:
    """How many tokens the model has positions for, if it says so."""
    known = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    return known if isinstance(known, int) and known > 0 else None


def sentences(
    lines: Sequence[str], read: Any, context: int | None, labels: Tensor | None = None
) -> list[dict[str, Tensor]]:
    """Batches of sentences, padded at the end, with their labels where there are any."""
    if getattr(read, "pad_token", "") is None:
        read.pad_token = read.eos_token
    length = context or _LONGEST
    how = {"padding": True, "truncation": True, "max_length": length, "return_tensors": "pt"}
    batches = []
    for i in range(0, len(lines), _BATCH):
        batch = dict(read(list(lines[i : i + _BATCH]), **how))
        batches.append(batch if labels is None else {**batch, "labels": labels[i : i + _BATCH]})
    return batches


def as_tokenizer(given: Any) -> Any:
    """A tokenizer itself, or the one of a folder; nothing is fetched from anywhere."""
    if given is None:
        raise OptionError(
            Message(
                "a model that takes tokens reads a text with a tokenizer: give its folder as "
                "{tokenizer=}"
            )
        )
    if not isinstance(given, str | Path):
        if not callable(given):
            kind = type(given).__name__
            words = "{tokenizer:name} must be a folder or a tokenizer, got a {kind}"
            raise OptionError(Message(words, kind=kind))
        return given
    folder = Path(given)
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise OptionError(
            "text is read with the transformers library, which is not installed: pip install "
            "'subprune[text]', or give tokens in a .npy file"
        ) from error
    if not folder.is_dir():
        words = "{tokenizer:name} {folder!r} is not a folder; give one that holds one"
        raise OptionError(Message(words, folder=str(folder)))
    try:
        return AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:  # whatever a file in it provokes
        first = "".join(str(error).strip().splitlines()[:1])[:200]
        words = "{tokenizer:name} {folder} holds no tokenizer that transformers can load: {why}"
        why = f"{type(error).__name__}: {first}"
        raise DataError(Message(words, folder=str(folder), why=why)) from error
