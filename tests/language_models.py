"""Tiny random models of the transformers library, a tokenizer and a text, for tests."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

WORDS = [f"word{i}" for i in range(44)]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[EOS]", "."]
SIZE = {
    "vocab_size": 50,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 20,
    "max_position_embeddings": 64,
}


def llama() -> Any:
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SIZE, num_key_value_heads=2, use_cache=False)
    return noisy(transformers.LlamaForCausalLM(config))


def bert(kind: str = "BertModel", **more: Any) -> Any:
    import transformers

    torch.manual_seed(0)
    return noisy(getattr(transformers, kind)(transformers.BertConfig(**SIZE, **more)))


def noisy(model: nn.Module) -> nn.Module:
    """With weights that are no longer nearly zero."""
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim > 1:
                p.mul_(8)
    return model.eval()


def tokens(rows: int = 16, length: int = 12, seed: int = 1) -> Tensor:
    return torch.randint(0, 50, (rows, length), generator=torch.Generator().manual_seed(seed))


def padded(rows: int = 16, length: int = 12, seed: int = 1) -> dict[str, Tensor]:
    """Sequences of different lengths, padded at the end."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(length // 2, length + 1, (rows,), generator=generator)
    mask = (torch.arange(length) < lengths[:, None]).long()
    return {"input_ids": tokens(rows, length, seed) * mask, "attention_mask": mask}


def write_text(path: Path, lines: int = 80) -> Path:
    draw = random.Random(0)
    path.write_text("\n".join(" ".join(draw.choices(WORDS, k=12)) + " ." for _ in range(lines)))
    return path


def write_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: i for i, word in enumerate([*SPECIAL, *WORDS])}
    plain = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "eos_token": "[EOS]"}
    PreTrainedTokenizerFast(tokenizer_object=plain, **names).save_pretrained(folder)


def write_llama(folder: Path) -> Path:
    """A folder with a model and its tokenizer, as `save_pretrained` writes it."""
    llama().save_pretrained(folder)
    write_tokenizer(folder)
    return folder
