"""The families of the transformers library: what is cut equals what is masked, costs are exact,
generation with a cache equals generation without, and what was saved loads without this library.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from families import FAMILIES, Family
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from zoo import clone, flops, gap, run, some_units

import subprune
from subprune.cutting.check import check_groups
from subprune.cutting.masking import mask
from subprune.cutting.model_config import find_fields, unloadable
from subprune.cutting.surgery import prove
from subprune.data.batches import batches
from subprune.errors import BudgetError, DataError, OptionError
from subprune.program.record import as_inputs
from subprune.structure.analysis import find_groups
from subprune.structure.cost import CostModel

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("default")
NAMES = sorted(FAMILIES)
HERE = Path(__file__).resolve().parent


def tensors(example: dict[str, Any]) -> dict[str, Tensor]:
    return {name: x for name, x in example.items() if isinstance(x, Tensor)}


def some(example: dict[str, Any], count: int = 2) -> dict[str, Any]:
    return {name: x[:count] if isinstance(x, Tensor) else x for name, x in example.items()}


ONE_WAY = ("bloom", "gemma2", "mamba")  # with one implementation of attention, or none
CASES = [(n, impl) for n in NAMES for impl in (("",) if n in ONE_WAY else ("eager", "sdpa"))]


@pytest.mark.parametrize(("name", "impl"), CASES)
def test_cut_equals_mask_and_costs_are_exact(name: str, impl: str) -> None:
    family = FAMILIES[name]
    more = {"attn_implementation": impl} if impl else {}
    model, example = family.build(transformers, **more), some(family.example())
    structure = find_groups(model, example)
    batch = batches(example, model, None)[0]
    able = check_groups(model, structure, structure.inner(), batch).able
    assert {g.kind for g in able} & {"neuron", "head"}
    cost = CostModel(model, structure)
    chosen = {g.name: some_units(structure)[g.name] for g in able}
    for kept in [*({n: k} for n, k in chosen.items()), chosen]:
        masked = mask(model, structure, kept)(as_inputs(clone(example)))
        small = prove(model, structure, kept, as_inputs(clone(example)))
        assert gap(masked, run(small, example)) <= 1e-5
        expected = sum(p.numel() for p in small.parameters()), flops(small, example)
        assert (cost.params_of(kept), cost.flops_of(kept)) == expected


@pytest.mark.parametrize("name", NAMES)
def test_what_the_config_can_say_is_found(name: str) -> None:
    family = FAMILIES[name]
    model = family.build(transformers)
    structure = find_groups(model, some(family.example()))
    fields = find_fields(model, structure)
    assert fields is not None
    assert not fields.problem
    kinds = {structure[n].kind for f in fields.each for n in f.groups}
    assert ("head" in kinds) == family.heads
    assert bool(kinds - {"head"}) == family.widths


# ---- saved and loaded by others ------------------------------------------------------------------


@pytest.fixture(scope="module")
def reloaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[subprune.Result, Path]]:
    """Every family pruned with ``uniform=True``, saved, and loaded in one other process."""
    results = {}
    for name, family in FAMILIES.items():
        if not (family.widths or family.heads):
            continue
        place = tmp_path_factory.mktemp(name)
        example = family.example()
        result = subprune.prune(
            family.build(transformers), example, keep=0.5, uniform=True, time_calls=False
        )
        result.save_pretrained(place / "model")
        save_file(tensors(some(example)), place / "inputs.safetensors")
        (place / "class.txt").write_text(family.model)
        results[name] = (result, place)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    environment |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(HERE / "reload.py"), *(str(p) for _, p in results.values())]
    subprocess.run(command, check=True, env=environment, cwd=HERE, timeout=600)
    return results


@pytest.mark.parametrize("name", [n for n in NAMES if FAMILIES[n].widths or FAMILIES[n].heads])
def test_what_is_saved_loads_without_this_library(
    name: str, reloaded: dict[str, tuple[subprune.Result, Path]]
) -> None:
    result, place = reloaded[name]
    inputs = load_file(place / "inputs.safetensors")
    got = load_file(place / "out.safetensors")
    with torch.no_grad():
        outputs = result.model(**inputs).to_tuple()
    expected = [x for x in outputs if isinstance(x, Tensor) and x.is_floating_point()]
    assert len(got) == len(expected)
    for i, x in enumerate(expected):
        assert torch.allclose(got[str(i)], x, rtol=1e-4, atol=1e-5)
    assert result.report.parameters[1] < result.report.parameters[0]
    kinds = {g.kind for g in result.plan.groups if len(g.kept) < g.units}
    assert ("head" in kinds) == FAMILIES[name].heads
    card = (place / "model" / "README.md").read_text()
    assert f"{result.report.parameters[1]:,}" in card
    assert "from_pretrained" in card


def test_a_config_that_can_say_nothing_is_refused_at_the_start() -> None:
    family = FAMILIES["bloom"]
    with pytest.raises(BudgetError, match=r"uniform=True prunes only what the config.*Bloom"):
        subprune.prune(family.build(transformers), family.example(), keep=0.5, uniform=True)


def test_heads_that_the_config_cannot_express_stay_and_are_noted() -> None:
    family = FAMILIES["bert"]
    result = subprune.prune(
        family.build(transformers), family.example(), params="80%", of="blocks", uniform=True
    )
    assert {g.kind for g in result.plan.groups} == {"neuron"}
    assert any("uniform=True: 2 groups left whole" in note for note in result.report.notes)
    assert len(set(result.plan.counts.values())) == 1
    assert not unloadable(result.model)


def test_groups_that_stay_whole_for_the_config_may_not_be_asked_for() -> None:
    family = FAMILIES["bert"]
    for goal in ({"keep": {"head": 0.5}}, {"budgets": {"bert.encoder.layer.0.attention.self": 2}}):
        with pytest.raises(BudgetError, match=r"uniform=True.*config cannot express fewer heads"):
            subprune.prune(family.build(transformers), family.example(), **goal, uniform=True)


def test_a_part_of_what_one_number_speaks_of_is_refused() -> None:
    family = FAMILIES["llama"]
    with pytest.raises(BudgetError, match="one number for it and for"):
        subprune.prune(
            family.build(transformers),
            family.example(),
            keep=0.5,
            uniform=True,
            only="model.layers.0.mlp",
        )


def test_numbers_of_heads_that_the_config_refuses_are_not_chosen() -> None:
    options = {**FAMILIES["llama"].options, "num_attention_heads": 8, "num_key_value_heads": 8}
    family = Family("LlamaConfig", "LlamaForCausalLM", options)
    model = family.build(transformers)
    fields = find_fields(model, find_groups(model, some(family.example())))
    assert fields is not None
    heads = next(f for f in fields.each if f.kind == "head")
    assert heads.numbers == (1, 2, 3, 4, 6, 8)  # 24 is a multiple of these
    result = subprune.prune(model, family.example(), keep={"head": 0.7}, uniform=True)
    assert {g.kind: len(g.kept) for g in result.plan.groups} == {"head": 4, "neuron": 20}
    assert not unloadable(result.model)


def test_numbers_that_differ_are_kept_by_this_library(tmp_path: Path) -> None:
    family = FAMILIES["llama"]
    model, example = family.build(transformers), family.example()
    names = [f"model.layers.{i}.mlp" for i in range(2)]
    result = subprune.prune(model, example, budgets=dict(zip(names, (10, 5), strict=True)))
    folder = result.save_pretrained(tmp_path / "pruned")
    assert "subprune.load" in (folder / "README.md").read_text()
    assert not (folder / "config.json").exists()
    again = subprune.load(model, folder / "subprune.safetensors")
    assert torch.equal(again(**example).logits, result.model(**example).logits)


class LayeredConfig(transformers.PretrainedConfig):  # type: ignore[misc,name-defined]
    model_type = "layered"

    def __init__(self, **options: Any) -> None:
        self.hidden_size, self.intermediate_size, self.num_hidden_layers = 8, 16, 2
        super().__init__(**options)


class Layered(transformers.PreTrainedModel):  # type: ignore[misc,name-defined]
    """Built layer by layer from ``config.per_layer_config``."""

    config_class = LayeredConfig

    def __init__(self, config: LayeredConfig) -> None:
        super().__init__(config)
        widths = [c.intermediate_size for c in config.per_layer_config]
        self.layers = nn.ModuleList(
            [nn.Sequential(nn.Linear(8, w), nn.ReLU(), nn.Linear(w, 8)) for w in widths]
        )
        self.post_init()

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x


@pytest.mark.skipif(
    not hasattr(transformers.PretrainedConfig, "per_layer_config"),
    reason="this version of transformers has no per_layer_config",
)
def test_numbers_that_differ_are_written_where_models_are_built_layer_by_layer(
    tmp_path: Path,
) -> None:
    torch.manual_seed(0)
    x = torch.randn(80, 8)
    model = Layered(LayeredConfig()).eval()
    result = subprune.prune(model, x, budgets={"layers.0.0": 10, "layers.1.0": 5})
    assert not any("config" in note for note in result.report.notes)
    result.save_pretrained(tmp_path / "layered")
    again = Layered.from_pretrained(tmp_path / "layered").eval()
    assert torch.equal(again(x), result.model(x))
    assert model.config.intermediate_size == 16


def test_folders_of_others_are_left_alone(tmp_path: Path) -> None:
    family = FAMILIES["llama"]
    result = subprune.prune(family.build(transformers), family.example(), keep=0.5)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "README.md").write_text("mine")
    with pytest.raises(DataError, match="not written by subprune"):
        result.save_pretrained(tmp_path / "other")
    assert [p.name for p in tmp_path.iterdir()] == ["other"]
    own = result.save_pretrained(tmp_path / "own")
    first = {p.name for p in own.iterdir()}
    assert {"README.md", "report.json", "config.json", "model.safetensors"} <= first
    (own / "tokenizer.json").write_text("theirs")
    # the next one is a file for subprune.load: nothing of the first stays, what others put there does
    uneven = subprune.prune(
        family.build(transformers), family.example(), budgets={"model.layers.0.mlp": 5}
    )
    uneven.save_pretrained(own)
    second = {p.name for p in own.iterdir()}
    assert second == {"README.md", "report.json", "subprune.safetensors", "tokenizer.json"}
    assert (own / "tokenizer.json").read_text() == "theirs"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["other", "own"]


# ---- generation ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [n for n in NAMES if FAMILIES[n].generates])
def test_generation_with_a_cache_equals_generation_without(name: str) -> None:
    family = FAMILIES[name]
    example = family.example()
    result = subprune.prune(family.build(transformers), example, keep=0.5, time_calls=False)
    small: Any = result.model
    ids = example["input_ids"][:3]
    how = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    with torch.no_grad():
        slow = small.generate(ids, use_cache=False, **how)
        fast = small.generate(ids, use_cache=True, **how)
    assert torch.equal(slow, fast)


@pytest.mark.parametrize("impl", ["eager", "batched_mm", "grouped_mm"])
@pytest.mark.parametrize("name", ["mixtral", "qwen2-moe"])
def test_experts_stay_whole_and_the_rest_is_pruned(name: str, impl: str) -> None:
    family = FAMILIES[name]
    model = family.build(transformers, experts_implementation=impl)
    result = subprune.prune(model, family.example(), keep=0.5, time_calls=False)
    cut = {g.name for g in result.plan.groups if len(g.kept) < g.units}
    assert not any("experts" in n for n in cut)
    assert {f"model.layers.{i}.self_attn" for i in range(2)} <= cut
    shared = {n for n in cut if "shared_expert" in n}
    assert len(shared) == (2 if name == "qwen2-moe" else 0)
    experts = [why for n, why in result.report.refused.items() if n.endswith("experts")]
    reason = {"eager": "depends on the values", "grouped_mm": "multiplied all at once"}.get(impl)
    if reason is not None:
        assert len(experts) == 2
        assert all(reason in why for why in experts)


def test_a_model_with_shared_keys_can_be_pruned_twice() -> None:
    family = FAMILIES["llama"]
    example = family.example()
    once = subprune.prune(family.build(transformers), example, keep=0.5)
    twice = subprune.prune(once.model, example, keep=0.5)
    heads = {g.units: len(g.kept) for g in twice.plan.groups if g.kind == "head"}
    assert heads == {2: 1}  # one head of keys and values is left: those of queries are cut


# ---- refused by name -----------------------------------------------------------------------------


class LoraLayer(nn.Linear):
    """Named as peft's."""


class Hook:
    offload = True


def test_adapters_and_offloaded_layers_are_refused_by_name() -> None:
    x = torch.randn(20, 4)
    model = nn.Sequential(LoraLayer(4, 8), nn.ReLU(), nn.Linear(8, 2))
    with pytest.raises(OptionError, match=r"'0' of the model holds adapters.*merge_and_unload"):
        subprune.prune(model, x, keep=0.5)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    model[2]._hf_hook = Hook()  # type: ignore[assignment]
    with pytest.raises(OptionError, match=r"'2' of the model is moved or offloaded.*device_map"):
        subprune.prune(model, x, keep=0.5)


@pytest.mark.parametrize(
    "home",
    [
        "bitsandbytes.nn.modules",
        "hqq.core.quantize",
        "optimum.quanto.nn.qlinear",
        "transformers.integrations.bitnet",
    ],
)
def test_packed_layers_are_refused_by_name(home: str) -> None:
    kind = type("Packed", (nn.Linear,), {"__module__": home})
    model = nn.Sequential(kind(4, 8), nn.ReLU(), nn.Linear(8, 2))
    with pytest.raises(OptionError, match=rf"is quantised \({home}.Packed\)"):
        subprune.prune(model, torch.randn(20, 4), keep=0.5)
