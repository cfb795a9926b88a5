"""The config of a transformers model follows the cut, or the report says that it cannot."""

from __future__ import annotations

import pytest
import torch

import subprune

transformers = pytest.importorskip("transformers")

COMMON = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
          "intermediate_size": 48, "max_position_embeddings": 64}  # fmt: skip
IDS = {"input_ids": torch.arange(28).reshape(4, 7) % 50, "use_cache": False}


def llama() -> torch.nn.Module:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**COMMON, num_key_value_heads=2, head_dim=8)
    return transformers.LlamaForCausalLM(config).eval()


def test_even_cuts_are_written_and_a_model_built_from_the_config_fits() -> None:
    result = subprune.prune(llama(), IDS, keep=0.5)
    config = result.model.config
    assert (config.num_attention_heads, config.num_key_value_heads, config.intermediate_size) == (
        2,
        1,
        24,
    )
    assert config.head_dim == 8
    fresh = transformers.LlamaForCausalLM(config).eval()
    fresh.load_state_dict(result.model.state_dict())
    assert torch.allclose(fresh(**IDS).logits, result.model(**IDS).logits, atol=1e-6)
    assert not [n for n in result.report.notes if "config" in n]


def test_uneven_cuts_are_reported() -> None:
    model = llama()
    names = ["model.layers.0.mlp", "model.layers.1.mlp"]
    result = subprune.prune(model, IDS, budgets=dict(zip(names, (24, 12), strict=True)))
    assert result.model.config.intermediate_size == 48
    assert any("hidden units" in n and "layers.0" in n for n in result.report.notes)
    one = subprune.prune(model, IDS, budgets={"model.layers.0.self_attn": 1})
    assert one.model.config.num_attention_heads == 4
    assert any("heads" in n for n in one.report.notes)
    assert model.config.intermediate_size == 48


def test_a_config_without_head_size_is_reported() -> None:
    torch.manual_seed(0)
    model = transformers.BertForSequenceClassification(transformers.BertConfig(**COMMON)).eval()
    result = subprune.prune(model, {"input_ids": IDS["input_ids"]}, keep=0.5)
    assert any("cannot express fewer heads" in n for n in result.report.notes)
    said = "from_pretrained cannot load the result, subprune.load can; uniform=True cuts just what"
    assert any(said in n for n in result.report.notes)
    assert result.model.config.intermediate_size == 24


def test_other_models_have_nothing_to_say() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    assert subprune.prune(net, torch.randn(80, 4), keep=0.5).report.notes == ()
