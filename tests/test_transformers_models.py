"""Unpatched models of the transformers library, small and random, in both attention
implementations.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from zoo import clone, flops, gap, randomise, run, some_units

from subprune.cutting.masking import mask
from subprune.cutting.surgery import prove
from subprune.program.record import as_inputs
from subprune.structure.analysis import find_groups
from subprune.structure.cost import CostModel

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("default")

COMMON = {
    "vocab_size": 50,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 20,
    "max_position_embeddings": 32,
}
T5 = {"vocab_size": 50, "d_model": 24, "num_heads": 4, "num_layers": 2, "d_kv": 6, "d_ff": 20}
WHISPER = {
    "d_model": 24,
    "encoder_layers": 2,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 20,
    "num_mel_bins": 8,
    "max_source_positions": 10,
    "vocab_size": 50,
    "decoder_layers": 1,
    "decoder_attention_heads": 4,
    "pad_token_id": 0,
}
IMAGE = {**{k: COMMON[k] for k in list(COMMON)[1:5]}, "image_size": 16, "patch_size": 4}


def tokens(**extra: Any) -> Callable[[], Any]:
    return lambda: {"input_ids": torch.randint(0, 50, (2, 7)), **extra}


def both() -> Any:
    return {
        "input_ids": torch.randint(0, 50, (2, 7)),
        "decoder_input_ids": torch.randint(0, 50, (2, 5)),
        **CACHE,
    }


CACHE = {"use_cache": False}
# config, model, options, example, kinds of groups, units of a head group
MODELS: dict[str, tuple[str, str, dict[str, Any], Callable[[], Any], dict[str, int], int]] = {
    "llama": (
        "LlamaConfig",
        "LlamaForCausalLM",
        {**COMMON, "num_key_value_heads": 2},
        tokens(**CACHE),
        {"stream": 1, "head": 2, "neuron": 2},
        2,
    ),
    "qwen2": (
        "Qwen2Config",
        "Qwen2ForCausalLM",
        {**COMMON, "num_key_value_heads": 2},
        tokens(**CACHE),
        {"stream": 1, "head": 2, "neuron": 2},
        2,
    ),
    "qwen3": (
        "Qwen3Config",
        "Qwen3ForCausalLM",
        {**COMMON, "num_key_value_heads": 2, "head_dim": 8},
        tokens(**CACHE),
        {"stream": 1, "head": 2, "neuron": 2},
        2,
    ),
    "bert": (
        "BertConfig",
        "BertForSequenceClassification",
        COMMON,
        tokens(),
        {"stream": 1, "head": 2, "neuron": 3},
        4,
    ),
    "gpt2": (
        "GPT2Config",
        "GPT2LMHeadModel",
        {"vocab_size": 50, "n_embd": 24, "n_layer": 2, "n_head": 4},
        tokens(**CACHE),
        {"stream": 1, "head": 2, "neuron": 2},
        4,
    ),
    "opt": (
        "OPTConfig",
        "OPTForCausalLM",
        {**COMMON, "ffn_dim": 20, "word_embed_proj_dim": 24},
        tokens(**CACHE),
        {"stream": 1, "head": 2, "neuron": 2},
        4,
    ),
    "t5": (
        "T5Config",
        "T5ForConditionalGeneration",
        T5,
        both,
        # position biases are shared: the layers of a stack lose the same heads
        {"head": 3, "neuron": 4},
        4,
    ),
    "vit": (
        "ViTConfig",
        "ViTForImageClassification",
        IMAGE,
        lambda: {"pixel_values": torch.randn(2, 3, 16, 16)},
        {"stream": 1, "head": 2, "neuron": 2},
        4,
    ),
    "whisper": (
        "WhisperConfig",
        "WhisperModel",
        WHISPER,
        lambda: {"input_features": torch.randn(2, 8, 20)},
        {"channel": 1, "head": 2, "neuron": 2},
        4,
    ),  # the stream is the output
}
CASES = [(name, impl) for name in MODELS for impl in ("eager", "sdpa")]


def build(name: str, impl: str) -> tuple[nn.Module, Any]:
    config, model, options, example, *_ = MODELS[name]
    torch.manual_seed(0)
    made = getattr(transformers, model)(
        getattr(transformers, config)(**options, attn_implementation=impl)
    )
    made = made.encoder if name == "whisper" else made
    randomise(made)
    return made.eval(), example()


@pytest.mark.parametrize(("name", "impl"), CASES)
def test_cut_equals_mask_and_costs_are_exact(name: str, impl: str) -> None:
    model, example = build(name, impl)
    structure = find_groups(model, example)
    cost = CostModel(model, structure)
    chosen = some_units(structure)
    for kept in [
        *({n: k} for n, k in chosen.items()),
        chosen,
        some_units(structure, 1, 0.7, least=2),
    ]:
        masked = mask(model, structure, kept)(as_inputs(clone(example)))
        small = prove(model, structure, kept, as_inputs(clone(example)))
        assert gap(masked, run(small, example)) <= 1e-5
        expected = sum(p.numel() for p in small.parameters()), flops(small, example)
        assert (cost.params_of(kept), cost.flops_of(kept)) == expected


@pytest.mark.parametrize(("name", "impl"), CASES)
def test_groups_as_expected(name: str, impl: str) -> None:
    model, example = build(name, impl)
    structure = find_groups(model, example)
    kinds, heads = MODELS[name][4:]
    found = dict(Counter(g.kind for g in structure))
    assert found == kinds
    assert {g.n_units for g in structure if g.kind == "head"} == {heads}
    assert {g.kind for g in structure.inner()} == set(kinds) - {"stream"}


@pytest.mark.parametrize("impl", ["eager", "sdpa"])
def test_attributes_follow(impl: str) -> None:
    model, example = build("llama", impl)
    structure = find_groups(model, example)
    heads = [g.name for g in structure if g.kind == "head"]
    small: Any = prove(model, structure, {heads[0]: [1]}, as_inputs(example))
    first, second = (layer.self_attn for layer in small.model.layers)
    assert first.q_proj.out_features == 12
    assert first.k_proj.out_features == 6
    assert first.head_dim == second.head_dim == 6
    assert second.q_proj.out_features == 24
    model, example = build("bert", impl)
    structure = find_groups(model, example)
    head = next(g.name for g in structure if g.kind == "head")
    small = prove(model, structure, {head: [0, 2, 3]}, as_inputs(example))
    attention = small.bert.encoder.layer[0].attention.self
    assert (
        attention.num_attention_heads,
        attention.all_head_size,
        attention.attention_head_size,
    ) == (3, 18, 6)


@pytest.mark.slow
def test_llama_7b_without_its_weights() -> None:
    """Recorded on the meta device: nothing of the seven billion parameters is ever in memory."""
    config = transformers.LlamaConfig(attn_implementation="sdpa")
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    example = {"input_ids": torch.zeros(1, 64, dtype=torch.long), **CACHE}
    start = time.perf_counter()
    structure = find_groups(model, example)
    assert time.perf_counter() - start < 30
    assert dict(Counter(g.kind for g in structure)) == {"stream": 1, "head": 32, "neuron": 32}
    assert all(p.device.type == "meta" for p in model.parameters())
    assert all(
        v.constant is None or v.constant.numel() < 1e6 for v in structure.program.values.values()
    )
    cost = CostModel(model, structure)
    assert cost.params({}) == sum(p.numel() for p in model.parameters()) == 6_738_415_616
    half = {g.name: g.n_units // 2 for g in structure.inner()}
    inside = 32 * (4 * 4096 * 4096 + 3 * 4096 * 11008)
    assert cost.params(half) == 6_738_415_616 - inside // 2
