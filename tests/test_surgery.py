"""The cut model is the masked one, for every group of every model in the zoo, and its modules say
the truth.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import zoo_attention as attn
from torch import Tensor, nn
from zoo import ZOO, clone, flops, gap, run, some_units
from zoo_odd import Uneven

from subprune.cutting.attention import NarrowMultiheadAttention
from subprune.cutting.masking import keep_mask, mask
from subprune.cutting.surgery import cut, cut_in_place, prove
from subprune.errors import BudgetError, StructureError
from subprune.program.record import as_inputs
from subprune.structure.analysis import find_groups
from subprune.structure.cost import CostModel, predict
from subprune.structure.groups import Structure

TOLERANCE = 1e-5


def check(
    model: nn.Module, structure: Structure, kept: dict[str, list[int]], example: Any
) -> nn.Module:
    """Cut = mask, seen without `prove`: the cut copy runs as a model, the masked twin as a program."""
    masked = mask(model, structure, kept)(as_inputs(clone(example)))
    small = prove(model, structure, kept, as_inputs(clone(example)), TOLERANCE)
    assert gap(masked, run(small.eval(), example)) <= TOLERANCE
    return small


@pytest.mark.parametrize("name", ZOO)
def test_cut_equals_mask_for_every_group(name: str) -> None:
    model, example = ZOO[name].build()
    structure = find_groups(model, example)
    for share in (0.3, 0.8):
        for group, kept in some_units(structure, share=share).items():
            small = check(model, structure, {group: kept}, example)
            if structure[group].n_units > len(kept):
                assert sum(p.numel() for p in small.parameters()) < sum(
                    p.numel() for p in model.parameters()
                )


@pytest.mark.parametrize("name", ZOO)
def test_cut_equals_mask_for_all_groups_together(name: str) -> None:
    model, example = ZOO[name].build()
    structure = find_groups(model, example)
    for seed in range(3):
        check(model, structure, some_units(structure, seed), example)
    inner = {g.name: some_units(structure)[g.name] for g in structure.inner()}
    check(model, structure, inner, example)


@pytest.mark.parametrize("name", ZOO)
def test_removal_changes_the_function(name: str) -> None:
    """Units that are cut did something before: otherwise the tests above show nothing."""
    model, example = ZOO[name].build()
    structure = find_groups(model, example)
    dense = mask(model, structure, {})(as_inputs(clone(example)))
    chosen = some_units(structure, share=0.3)
    gaps = [
        gap(dense, mask(model, structure, {n: k})(as_inputs(clone(example))))
        for n, k in chosen.items()
    ]
    assert sum(g > 1e-5 for g in gaps) >= 0.8 * len(gaps)  # a few may be dead behind a ReLU


@pytest.mark.parametrize("name", ZOO)
def test_costs_are_exact(name: str) -> None:
    model, example = ZOO[name].build()
    structure = find_groups(model, example)
    cost = CostModel(model, structure)
    assert cost.params({}) == sum(p.numel() for p in model.parameters())
    assert cost.flops({}) == flops(model, example)
    for seed, share in enumerate((0.3, 0.5, 0.8)):
        # einsum multiplies instead of summing over one
        kept = some_units(structure, seed, share, least=2)
        small = prove(model, structure, kept, as_inputs(clone(example)), 1e-4)
        expected = sum(p.numel() for p in small.parameters()), flops(small, example)
        assert (cost.params_of(kept), cost.flops_of(kept)) == expected
        assert predict(model, structure, kept) == expected
        counts = {n: len(units) for n, units in kept.items()}
        if all(cost.uniform(n) for n in counts):
            assert (cost.params(counts), cost.flops(counts)) == expected


@pytest.mark.parametrize("name", ["lenet", "densenet", "gqa", "swin", "mobilenet-v3"])
def test_cost_of_single_units(name: str) -> None:
    model, example = ZOO[name].build()
    structure = find_groups(model, example)
    cost = CostModel(model, structure)
    for group in structure:
        params, ops = cost.per_unit(group.name)
        for unit in {0, group.n_units - 1} if group.n_units > 1 else ():
            kept = {group.name: [u for u in range(group.n_units) if u != unit]}
            assert params[unit] == cost.params({}) - cost.params_of(kept)
            assert ops[unit] == cost.flops({}) - cost.flops_of(kept)


def test_many_budgets_at_once() -> None:
    model, example = ZOO["resnet20-B"].build()
    cost = CostModel(model, find_groups(model, example))
    generator = torch.Generator().manual_seed(0)
    limits = [cost.groups[n].n_units for n in cost.names]
    counts = torch.stack(
        [torch.randint(1, n + 1, (50,), generator=generator) for n in limits], 1
    ).numpy()
    params, ops = cost.many(counts)
    for row, p, f in zip(counts, params, ops, strict=True):
        budget = dict(zip(cost.names, row.tolist(), strict=True))
        assert (p, f) == (cost.params(budget), cost.flops(budget))


def test_units_of_different_size_need_to_be_named() -> None:
    """A flattened pad: some units reach the consumer by more columns than others."""

    model, x = Uneven(), torch.randn(3, 4)
    structure = find_groups(model, x)
    cost = CostModel(model, structure)
    if len(structure) and not cost.uniform("fc1"):
        with pytest.raises(BudgetError, match="differ in size"):
            cost.params({"fc1": 3})
        with pytest.raises(BudgetError, match="differ in size"):
            predict(model, structure, {"fc1": 3})


def test_cost_model_names_what_is_wrong() -> None:
    model, example = ZOO["lenet"].build()
    cost = CostModel(model, find_groups(model, example))
    with pytest.raises(BudgetError, match="did you mean 'conv1'"):
        cost.params({"conv_1": 2})
    with pytest.raises(BudgetError, match="has 6 units, cannot keep 7"):
        cost.flops({"conv1": 7})


# ---- module attributes ---------------------------------------------------------------------------


def small_of(name: str, kept: dict[str, list[int]]) -> nn.Module:
    model, example = ZOO[name].build()
    return prove(model, find_groups(model, example), kept, as_inputs(example))


@pytest.mark.parametrize("name", ZOO)
def test_attributes_agree_with_tensors(name: str) -> None:
    model, example = ZOO[name].build()
    structure = find_groups(model, example)
    small = prove(model, structure, some_units(structure), as_inputs(clone(example)), 1e-4)
    for module in small.modules():
        m: Any = module
        if isinstance(module, nn.modules.conv._ConvNd) and not hasattr(m, "parametrizations"):
            a, b = (
                (m.in_channels, m.out_channels) if m.transposed else (m.out_channels, m.in_channels)
            )
            assert m.weight.shape[:2] == (a, b // m.groups)
            assert m.bias is None or m.bias.shape[0] == m.out_channels
        elif isinstance(module, nn.Linear) and not hasattr(m, "parametrizations"):
            assert m.weight.shape == (m.out_features, m.in_features)
        elif isinstance(module, nn.modules.batchnorm._NormBase) and m.weight is not None:
            assert m.num_features == m.weight.shape[0]
        elif isinstance(module, nn.LayerNorm) and m.weight is not None:
            assert m.normalized_shape == tuple(m.weight.shape)
        elif isinstance(module, nn.GroupNorm) and m.weight is not None:
            assert m.num_channels == m.weight.shape[0]
            assert m.num_channels % m.num_groups == 0
        elif isinstance(module, nn.Embedding):
            assert m.weight.shape == (m.num_embeddings, m.embedding_dim)
    repr(small)


def test_depthwise_groups_follow() -> None:
    small: Any = small_of("mobilenet-v2", {"blocks.0.conv.0.0": [0, 3, 5]})
    depthwise = small.blocks[0].conv[1][0]
    assert (depthwise.groups, depthwise.in_channels, depthwise.out_channels) == (3, 3, 3)
    assert small.blocks[0].conv[1][1].num_features == 3


def test_grouped_convolution_keeps_its_groups() -> None:
    small: Any = small_of("resnext", {"blocks.1.conv1": [1], "blocks.1.conv2": [0, 2]})
    conv = small.blocks[1].conv2
    assert (conv.groups, conv.in_channels, conv.out_channels) == (4, 4, 8)
    assert conv.weight.shape == (8, 1, 3, 3)


def test_heads_follow_and_their_size_does_not() -> None:
    small: Any = small_of("gqa", {"blocks.0.mixer": [0, 2]})
    mixer = small.blocks[0].mixer
    assert (mixer.num_heads, mixer.num_kv_heads, mixer.size) == (4, 2, 2)
    assert small.blocks[1].mixer.num_heads == 6
    small = small_of("fused-qkv", {"blocks.0.mixer.qkv": [1]})
    assert (small.blocks[0].mixer.num_heads, small.blocks[0].mixer.head_dim) == (1, 4)
    small = small_of("mha", {"attn": [0, 1, 3]})
    assert isinstance(small.attn, NarrowMultiheadAttention)
    assert (small.attn.num_heads, small.attn.head_dim, small.attn.embed_dim) == (3, 2, 8)


def test_norms_without_parameters_follow() -> None:
    small: Any = small_of("no-affine", {"conv1": [1, 2], "conv2": [0, 1, 4], "fc1": [0, 7]})
    assert (small.bn.num_features, small.ln.normalized_shape) == (2, (2,))
    assert small.scale.shape == (1, 3, 1, 1)
    small = small_of("norms", {"conv2": [1], "conv4": [0, 2], "conv5": [3]})
    assert (small.norm2.num_groups, small.norm2.num_channels) == (4, 4)
    assert (small.norm4.num_groups, small.norm4.num_channels, small.norm5.num_features) == (2, 2, 1)


def test_layer_norm_over_a_concatenation_of_groups() -> None:
    class Joined(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.out = nn.Linear(4, 5), nn.Linear(4, 6), nn.Linear(11, 3)
            self.norm = nn.LayerNorm(11, elementwise_affine=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.norm(torch.cat([self.a(x), self.b(x)], -1)))

    torch.manual_seed(0)
    model, x = Joined(), torch.randn(3, 4)
    structure = find_groups(model, x)
    small: Any = check(model, structure, {"a": [0, 2], "b": [1, 4, 5]}, x)
    assert small.norm.normalized_shape == (5,)


# ---- nn.MultiheadAttention -----------------------------------------------------------------------


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize(
    "options", [{}, {"add_zero_attn": True}, {"add_bias_kv": True, "add_zero_attn": True}]
)
@pytest.mark.parametrize("masks", ["none", "bool", "float", "per head", "padding", "both"])
def test_narrow_attention_is_multihead_attention(
    need_weights: bool, average: bool, batch_first: bool, options: dict[str, bool], masks: str
) -> None:
    """With all heads kept, the narrow module is the original in every way it can be called."""
    torch.manual_seed(0)
    full = nn.MultiheadAttention(8, 4, batch_first=batch_first, **options).eval()
    for p in full.parameters():
        nn.init.normal_(p, std=0.5)
    narrow = copy.deepcopy(full)
    NarrowMultiheadAttention.adopt(narrow)
    q, k = torch.randn(2, 3, 8), torch.randn(2, 5, 8)
    if not batch_first:
        q, k = q.transpose(0, 1), k.transpose(0, 1)
    barred = torch.zeros(3, 5, dtype=torch.bool)
    barred[0, 1] = barred[2, 3] = True
    extra: dict[str, Tensor] = {}
    if masks in ("bool", "both"):
        extra["attn_mask"] = barred
    elif masks == "float":
        extra["attn_mask"] = torch.randn(3, 5)
    elif masks == "per head":
        extra["attn_mask"] = torch.randn(8, 3, 5)
    if masks in ("padding", "both"):
        extra["key_padding_mask"] = torch.tensor([[False] * 5, [False] * 4 + [True]])
    with torch.no_grad():
        results = [
            m(q, k, k, need_weights=need_weights, average_attn_weights=average, **extra)
            for m in (full, narrow)
        ]
    (a, wa), (b, wb) = results
    torch.testing.assert_close(b, a)
    assert (wa is None) == (wb is None)
    if wa is not None:
        torch.testing.assert_close(wb, wa)


@pytest.mark.parametrize("enable_nested", [False, True])
def test_encoder_runs_on_its_fast_path_or_leaves_it(enable_nested: bool) -> None:
    """Cut heads or hidden units give the same result with and without PyTorch's fused layer."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 4, 12, batch_first=True)
    model = nn.Sequential(
        nn.TransformerEncoder(layer, 2, enable_nested_tensor=enable_nested), nn.Linear(8, 3)
    ).eval()
    x = torch.randn(2, 5, 8)
    structure = find_groups(model, x)
    assert {g.kind for g in structure} == {"head", "neuron"}
    assert "input" in " ".join(structure.refused.values()) or len(structure) == 4
    for group, kept in some_units(structure).items():
        check(model, structure, {group: kept}, x)


# ---- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [[], [0, 0], [-1], [6], range(7)])
def test_wrong_units_are_refused(kept: list[int]) -> None:
    model, example = ZOO["lenet"].build()
    group = find_groups(model, example)["conv1"]
    with pytest.raises(BudgetError, match=r"group 'conv1'.* from 0 to 5"):
        keep_mask(group, kept)
    with pytest.raises(BudgetError, match="conv1"):
        cut(model, group, kept)


def test_second_cut_with_old_groups_is_refused() -> None:
    model, example = ZOO["lenet"].build()
    structure = find_groups(model, example)
    small = cut(model, structure["conv1"], [0, 1])
    with pytest.raises(StructureError, match="find_groups again"):
        cut(small, structure["conv1"], [0])
    again = find_groups(small, example)
    assert again["conv1"].n_units == 2
    cut(small, again["conv1"], [1], inplace=True)
    assert small.conv1.out_channels == 1


class HardCoded(nn.Module):
    """A width written into the code: the tensors can be cut, the code cannot."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.fc1(x).relu().view(-1, 6))


def test_code_that_cannot_follow_is_refused_by_name_and_the_model_left_whole() -> None:
    model, x = HardCoded(), torch.randn(3, 4)
    structure = find_groups(model, x)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(
        StructureError, match=r"group 'fc1' cannot be cut: in 'fc2'.*shapes.*left as it is"
    ):
        prove(model, structure, {"fc1": [0, 1]}, as_inputs(x))
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


def test_cut_in_place_and_as_copy() -> None:
    model, example = ZOO["densenet"].build()
    structure = find_groups(model, example)
    kept = some_units(structure)
    expected = run(prove(model, structure, kept, as_inputs(example)), example)
    cut_in_place(
        model,
        [(structure[n], keep_mask(structure[n], k)) for n, k in kept.items()],
        structure.program,
    )
    assert gap(expected, run(model, example)) == 0.0


def test_cut_parameters_are_ordinary() -> None:
    model, example = ZOO["tied"].build()
    model.blocks[0].mlp.up.weight.requires_grad_(False)
    structure = find_groups(model, example)
    small: Any = prove(model, structure, some_units(structure), as_inputs(example))
    assert small.head.weight is small.embed.weight
    assert not small.blocks[0].mlp.up.weight.requires_grad
    assert all(
        isinstance(p, nn.Parameter) and p.is_leaf and p.is_contiguous() for p in small.parameters()
    )
    small.train()
    small(example).sum().backward()
    assert all(p.grad is not None for p in small.parameters() if p.requires_grad)
    clone_ = copy.deepcopy(small)
    clone_.load_state_dict(small.state_dict())


def test_attention_modules_survive_repeated_pruning() -> None:
    torch.manual_seed(0)
    model: nn.Module = attn.EncoderDecoder().eval()
    example = ZOO["encoder-decoder"].example()
    for _ in range(2):
        structure = find_groups(model, example)
        kept = {g.name: list(range(g.n_units - 1)) for g in structure if g.n_units > 1}
        model = check(model, structure, kept, example)
    assert sum(p.numel() for p in model.parameters()) > 0
