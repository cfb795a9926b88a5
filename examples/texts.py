"""What the examples share: a model of the transformers library, and sequences of a text."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Case:
    """A model, sequences to calibrate with, and tokens that are for judging alone."""

    model: Any
    data: list[dict[str, Tensor]]
    test: Tensor  # [tokens]
    context: int
    output: Path


def case(what: str, words: list[str] | None = None) -> Case:
    """From the command line: FOLDER of a causal language model, TEXT, and --output."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("folder", type=Path, help="a causal language model and its tokenizer")
    parser.add_argument("text", type=Path, help="a text file")
    parser.add_argument("--output", type=Path, default=Path("pruned"), help="a folder")
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--length", type=int, default=256, help="tokens of a sequence")
    options = parser.parse_args(words)
    model = AutoModelForCausalLM.from_pretrained(options.folder, dtype=torch.float32).eval()
    model.config.use_cache = False
    tokenizer = AutoTokenizer.from_pretrained(options.folder)
    ids = torch.tensor(tokenizer(options.text.read_text(), verbose=False)["input_ids"])
    seen, length = len(ids) * 3 // 5, options.length  # the rest is for judging
    starts = torch.linspace(0, seen - length, options.sequences).long().tolist()
    rows = torch.stack([ids[s : s + length] for s in starts])
    options.output.mkdir(parents=True, exist_ok=True)
    data = [{"input_ids": part} for part in rows.split(8)]
    return Case(model, data, ids[seen:][: 32 * length], length, options.output)
