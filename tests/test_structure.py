"""What is found in a model: the groups a user expects, and for the rest a reason in words."""

from __future__ import annotations

import doctest
from collections import Counter
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import zoo_odd as odd
from torch import Tensor, nn
from zoo import ZOO, run

from subprune.cutting.masking import mask
from subprune.cutting.surgery import cut, prove
from subprune.errors import DataError, StructureError
from subprune.program.record import as_inputs, record
from subprune.structure import labels
from subprune.structure.analysis import find_groups
from subprune.structure.groups import Structure


@pytest.fixture(scope="module")
def found() -> dict[str, Structure]:
    return {}


def look(found: dict[str, Structure], name: str) -> Structure:
    if name not in found:
        found[name] = find_groups(*ZOO[name].build())
    return found[name]


@pytest.mark.parametrize("name", ZOO)
def test_groups_as_expected(found: dict[str, Structure], name: str) -> None:
    entry, structure = ZOO[name], look(found, name)
    assert dict(Counter(g.kind for g in structure)) == entry.kinds
    assert len(structure.inner()) == entry.inner
    assert len(set(structure.names)) == len(structure)
    for layer, word in entry.refused.items():
        assert word in structure.refused[layer]


@pytest.mark.parametrize("name", ZOO)
def test_every_layer_is_prunable_or_refused(found: dict[str, Structure], name: str) -> None:
    structure = look(found, name)
    model, _ = ZOO[name].build()
    layers = {
        n
        for n, m in model.named_modules()
        if isinstance(m, nn.Linear | nn.modules.conv._ConvNd | nn.Embedding)
    }
    inside = {n for n in layers if any(n.startswith(o + ".") for o in structure.program.opaque)}
    named = {m for g in structure for m in (*g.producers, *g.followers)} | set(structure.refused)
    assert layers - inside <= named
    assert all(len(reason) > 10 for reason in structure.refused.values())
    assert all(g.inner or len(g.obstacle) > 10 for g in structure)


@pytest.mark.parametrize("name", ZOO)
def test_replay_equals_the_model(name: str) -> None:
    model, example = ZOO[name].build()
    structure = find_groups(model, example)
    got = mask(model, structure, {})(as_inputs(example))
    expected = run(model, example)
    assert len(got) == len(expected)
    for a, b in zip(expected, got, strict=True):
        torch.testing.assert_close(b, a, rtol=1e-5, atol=1e-5)


def group(structure: Structure, name: str) -> tuple[Any, ...]:
    g = structure[name]
    return g.kind, g.n_units, g.producers, g.followers, tuple(c.name for c in g.consumers)


def test_depthwise_block_is_one_group(found: dict[str, Structure]) -> None:
    structure = look(found, "mobilenet-v3")
    block = "blocks.0.conv"
    assert group(structure, block) == (
        "channel",
        16,
        (f"{block}.0.0", f"{block}.2.fc2"),
        (f"{block}.0.1", f"{block}.1.0", f"{block}.1.1"),
        (f"{block}.2.fc1", f"{block}.3"),
    )
    assert group(structure, f"{block}.2.fc1") == (
        "channel",
        4,
        (f"{block}.2.fc1",),
        (),
        (f"{block}.2.fc2",),
    )


def test_dense_bottlenecks_are_inner(found: dict[str, Structure]) -> None:
    structure = look(found, "densenet")
    for name in ("block1.0.conv1", "block1.1.conv1", "block2.0.conv1"):
        assert structure[name].inner
        assert structure[name].n_units == 12
    stem = structure["stem"]
    assert [c.name for c in stem.consumers] == ["block1.0.conv1", "block1.1.conv1", "conv"]
    assert set(stem.followers) == {"block1.0.norm1", "block1.1.norm1", "norm"}


def test_option_a_shortcut_makes_one_stream(found: dict[str, Structure]) -> None:
    streams = [g for g in look(found, "resnet20-A") if g.kind == "stream"]
    # the channels that padding adds are a number in the code: they stay
    assert [g.n_units for g in streams] == [16]
    widths = [g.n_units for g in look(found, "resnet20-B") if g.kind == "stream"]
    assert widths == [16, 32, 64]


@pytest.mark.parametrize(
    ("name", "heads", "per_head"),
    [
        ("fused-qkv", 3, {"qkv.weight": 12, "qkv.bias": 12, "proj.weight": 4}),
        ("chunk-qkv", 3, {"c_attn.weight": 12, "c_attn.bias": 12, "c_proj.weight": 4}),
        (
            "gqa",
            3,
            {"q.weight": 4, "k.weight": 2, "k.bias": 2, "v.weight": 2, "v.bias": 2, "o.weight": 4},
        ),
        (
            "gqa-sdpa",
            2,
            {"q.weight": 6, "k.weight": 2, "k.bias": 2, "v.weight": 2, "v.bias": 2, "o.weight": 6},
        ),
        ("mqa", 3, {"q.weight": 4, "o.weight": 4}),
        ("mqa-broadcast", 3, {"q.weight": 4, "o.weight": 4}),
        (
            "einsum",
            3,
            dict.fromkeys(
                ["q.weight", "q.bias", "k.weight", "k.bias", "v.weight", "v.bias", "o.weight"], 4
            ),
        ),
    ],
)
def test_heads(
    found: dict[str, Structure], name: str, heads: int, per_head: dict[str, int]
) -> None:
    first = next(g for g in look(found, name) if g.kind == "head")
    assert first.n_units == heads
    rows = {
        s.tensor.removeprefix("blocks.0.mixer."): Counter(s.units.tolist()) for s in first.slots
    }
    assert rows == {k: dict.fromkeys(range(heads), n) for k, n in per_head.items()}


def test_flatten_gives_every_channel_its_columns(found: dict[str, Structure]) -> None:
    (reader,) = look(found, "lenet")["conv2"].consumers
    assert reader.name == "fc1"
    assert reader.columns.tolist() == [c for c in range(16) for _ in range(25)]


def test_grouped_convolution_stays_balanced(found: dict[str, Structure]) -> None:
    structure = look(found, "resnext")
    g = structure["blocks.1.conv1"]  # 12 channels in 4 groups of 3: a unit takes one of each
    assert g.n_units == 3
    produced = next(s for s in g.slots if s.tensor == "blocks.1.conv1.weight" and s.dim == 0)
    assert produced.units.tolist() == [0, 1, 2] * 4
    assert g.consumers[0].groups == 4


@pytest.mark.parametrize(
    ("name", "where", "obstacle"),
    [
        ("shared-head", "head", "used 2 times"),
        ("twice", "middle", "used 2 times"),
        ("mha-unbatched", "attn", "used 3 times"),
    ],
)
def test_consumers_that_cannot_be_refitted_say_why(
    found: dict[str, Structure], name: str, where: str, obstacle: str
) -> None:
    readers = [c for g in look(found, name) for c in g.consumers if c.name == where]
    assert readers
    assert all(obstacle in c.obstacle and not c.reweightable for c in readers)


def test_the_worked_example_of_labels_is_true() -> None:
    assert doctest.testmod(labels).failed == 0


def test_transposed_convolutions_can_be_refitted(found: dict[str, Structure]) -> None:
    for name, layers in (("unet", {"up1", "up2"}), ("grouped-transpose", {"up", "up2"})):
        readers = [c for g in look(found, name) for c in g.consumers if c.name in layers]
        assert {c.name for c in readers} == layers
        assert all(c.reweightable for c in readers)


def test_tied_weights_are_noticed(found: dict[str, Structure]) -> None:
    stream = next(g for g in look(found, "tied") if g.kind == "stream")
    assert {s.tensor for s in stream.slots} >= {"embed.weight", "position"}
    assert any("embed.weight" in c.obstacle for c in stream.consumers)


def test_branch_in_the_root_is_refused_by_name() -> None:
    model = odd.BranchingRoot().eval()
    with pytest.raises(
        StructureError,
        match=r"BranchingRoot\.forward .*depends on the values.* \(\w+\.py, line \d+: a value is read "
        r"out of a tensor, as \.item\(\) or an if does\).*submodule",
    ):
        find_groups(model, torch.randn(3, 4))


@pytest.mark.parametrize("example", [3, "text", None])
def test_wrong_examples_are_refused(example: Any) -> None:
    with pytest.raises(DataError, match="cannot be read; give a tensor"):
        find_groups(nn.Linear(3, 2), example)


def test_example_as_tensor_tuple_list_or_dict() -> None:
    model, example = ZOO["dict-output"].build()
    names = [
        find_groups(model, e).names
        for e in (example, tuple(example.values()), list(example.values()))
    ]
    assert names == [["fc1"]] * 3
    assert find_groups(model, example["x"]).names == ["fc1"]


# ---- nothing is changed --------------------------------------------------------------------------


def snapshot(model: nn.Module) -> dict[str, Any]:
    modules = list(model.modules())
    return {
        "state": {k: v.clone() for k, v in model.state_dict().items()},
        "ids": {k: id(v) for k, v in [*model.named_parameters(), *model.named_buffers()]},
        "attributes": [
            {k: id(v) for k, v in vars(m).items() if k not in ("_buffers", "_parameters")}
            for m in modules
        ],
        "training": [m.training for m in modules],
        "hooks": [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in modules],
        "grads": [p.requires_grad for p in model.parameters()],
        "versions": [t._version for t in [*model.parameters(), *model.buffers()]],
        "functions": (F.linear, F.scaled_dot_product_attention, torch.is_grad_enabled()),
        "global hooks": len(nn.modules.module._global_forward_hooks),
        "fast path": torch.backends.mha.get_fastpath_enabled(),
        "random": torch.get_rng_state(),
    }


def assert_unchanged(before: dict[str, Any], after: dict[str, Any]) -> None:
    for name in ("state", "random"):
        a, b = before.pop(name), after.pop(name)
        torch.testing.assert_close(b, a, rtol=0, atol=0)
    assert before == after


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", ZOO)
def test_the_model_is_left_alone(name: str, training: bool) -> None:
    model, example = ZOO[name].build()
    model.train(training)
    next(model.modules()).training = not training  # a mixture of modes must come back as it was
    before = snapshot(model)
    structure = find_groups(model, example)
    group = next((g for g in structure if g.n_units > 1), None)
    if group is not None:
        kept = {group.name: range(group.n_units - 1)}
        inputs = as_inputs(example)
        mask(model, structure, kept)(inputs)
        cut(model, group, range(1, group.n_units))
        prove(model, structure, kept, inputs, tolerance=1e-4)
    assert_unchanged(before, snapshot(model))


class Raises(nn.Module):
    """Fails half way, after hooks and patches are in place."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.lstm = nn.Linear(4, 4), nn.LSTM(4, 4)
        self.cache: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.lstm(self.fc(x))
        self.cache = y
        raise ValueError("half way")


def test_the_model_is_left_alone_when_recording_fails() -> None:
    model, example = Raises(), torch.randn(3, 4)
    before = snapshot(model)
    with pytest.raises(ValueError, match="half way"):
        find_groups(model, example)
    assert_unchanged(before, snapshot(model))
    assert model.cache is None


def test_inputs_are_left_alone() -> None:
    model, example = ZOO["inplace"].build()
    before = example.clone()
    structure = find_groups(model, example)
    mask(model, structure, {})(as_inputs(example))
    assert torch.equal(example, before)
    record(model, as_inputs(example), fake=False)
    assert torch.equal(example, before)


def test_buffers_survive_a_real_recording() -> None:
    model, example = ZOO["moving-average"].build()
    record(model, as_inputs(example), fake=False)
    assert not model.seen.any()
