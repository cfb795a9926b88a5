"""Small random models of the families of the transformers library, each with inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

TEXT = {
    "vocab_size": 50,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 20,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = {**TEXT, "num_key_value_heads": 2, "head_dim": 6}
IMAGE = {**{k: TEXT[k] for k in list(TEXT)[1:5]}, "image_size": 16, "patch_size": 4}
SEQUENCES = {
    "vocab_size": 50,
    "d_model": 24,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 20,
    "decoder_ffn_dim": 28,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
EXPERTS = {**GROUPED, "num_experts_per_tok": 2}


def text(causal: bool = True) -> dict[str, Any]:
    return {"input_ids": torch.randint(3, 50, (24, 9)), **({"use_cache": False} if causal else {})}


def pairs() -> dict[str, Any]:
    inputs = {"input_ids": torch.randint(3, 50, (24, 9))}
    return {**inputs, "decoder_input_ids": torch.randint(3, 50, (24, 7)), "use_cache": False}


def images() -> dict[str, Any]:
    return {"pixel_values": torch.randn(24, 3, 16, 16)}


@dataclass(frozen=True)
class Family:
    """How a small model is made, and what is to be expected of it."""

    config: str
    model: str
    options: dict[str, Any]
    inputs: Callable[[], dict[str, Any]] = text
    heads: bool = False  # whether the config can express fewer heads
    widths: bool = True  # … and narrower hidden layers
    generates: bool = True

    def build(self, transformers: Any, **more: Any) -> nn.Module:
        torch.manual_seed(0)
        config = getattr(transformers, self.config)(**self.options, **more)
        model: nn.Module = getattr(transformers, self.model)(config)
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for p in model.parameters():
                p += 0.2 * torch.randn(p.shape, generator=generator)
        return model.eval()

    def example(self) -> dict[str, Any]:
        torch.manual_seed(2)
        return self.inputs()


def _encoder_text() -> dict[str, Any]:
    return text(causal=False)


def _clip() -> dict[str, Any]:
    return {"input_ids": torch.randint(3, 50, (24, 9)), **images()}


def _audio() -> dict[str, Any]:
    features = torch.randn(24, 8, 20)
    tokens = torch.randint(3, 50, (24, 7))
    return {"input_features": features, "decoder_input_ids": tokens, "use_cache": False}


CLIP_TEXT = {**TEXT, "eos_token_id": 49, "projection_dim": 12}
FAMILIES: dict[str, Family] = {
    "llama": Family("LlamaConfig", "LlamaForCausalLM", GROUPED, heads=True),
    "llama-mqa": Family(
        "LlamaConfig", "LlamaForCausalLM", {**GROUPED, "num_key_value_heads": 1}, heads=True
    ),
    "qwen2": Family("Qwen2Config", "Qwen2ForCausalLM", GROUPED, heads=True),
    "qwen3": Family("Qwen3Config", "Qwen3ForCausalLM", {**GROUPED, "head_dim": 8}, heads=True),
    "mistral": Family("MistralConfig", "MistralForCausalLM", GROUPED, heads=True),
    "gemma2": Family("Gemma2Config", "Gemma2ForCausalLM", {**GROUPED, "head_dim": 8}, heads=True),
    "phi3": Family("Phi3Config", "Phi3ForCausalLM", GROUPED, heads=True),
    "gpt2": Family(
        "GPT2Config",
        "GPT2LMHeadModel",
        {"vocab_size": 50, "n_embd": 24, "n_layer": 2, "n_head": 4, "bos_token_id": 1}
        | {"eos_token_id": 2, "pad_token_id": 0, "n_positions": 32},
    ),
    "gpt-neox": Family("GPTNeoXConfig", "GPTNeoXForCausalLM", TEXT),
    "opt": Family(
        "OPTConfig", "OPTForCausalLM", {**TEXT, "ffn_dim": 20, "word_embed_proj_dim": 24}
    ),
    "bloom": Family(
        "BloomConfig",
        "BloomForCausalLM",
        {"vocab_size": 50, "hidden_size": 24, "n_layer": 2, "n_head": 4, "pad_token_id": 0}
        | {"bos_token_id": 1, "eos_token_id": 2},
        widths=False,
    ),
    "falcon": Family(
        "FalconConfig",
        "FalconForCausalLM",
        {**TEXT, "new_decoder_architecture": True, "num_kv_heads": 2},
    ),
    "falcon-mqa": Family("FalconConfig", "FalconForCausalLM", {**TEXT, "multi_query": True}),
    "t5": Family(
        "T5Config",
        "T5ForConditionalGeneration",
        {"vocab_size": 50, "d_model": 24, "num_heads": 4, "num_layers": 2, "d_kv": 6, "d_ff": 20}
        | {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1},
        pairs,
        heads=True,
    ),
    "bart": Family("BartConfig", "BartForConditionalGeneration", SEQUENCES, pairs),
    "bert": Family("BertConfig", "BertForMaskedLM", TEXT, _encoder_text, generates=False),
    "roberta": Family(
        "RobertaConfig",
        "RobertaForSequenceClassification",
        {**TEXT, "max_position_embeddings": 40},
        _encoder_text,
        generates=False,
    ),
    "distilbert": Family(
        "DistilBertConfig",
        "DistilBertForMaskedLM",
        {"vocab_size": 50, "dim": 24, "n_layers": 2, "n_heads": 4, "hidden_dim": 20},
        _encoder_text,
        generates=False,
    ),
    "vit": Family(
        "ViTConfig", "ViTForImageClassification", IMAGE, images, heads=True, generates=False
    ),
    "clip": Family(
        "CLIPConfig",
        "CLIPModel",
        {"text_config": CLIP_TEXT, "vision_config": {**IMAGE, "projection_dim": 12}}
        | {"projection_dim": 12},
        _clip,
        generates=False,
    ),
    "whisper": Family(
        "WhisperConfig",
        "WhisperForConditionalGeneration",
        {**SEQUENCES, "num_mel_bins": 8, "max_source_positions": 10, "max_target_positions": 16},
        _audio,
        generates=False,
    ),
    "sam": Family(
        "SamVisionConfig",
        "SamVisionModel",
        {**IMAGE, "output_channels": 8, "mlp_dim": 20, "window_size": 3, "num_pos_feats": 4}
        | {"global_attn_indexes": [1]},
        images,
        generates=False,
    ),
    "mamba": Family(
        "MambaConfig",
        "MambaForCausalLM",
        {"vocab_size": 50, "hidden_size": 24, "num_hidden_layers": 2, "state_size": 4}
        | {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
    ),
    "mixtral": Family(
        "MixtralConfig",
        "MixtralForCausalLM",
        {**EXPERTS, "num_local_experts": 4},
        heads=True,
        widths=False,  # experts stay whole
    ),
    "qwen2-moe": Family(
        "Qwen2MoeConfig",
        "Qwen2MoeForCausalLM",
        {**EXPERTS, "num_experts": 4, "moe_intermediate_size": 12}
        | {"shared_expert_intermediate_size": 16},
        heads=True,
    ),
}
