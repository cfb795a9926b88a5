"""A cut that cannot work is known in seconds, and finished work is never thrown away by a rounding
error.
"""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from test_transformers_models import CACHE, COMMON
from torch import Tensor, nn
from zoo import ZOO, clone, gap, run, some_units
from zoo_odd import Noisy, Uneven
from zoo_stubborn import STUBBORN, HardCoded, Parts, Wide

import subprune
from subprune import api, forecast, inspect, prune, ready
from subprune.budget.goal import Rounding
from subprune.cutting import check, surgery, twin
from subprune.cutting.check import check_groups
from subprune.cutting.masking import mask
from subprune.cutting.surgery import attempt, cut
from subprune.cutting.twin import TOLERANCE, match
from subprune.data.batch import Batch
from subprune.data.batches import batches
from subprune.errors import BudgetError, StructureError
from subprune.loop.walk import Walk
from subprune.plan import GroupPlan
from subprune.program.program import input_count
from subprune.program.record import as_inputs
from subprune.statistics.calibration import Calibration
from subprune.structure.analysis import find_groups
from subprune.structure.build import owner
from subprune.structure.cost import CostModel
from subprune.structure.groups import Structure

QUIET: Any = {"progress": False, "time_calls": False}
HALF = 1000  # products of so many terms are summed in blocks, which a cut shifts

# ---- the check before the work -------------------------------------------------------------------


@pytest.mark.parametrize("name", ZOO)
def test_nothing_of_the_zoo_is_refused(name: str) -> None:
    """All groups at once, streams too, in float64 wherever the model can run so."""
    model, example = ZOO[name].build()
    structure = find_groups(model, example)
    groups = [g for g in structure if not g.barrier]
    before = copy.deepcopy(model.state_dict())
    inputs = as_inputs(example)
    found = check_groups(model, structure, groups, Batch(inputs, None, input_count(inputs)))
    assert (found.able, found.refused, found.multiples) == (tuple(groups), {}, {})
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    kept = {g.name: check.some_units(g) for g in groups}
    assert all(0 < len(units) < structure[n].n_units for n, units in kept.items())
    twin = mask(model, structure, kept)
    compared = match(twin, attempt(model, structure, kept, inputs).model, inputs, wide=True)
    assert name in ("lstm", "gru", "branching") or compared.wide_gap is not None
    assert (compared.wide_gap or 0.0) <= 1e-12


@pytest.mark.parametrize("name", STUBBORN)
def test_stubborn_groups_are_named_in_seconds(name: str) -> None:
    entry = STUBBORN[name]
    model, x = entry.build()
    structure = find_groups(model, x)
    assert tuple(g.name for g in structure.inner()) == entry.groups
    start = time.perf_counter()
    found = check_groups(model, structure, structure.inner(), batches(x, model)[0])
    assert time.perf_counter() - start < 5
    assert found.refused.keys() == entry.refused.keys()
    assert all(word in found.refused[n] for n, word in entry.refused.items())
    assert found.multiples == entry.multiples
    shown = inspect(model, x)
    assert {r.name for r in shown if r.default} == {g.name for g in found.able}
    for n, m in entry.multiples.items():
        assert f"multiples of {m}" in "; ".join(shown[n].obstacles)


@pytest.mark.parametrize("name", [n for n in STUBBORN if n != "wide"])
def test_the_rest_goes_on(name: str) -> None:
    entry = STUBBORN[name]
    model, _ = entry.build()
    x = torch.cat([entry.example() for _ in range(16)])
    result = prune(model, x, keep=0.55, **QUIET)
    assert set(result.plan.counts) == set(entry.groups) - set(entry.refused)
    for group in result.plan.groups:
        assert len(group.kept) < group.units
        assert len(group.kept) % entry.multiples.get(group.name, 1) == 0
    for refused, word in entry.refused.items():
        assert word in result.report.refused[refused]
        assert any(refused in note and word in note for note in result.report.notes)
    assert result.model(x).shape == model(x).shape


def test_the_target_is_met_with_the_others_or_the_nearest_is_named() -> None:
    model, x = STUBBORN["hard-coded"].build()
    whole = sum(p.numel() for p in model.parameters())
    result = prune(model, x, params="80%", **QUIET)
    assert result.plan.counts.keys() == {"fc2"}
    assert result.report.parameters[1] <= 0.8 * whole
    with pytest.raises(BudgetError, match="nearest feasible ratio"):
        prune(model, x, compression=5, **QUIET)
    with pytest.raises(BudgetError, match=r"nothing in the model.*fc1: .*shape"):
        prune(model, x, keep=0.5, ignore="fc2", **QUIET)


def test_a_group_that_was_asked_for_by_name_is_an_error_at_once() -> None:
    model, x = STUBBORN["hard-coded"].build()
    with pytest.raises(BudgetError, match=r"budgets= names 'fc1', which cannot be cut: .*shape"):
        prune(model, x, budgets={"fc1": 4}, **QUIET)
    with pytest.raises(BudgetError, match=r"only= names 'fc1', which cannot be cut: .*shape"):
        prune(model, x, keep=0.5, only=["fc1", "fc2"], **QUIET)
    model, x = STUBBORN["multiple"].build()
    with pytest.raises(
        BudgetError, match=r"budgets\['conv1'\] must be a multiple of 4.*got 13, the nearest is 12"
    ):
        prune(model, x, budgets={"conv1": 13}, **QUIET)
    assert prune(model, x, budgets={"conv1": 12, "conv2": 7}, **QUIET).plan.counts == {
        "conv1": 12,
        "conv2": 7,
    }


def test_multiples_of_the_caller_and_the_model_are_both_kept() -> None:
    model, x = STUBBORN["multiple"].build()
    rounding = Rounding(6, {"conv1": 4})
    structure = find_groups(model, x)
    assert (rounding.of(structure["conv1"]).to, rounding.of(structure["conv2"]).to) == (12, 6)
    counts = prune(model, x, keep=0.8, round_to=6, **QUIET).plan.counts
    assert counts == {"conv1": 24, "conv2": 6}


def test_the_check_looks_at_few_inputs_and_computes_once() -> None:
    model, _ = ZOO["resnet20-B"].build()
    calibration = Calibration.of(model, batches(torch.randn(64, 3, 16, 16), model))
    seen: list[int] = []
    hook = model.register_forward_hook(lambda m, args, out: seen.append(len(args[0])))
    structure = calibration.structure
    found = check_groups(model, structure, structure.inner(), calibration.batches[0])
    hook.remove()
    assert len(found.able) == len(structure.inner())
    assert seen
    assert max(seen) <= 2
    # recorded for that shape, and the copy in its own precision and in float64
    assert len(seen) <= 3


# ---- rounding ------------------------------------------------------------------------------------


class IllConditioned(nn.Module):
    """Pairs of equal units whose large weights cancel: float32 loses digits in an order that a cut
    changes.
    """

    def __init__(self, between: nn.Module | None = None, size: float = 1e2) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc1, self.fc2, self.fc3 = (
            nn.Linear(8, 2 * HALF),
            nn.Linear(2 * HALF, 24),
            nn.Linear(24, 4),
        )
        self.between = between or nn.Identity()
        with torch.no_grad():
            for x in (self.fc1.weight, self.fc1.bias):
                x[HALF:] = x[:HALF]
            large = size * torch.randn(24, HALF)
            self.fc2.weight[:, :HALF] += large
            self.fc2.weight[:, HALF:] -= large

    def forward(self, x: Tensor) -> Tensor:
        return self.fc3(torch.tanh(self.between(self.fc2(torch.relu(self.fc1(x))))))


class Casting(nn.Module):
    """As LLaMA's norm: computed in float32, whatever comes in."""

    def forward(self, x: Tensor) -> Tensor:
        y = x.to(torch.float32)
        return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + torch.tensor(1e-6))).to(x.dtype)


class Insisting(nn.Module):
    """Takes float32 and nothing else."""

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype != torch.float32:
            raise TypeError(f"float32 is needed, got {x.dtype}")
        return x


def pairs(structure: Structure) -> dict[str, list[int]]:
    """Units of fc1 without some of the pairs, and most of fc2."""
    chosen = np.random.default_rng(0).permutation(HALF)[: HALF * 2 // 3]
    return {"fc1": sorted([*chosen.tolist(), *(chosen + HALF).tolist()]), "fc2": list(range(2, 24))}


@pytest.mark.parametrize("between", [nn.Identity, Casting])
def test_rounding_is_not_taken_for_a_wrong_index(between: Callable[[], nn.Module]) -> None:
    model, x = IllConditioned(between()), torch.randn(64, 8)
    structure = find_groups(model, x)
    found = attempt(model, structure, pairs(structure), as_inputs(x))
    assert found.match.gap > TOLERANCE  # what was refused
    assert not found.match.problem
    assert found.match.wide_gap is not None
    assert found.match.wide_gap < 1e-10
    assert "float64" in found.match.remark


def test_rounding_noise_where_float64_cannot_be_run() -> None:
    model, x = IllConditioned(Insisting()), torch.randn(64, 8)
    structure = find_groups(model, x)
    found = attempt(model, structure, pairs(structure), as_inputs(x)).match
    assert not found.problem
    assert found.wide_gap is None
    assert found.gap > TOLERANCE
    assert found.noise is not None
    assert found.gap <= 10 * found.noise
    assert "last place" in found.remark


def test_noise_of_the_model_is_not_taken_for_a_wrong_index() -> None:
    """Twin and cut model draw the same random numbers."""
    torch.manual_seed(0)
    model, x = Noisy().eval(), torch.randn(64, 4)
    result = prune(model, x, keep=0.5, **QUIET)
    assert result.plan.counts == {"fc1": 3, "fc2": 2}
    assert not any("left whole" in note or "rounding" in note for note in result.report.notes)


def wrong(structure: Structure, name: str) -> Structure:
    """The group with the columns of its consumers shifted by one: an index error."""
    group = structure[name]
    slots = tuple(
        replace(s, units=np.roll(s.units, 1)) if s.role == "consumer" else s for s in group.slots
    )
    groups = tuple(replace(g, slots=slots) if g.name == name else g for g in structure.groups)
    return replace(structure, groups=groups)


@pytest.mark.parametrize("wide", [True, False])
def test_a_wrong_index_still_shows(wide: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float64, and against rounding noise, with weights as bad as can be."""
    if not wide:
        monkeypatch.setattr(twin, "_wide_gap", lambda *args: None)
    model, x = IllConditioned(), torch.randn(64, 8)
    structure = wrong(find_groups(model, x), "fc2")
    sound = find_groups(model, x)
    kept = pairs(structure)
    masked = mask(model, sound, kept)
    small = cut(model, structure, kept)
    found = match(masked, small, as_inputs(x))
    assert found.gap > 0.1
    assert "differs from the masked one" in found.problem
    if not wide:
        assert found.noise is not None
        assert found.noise < found.gap / 10


def test_a_wrong_rule_is_found_before_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that ties the wrong positions: that group alone is refused, by name."""
    monkeypatch.setattr(
        "subprune.statistics.calibration.analyse", lambda p: wrong(find_analyse(p), "fc1")
    )
    model, _ = ZOO["lenet"].build()
    monkeypatch.setattr(surgery, "mask", lambda m, s, kept, p=None: mask(m, sound(m), kept, p))
    x = torch.randn(16, 1, 28, 28)
    result = prune(model, x, keep=0.5, folds=1, **QUIET)
    assert set(result.plan.counts) == {"conv1", "conv2", "fc2"}
    assert "differs from the masked one" in result.report.refused["fc1"]


def find_analyse(program: Any) -> Structure:
    from subprune.structure.grouping import analyse

    return analyse(program)


def sound(model: nn.Module) -> Structure:
    return find_groups(model, torch.randn(16, 1, 28, 28))


# ---- after the work ------------------------------------------------------------------------------


def test_work_survives_a_width_that_the_code_refuses() -> None:
    model, _ = STUBBORN["wide"].build()
    x = torch.randn(128, 6)
    result = prune(model, x, keep=0.5, **QUIET)
    assert result.plan.counts == {"fc2": 8}
    assert "at least 10" in result.report.refused["fc1"]
    assert any("left whole: fc1" in note and "at least 10" in note for note in result.report.notes)
    alone = prune(model, x, budgets={"fc2": 8}, **QUIET)
    assert alone.plan.kept == result.plan.kept
    torch.testing.assert_close(result.model(x), alone.model(x))


def test_work_survives_though_the_target_is_out_of_reach() -> None:
    model, _ = STUBBORN["wide"].build()
    result = prune(model, torch.randn(128, 6), compression=6, **QUIET)
    assert result.plan.counts.keys() == {"fc2"}
    assert any("left whole: fc1" in note for note in result.report.notes)
    assert any("goal missed" in note and "nearest feasible" in note for note in result.report.notes)
    with pytest.raises(StructureError, match=r"group 'fc1' cannot be cut.*at least 10"):
        prune(model, torch.randn(128, 6), budgets={"fc1": 4}, **QUIET)


@pytest.mark.parametrize("between", [nn.Identity, Casting, Insisting])
def test_rounding_of_finished_work_is_a_remark(between: Callable[[], nn.Module]) -> None:
    """Weights that cancel, as an ill-conditioned solve leaves them: the model comes back, with what
    was measured.
    """
    model, x = IllConditioned(between()), torch.randn(64, 8)
    calibration = Calibration.of(model, batches(x, model))
    kept = pairs(calibration.structure)
    plans = {
        name: GroupPlan(name=name, kind="", units=0, kept=tuple(units), consumers=())
        for name, units in kept.items()
    }
    run_ = calibration.start()
    walk = Walk(groups=plans, tensors=run_.tensors, dense=run_)
    small, _, remarks = api._realise(calibration, walk)
    assert isinstance(remarks, list)
    assert "from rounding alone" in remarks[0]
    assert small.get_submodule("fc1").out_features == len(kept["fc1"])


def test_groups_to_blame_are_found_after_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Should the check before the work miss something, the rest is pruned as if that group had not
    been asked for.
    """
    monkeypatch.setattr(
        ready, "check_groups", lambda model, structure, groups, *rest: check.Check(tuple(groups))
    )
    model, _ = STUBBORN["hard-coded"].build()
    x = torch.randn(64, 6)
    result = prune(model, x, params="80%", allocate="uniform", **QUIET)
    assert result.plan.counts.keys() == {"fc2"}
    assert result.report.parameters[1] <= 0.8 * result.report.parameters[0]
    assert "shape" in result.report.refused["fc1"]
    alone = prune(model, x, params="80%", allocate="uniform", ignore="fc1", **QUIET)
    torch.testing.assert_close(result.model(x), alone.model(x))


@pytest.mark.parametrize("seed", range(3))
def test_few_samples_and_a_wide_network(seed: int) -> None:
    """As many columns as rows: weights explode, and the result comes back all the same."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(40, 80),
        nn.ReLU(),
        nn.Linear(80, 80),
        nn.ReLU(),
        nn.Linear(80, 80),
        nn.ReLU(),
        nn.Linear(80, 5),
    )
    result = prune(model, torch.randn(42, 40), keep=0.5, **QUIET)
    assert set(result.plan.counts.values()) == {40}


# ---- cut is the twin of mask ---------------------------------------------------------------------


@pytest.mark.parametrize("name", ZOO)
def test_cut_alone_equals_mask(name: str) -> None:
    """Without a program: norms without parameters and tied weights follow."""
    model, example = ZOO[name].build()
    structure = find_groups(model, example)
    chosen = some_units(structure, 3, 0.6)
    for group, kept in chosen.items():
        masked = mask(model, structure, {group: kept})(as_inputs(clone(example)))
        assert gap(masked, run(cut(model, structure[group], kept), example)) <= 1e-4
    masked = mask(model, structure, chosen)(as_inputs(clone(example)))
    assert gap(masked, run(subprune.cut(model, structure, chosen), example)) <= 1e-4


def test_cut_says_what_it_takes() -> None:
    model, example = ZOO["lenet"].build()
    structure = find_groups(model, example)
    with pytest.raises(BudgetError, match="dict such as"):
        cut(model, structure, [0, 1])
    with pytest.raises(KeyError, match=r"no group 'conv11': did you mean 'conv1'\?"):
        cut(model, structure, {"conv11": [0]})


# ---- every parameter is accounted for ------------------------------------------------------------


def account(model: nn.Module, example: Any) -> Structure:
    """Every parameter is in a group, refused, inside a module that is, or not used; so is every
    output position.
    """
    seen = inspect(model, example)
    structure = seen.structure
    grouped = {s.tensor for g in structure for s in g.slots}
    total = 0
    for name, p in model.named_parameters():
        inside = any(name.startswith(f"{o}.") for o in structure.program.opaque)
        named = name in structure.refused or owner(name) in structure.refused
        assert name in grouped or named or inside or name in seen.unused, name
        total += p.numel()
    assert total == seen.params
    for slot in (s for g in structure for s in g.slots if s.role == "producer"):
        others = [
            s for g in structure for s in g.slots if (s.tensor, s.dim) == (slot.tensor, slot.dim)
        ]
        free = np.logical_and.reduce([s.units < 0 for s in others])
        names = {
            owner(slot.tensor),
            *(owner(a) for a, b in structure.program.aliases.items() if b == slot.tensor),
        }
        reasons = [structure.refused[n] for n in names if n in structure.refused]
        assert not free.any() or any(
            f"{int(free.sum())} of its {free.size} outputs" in r for r in reasons
        ), slot.tensor
    return structure


@pytest.mark.parametrize("name", [*ZOO, *STUBBORN])
def test_every_parameter_is_in_a_group_or_refused(name: str) -> None:
    account(*(ZOO[name] if name in ZOO else STUBBORN[name]).build())


def test_channels_that_a_shortcut_pads_are_refused_with_a_count() -> None:
    structure = account(*ZOO["resnet20-A"].build())
    for layer, text in (
        ("layer2.1.conv2", "16 of its 32 outputs"),
        ("layer3.0.conv2", "48 of its 64 outputs"),
    ):
        assert text in structure.refused[layer]
        assert "constant_pad_nd" in structure.refused[layer]
    model, x = ZOO["resnet20-A"].build()
    report = prune(model, torch.cat([x] * 8), keep=0.5, **QUIET).report
    assert "48 of its 64 outputs" in report.refused["layer3.2.conv2"]


def test_a_reason_names_the_layer_it_is_true_of() -> None:
    structure = find_groups(*ZOO["old-weight-norm"].build())
    # fc1 is not: its reader is
    assert structure.refused["fc1"].startswith("'fc2' is weight-normed")
    prelu = find_groups(*ZOO["prelu"].build())
    assert "single number" in prelu.refused["act2"]


# ---- groups whose units differ -------------------------------------------------------------------


def test_costs_are_bounded_whichever_units_stay() -> None:
    model, x = Parts(), torch.randn(3, 4)
    cost = CostModel(model, find_groups(model, x))
    for k in range(2, 13):
        chosen = list(itertools.combinations(range(12), k))
        for quantity, of in (("params", cost.params_of), ("flops", cost.flops_of)):
            most = max(of({"p": list(units)}) for units in chosen)
            assert most <= cost.at_most(quantity, {"p": k}) <= 1.05 * most


@pytest.mark.parametrize(
    "goal",
    [
        {"compression": 1.5},
        {"params": "60%"},
        {"flops": "60%"},
        {"speedup": 1.4, "allocate": "uniform"},
        {"keep": 0.4},
        {"keep": 0.1},
        {"budgets": {"p": 3}},
    ],
)
def test_every_goal_cuts_them(goal: Any) -> None:
    """One half of the units says nothing: without care, no unit of it would stay."""
    torch.manual_seed(0)
    model = Parts()
    with torch.no_grad():
        for layer in (model.q.weight, model.q.bias, model.r.weight[6:], model.r.bias[6:]):
            layer.zero_()
    asked = {} if "budgets" in goal else {"only": "p"}
    result = prune(model, torch.randn(64, 4), **goal, **asked, **QUIET)
    (group,) = result.plan.groups
    assert len(group.kept) < 12
    assert {u // 6 for u in group.kept} == {0, 1}
    before, after = result.report.parameters
    if "params" in goal or "compression" in goal:
        assert after <= before / 1.5
    seen = forecast(model, torch.randn(64, 4), **goal, **asked)
    assert seen.feasible
    assert seen.parameters[1] >= after or "allocate" in goal


def test_too_few_units_of_such_a_group_are_refused_before_the_work() -> None:
    with pytest.raises(BudgetError, match=r"budgets\['p'\] must be an integer from 2 to 12"):
        prune(Parts(), torch.randn(64, 4), budgets={"p": 1}, **QUIET)


def test_no_message_sends_the_user_to_an_internal_function() -> None:
    model, x = Uneven(), torch.randn(3, 4)
    cost = CostModel(model, find_groups(model, x))
    with pytest.raises(BudgetError) as error:
        cost.params({"fc1": 3})
    assert "params_of" not in str(error.value)
    assert "give the units themselves" in str(error.value)
    with pytest.raises(BudgetError, match=r"the groups are fc1$"):
        cost.params({"nothing": 3})
    row = inspect(model, x)["fc1"]
    assert not row.default  # the slice is a number in the code
    assert "cannot be cut" in row.obstacles[0]
    assert "differ in size" in "; ".join(row.obstacles)


# ---- models of the transformers library ----------------------------------------------------------


def words(n: int = 8) -> list[dict[str, Any]]:
    torch.manual_seed(1)
    return [{"input_ids": torch.randint(0, 50, (4, 7)), **CACHE} for _ in range(n)]


def library(config: str, model: str, **options: Any) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    return getattr(transformers, model)(getattr(transformers, config)(**options)).eval()


def llama(kv: int, impl: str = "sdpa", **options: Any) -> nn.Module:
    return library(
        "LlamaConfig",
        "LlamaForCausalLM",
        **{**COMMON, "num_key_value_heads": kv, "attn_implementation": impl, **options},
    )


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("impl", ["eager", "sdpa"])
def test_phi3_is_pruned_with_its_fused_attention(impl: str) -> None:
    """Its layers read the number of heads from the config when they run: each gets one of its
    own.
    """
    options = {**COMMON, "num_key_value_heads": 2, "pad_token_id": 0, "attn_implementation": impl}
    model = library("Phi3Config", "Phi3ForCausalLM", **options)
    result = prune(model, words(), keep=0.5, **QUIET)
    assert {n.rpartition(".")[2] for n in result.plan.counts} == {"gate_up_proj", "qkv_proj"}
    layers: Any = result.model.get_submodule("model.layers")
    assert [layer.self_attn.config.num_attention_heads for layer in layers] == [2, 2]
    one = prune(model, words(), budgets={"model.layers.0.self_attn.qkv_proj": 1}, **QUIET)
    layers = one.model.get_submodule("model.layers")
    assert [layer.self_attn.config.num_attention_heads for layer in layers] == [2, 4]
    assert one.model.config.num_attention_heads == model.config.num_attention_heads == 4
    account(model, words()[0])


@pytest.mark.filterwarnings("default")
def test_bloom() -> None:
    """Positions of its heads are fixed numbers, so heads are narrowed instead of removed."""
    model = library(
        "BloomConfig", "BloomForCausalLM", vocab_size=50, hidden_size=24, n_layer=2, n_head=4
    )
    result = prune(model, words(), keep=0.5, **QUIET)
    assert len(result.plan.counts) == 4
    attention: Any = result.model.get_submodule("transformer.h.0.self_attention")
    assert (attention.num_heads, attention.head_dim) == (4, 3)
    account(model, words()[0])


@pytest.mark.filterwarnings("default")
def test_sam() -> None:
    options = {
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "image_size": 32,
        "patch_size": 8,
        "output_channels": 8,
        "mlp_dim": 20,
        "window_size": 2,
        "global_attn_indexes": [1],
        "num_pos_feats": 4,
    }
    model = library("SamVisionConfig", "SamVisionModel", **options)
    images = [{"pixel_values": torch.randn(2, 3, 32, 32)} for _ in range(6)]
    result = prune(model, images, keep=0.5, **QUIET)
    assert len(result.plan.counts) == 5
    assert all(len(g.kept) == g.units // 2 for g in result.plan.groups)
    account(model, images[0])


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("impl", ["eager", "sdpa"])
@pytest.mark.parametrize("kv", [1, 2])
def test_a_llama_is_pruned_twice(impl: str, kv: int) -> None:
    model = llama(kv, impl)
    first = prune(model, words(), keep=0.5, **QUIET)
    assert sum("self_attn" in n for n in first.plan.counts) == 2
    again = prune(first.model, words(), keep=0.5, **QUIET)
    assert all(len(g.kept) < g.units for g in again.plan.groups)
    assert again.report.parameters[1] < first.report.parameters[1]
    ids = words()[0]
    assert again.model(**ids).logits.shape == model(**ids).logits.shape


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("seed", range(3))
def test_tiny_llamas_come_back(seed: int) -> None:
    model = llama(2, hidden_size=16, num_attention_heads=4, intermediate_size=48)
    torch.manual_seed(seed)
    for p in model.parameters():
        nn.init.normal_(p, std=0.5)
    result = prune(model, words(), compression=1.3, allocate="uniform", **QUIET)
    assert result.report.parameters[1] <= result.report.parameters[0] / 1.3


def test_hard_coded_and_wide_are_modules() -> None:
    """The zoo's modules run as they are."""
    for model in (HardCoded(), Wide()):
        assert F.relu(model(torch.randn(2, 6))).shape == (2, 3)
