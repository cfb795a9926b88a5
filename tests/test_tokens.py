"""Padding is not data: a padded batch gives what its sentences give one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from views import recipe_of, setting_of

import subprune
from subprune.budget.accuracy import accuracy_curves
from subprune.budget.felt import Felt
from subprune.data import layouts
from subprune.data.batch import Batch
from subprune.data.batches import take
from subprune.data.layouts import lay_out
from subprune.data.tokens import masks
from subprune.distil.training import answer_loss
from subprune.errors import DataError
from subprune.measure.compare import compare
from subprune.measure.measurements import agreement
from subprune.program.layout import Layout, counted
from subprune.program.record import record
from subprune.result import Result
from subprune.statistics import metric
from subprune.statistics.calibration import Calibration
from subprune.statistics.collectors import ConsumerStatistics
from subprune.statistics.columns import ColumnMap
from subprune.statistics.patches import Convolution, random_rows

pytestmark = pytest.mark.filterwarnings("default")

QUIET: dict[str, Any] = {"progress": False, "time_calls": False}
LENGTHS = (5, 8, 3, 8, 6, 2, 7, 4)
WORDS = 40

Item = dict[str, Tensor]


def config(**more: Any) -> dict[str, Any]:
    return {
        "vocab_size": WORDS,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 24,
        "max_position_embeddings": 32,
        "use_cache": False,
        **more,
    }


def llama(kind: str = "LlamaForCausalLM") -> nn.Module:
    library = pytest.importorskip("transformers")
    return getattr(library, kind)(library.LlamaConfig(**config(num_key_value_heads=2)))


def bert() -> nn.Module:
    library = pytest.importorskip("transformers")
    return library.BertForMaskedLM(library.BertConfig(**config()))


def t5() -> nn.Module:
    library = pytest.importorskip("transformers")
    sizes = {"d_model": 16, "num_heads": 2, "num_layers": 2, "d_kv": 8, "d_ff": 24}
    own = {"dropout_rate": 0.0, "use_cache": False, "decoder_start_token_id": 0}
    return library.T5ForConditionalGeneration(library.T5Config(vocab_size=WORDS, **sizes, **own))


MODELS: dict[str, Callable[[], nn.Module]] = {"llama": llama, "bert": bert, "t5": t5}


def made(name: str) -> nn.Module:
    torch.manual_seed(0)
    model = MODELS[name]().double().eval()
    with torch.no_grad():
        for p in model.parameters():  # far from the symmetric start
            p.add_(0.05 * torch.randn_like(p))
    return model


def sentences(name: str) -> list[Item]:
    """Sentences of different lengths, each a batch of its own, without masks."""
    generator = torch.Generator().manual_seed(1)

    def words(length: int) -> Tensor:
        return torch.randint(1, WORDS, (1, length), generator=generator)

    items = []
    for i, n in enumerate(LENGTHS):
        item = {"input_ids": words(n)}
        if name == "bert":
            item["position_ids"] = torch.arange(n)[None]
        if name == "t5":
            item["decoder_input_ids"] = words(LENGTHS[-1 - i])
        items.append(item)
    return items


def padded(items: list[Item], side: str) -> Item:
    """The same in one batch, filled up with garbage, and masks that say so."""
    generator = torch.Generator().manual_seed(2)
    batch: Item = {}
    for key in items[0]:
        rows = [item[key][0] for item in items]
        length = max(len(row) for row in rows)
        full = torch.randint(
            1, WORDS if "input" in key else 30, (len(rows), length), generator=generator
        )
        mask = torch.zeros(len(rows), length, dtype=torch.int64)
        for i, row in enumerate(rows):
            own = slice(0, len(row)) if side == "right" else slice(length - len(row), None)
            full[i, own], mask[i, own] = row, 1
        batch[key] = full
        if "input" in key:
            batch[key.replace("input_ids", "attention_mask")] = mask
    return batch


def pruned(model: nn.Module, data: Any, **options: Any) -> Result:
    return subprune.prune(model, data, **{"keep": 0.5, **QUIET, **options})


def assert_same(one: Result, other: Result) -> None:
    for a, b in zip(one.plan.groups, other.plan.groups, strict=True):
        assert (a.name, a.kept, a.order, a.rows) == (b.name, b.kept, b.order, b.rows)
        assert a.error == pytest.approx(b.error, rel=1e-5, abs=1e-9, nan_ok=True)
    for (name, x), y in zip(
        one.model.state_dict().items(), other.model.state_dict().values(), strict=True
    ):
        torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-7, msg=name)
    for a, b in (
        (one.report.fitted, other.report.fitted),
        (one.report.held_out, other.report.held_out),
    ):
        assert (a is None) == (b is None)
        if a is not None and b is not None:
            assert (a.answers, a.kind, a.agreement) == (b.answers, b.kind, b.agreement)
            assert a.output_change == pytest.approx(b.output_change, rel=1e-5)


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random directions and answers would differ with the shape of the batch."""
    monkeypatch.setattr(metric, "_signs", lambda like, random: torch.ones_like(like).cumsum(-1))
    monkeypatch.setattr(metric, "_drawn", lambda shares, random: shares.argmax(-1))


# ---- the whole way -------------------------------------------------------------------------------


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.usefixtures("steady")
def test_padding_changes_nothing(name: str, side: str) -> None:
    model, items = made(name), sentences(name)
    assert_same(pruned(model, items), pruned(model, [padded(items, side)]))


OTHERS: dict[str, dict[str, Any]] = {
    "a share for all": {"keep": None, "compression": 1.2},
    "the paper's": {"method": "asym-in-change"},
    "sequential": {"target": "sequential", "fit": "least-squares"},
    "refined": {"refine": 2},
    "sampled": {"method": "layer-sampling"},
}


@pytest.mark.parametrize("case", OTHERS)
@pytest.mark.usefixtures("steady")
def test_padding_changes_nothing_for_other_methods(case: str) -> None:
    model, items = made("llama"), sentences("llama")
    one, other = (pruned(model, data, **OTHERS[case]) for data in (items, [padded(items, "right")]))
    assert_same(one, other)


@pytest.mark.usefixtures("steady")
def test_batches_of_different_lengths_are_one_data_set() -> None:
    model, items = made("llama"), sentences("llama")
    parts = [padded(items[:3], "right"), padded(items[3:5], "left")]
    parts += [padded([item], "left") for item in items[5:]]
    assert_same(pruned(model, items), pruned(model, parts))


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.uint8])
def test_masks_of_ones_cost_and_change_nothing(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    model, items = made("bert"), sentences("bert")[1:2] * 4
    batch = padded(items, "right")
    batch["attention_mask"] = torch.ones_like(batch["input_ids"]).to(dtype)

    def never(*args: Any) -> None:
        raise AssertionError("all tokens count: nothing has to be found out")

    monkeypatch.setattr(layouts, "record", never)
    result = pruned(model, [batch])
    assert not any("mask" in note for note in result.report.notes)


class Normed(nn.Module):
    """Tokens pass a BatchNorm; the mask stands second."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 6)
        self.wide, self.norm, self.narrow = (
            nn.Conv1d(6, 12, 1),
            nn.BatchNorm1d(12),
            nn.Linear(12, 5),
        )

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.wide(self.embed(input_ids).transpose(1, 2))
        return self.narrow(self.norm(x).relu().transpose(1, 2))


@pytest.mark.usefixtures("steady")
def test_norms_are_measured_without_padding() -> None:
    torch.manual_seed(0)
    model, items = Normed().double().eval(), sentences("llama")
    alone = [padded([item], "left") for item in items]
    together = [tuple(padded(items, "left").values())]  # by position
    one, other = (pruned(model, x, batchnorm="sequential") for x in (alone, together))
    assert_same(one, other)
    assert not torch.allclose(one.model.norm.running_mean, torch.zeros(6).double())


# ---- where tokens lie ----------------------------------------------------------------------------


def consumers_by_mask(model: nn.Module, batch: Item) -> dict[str, str]:
    """Layer → the mask that its rows go by."""
    calibration = Calibration.of(model, [Batch(((), batch), None, len(batch["input_ids"]))])
    program = calibration.structure.program
    return {
        c.use.weight: program.layouts[c.use.output].mask
        for c in calibration.structure.layers
        if c.use.output in program.layouts
    }


def test_each_side_of_an_encoder_decoder_has_its_own_mask() -> None:
    model, items = made("t5"), sentences("t5")
    batch = padded(items, "right")
    assert batch["attention_mask"].shape == batch["decoder_attention_mask"].shape
    found = consumers_by_mask(model, batch)
    for name, mask in found.items():
        crossing = "EncDecAttention" in name and (".k." in name or ".v." in name)
        inside = name.startswith("encoder.") or crossing
        assert mask == ("attention_mask" if inside else "decoder_attention_mask"), name
    assert any("EncDecAttention.k" in name for name in found)
    assert any("EncDecAttention.q" in name for name in found)


class Odd(nn.Module):
    """Rows flattened, length first, pooled, and a width that is the length."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 6)
        self.flat, self.turned = nn.Linear(6, 6), nn.Linear(6, 6)
        self.pooled, self.per_head = nn.Linear(6, 6), nn.Linear(3, 3)
        self.slide = nn.Conv1d(6, 6, 3, padding=1)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.embed(input_ids) * attention_mask[..., None]
        x = self.flat(x.reshape(-1, 6)).reshape(x.shape).relu()
        x = self.turned(x.transpose(0, 1)).transpose(0, 1).relu()
        heads = x.unflatten(-1, (2, 3)).transpose(1, 2)
        x = self.per_head(heads).transpose(1, 2).flatten(2).relu()
        x = self.slide(x.transpose(1, 2)).transpose(1, 2).relu()
        return self.pooled(x.mean(1))


@pytest.mark.parametrize("shape", [(5, 6), (4, 5), (1, 6), (3, 2)])
def test_layouts_are_found_by_dimension(shape: tuple[int, int]) -> None:
    model, ids = Odd(), torch.randint(0, WORDS, shape)
    mask = torch.ones_like(ids)
    mask[0, -1] = 0
    inputs = ((), {"input_ids": ids, "attention_mask": mask})
    program = record(model, inputs)
    assert lay_out(model, [Batch(inputs, None, shape[0])], [program]) == []
    found: dict[str, tuple[int, int] | None] = {}
    for op in program.ops:
        if op.kind in ("linear", "addmm", "convolution", "conv1d"):
            layout = program.layouts.get(op.outs[0])
            found[op.module] = None if layout is None else (layout.samples, layout.positions)
    expected: dict[str, tuple[int, int] | None] = {"flat": (0, 0), "turned": (1, 0)}
    expected |= {"per_head": (0, 2), "slide": (0, 2), "pooled": None}
    # rows may be flattened inside a layer; then the outer value tells
    assert {n: x for n, x in found.items() if n in expected} == expected
    known = masks(inputs)
    for vid, layout in program.layouts.items():
        own = counted(program, known, vid)
        assert own is not None
        assert int(own.sum()) == int(mask.sum()), layout


def test_layout_spreads_the_mask() -> None:
    mask = torch.tensor([[True, True, False], [True, False, False]])
    x = torch.randn(2, 3, 4)
    for layout, value in {
        Layout("m", 0, 1): x,
        Layout("m", 1, 0): x.transpose(0, 1),
        Layout("m", 0, 2): x[:, None].expand(2, 5, 3, 4),
        Layout("m", 0, 0): x.reshape(6, 4),
    }.items():
        own = layout.spread(mask, value.shape)
        assert own is not None
        kept = torch.where(own, value, 0).square().sum()
        repeated = value.numel() // x.numel()
        torch.testing.assert_close(kept, repeated * x[mask].square().sum())
    assert Layout("m", 0, 1).spread(mask, (2, 4, 4)) is None


# ---- statistics ----------------------------------------------------------------------------------


def test_statistics_of_a_linear_layer_leave_padding_out() -> None:
    mapping = ColumnMap(torch.arange(4), 3)
    b, y = torch.randn(2, 5, 4).double(), torch.randn(2, 5, 3).double()
    mask = torch.rand(2, 5) < 0.5
    mask[0, 0] = True
    own = ConsumerStatistics(mapping, symmetric=False)
    own.update(b, y, mask[..., None])
    rows, targets = b[mask], y[mask]
    (found,) = own.result()
    assert found.rows == int(mask.sum())
    torch.testing.assert_close(found.gram, rows.T @ rows)
    torch.testing.assert_close(found.cross, rows.T @ targets)
    torch.testing.assert_close(found.sums, rows.sum(0))


@pytest.mark.parametrize("max_bytes", [2**20, 64])
def test_statistics_of_a_convolution_leave_padding_out(max_bytes: int) -> None:
    conv = Convolution.make((3,), padding=1)
    mapping = ColumnMap(torch.arange(4), 3, conv)
    b, y = torch.randn(2, 4, 6).double(), torch.randn(2, 3, 6).double()
    mask = torch.rand(2, 6) < 0.5
    mask[0, 0] = True
    own = ConsumerStatistics(mapping, symmetric=False, max_bytes=max_bytes)
    own.update(b, y, mask[:, None])
    rows = conv.windows(b).reshape(2, 6, 12)[mask]
    targets = y.movedim(1, -1)[mask]
    (found,) = own.result()
    torch.testing.assert_close(found.gram, rows.T @ rows)
    torch.testing.assert_close(found.cross, rows.T @ targets)


def test_random_patches_are_of_positions_that_count() -> None:
    conv = Convolution.make((3,), padding=1)
    x, y = torch.randn(2, 4, 6), torch.randn(2, 1, 6)
    mask = torch.tensor([[1, 1, 0, 0, 0, 0], [0, 1, 1, 1, 1, 1]]) == 1
    y[~mask[:, None]] = float("nan")
    rows, targets = random_rows(x, y, conv, torch.Generator().manual_seed(0), mask[:, None])
    assert targets is not None
    assert len(rows) == len(targets) == 2 + 3
    assert bool(targets.isfinite().all())


# ---- answers -------------------------------------------------------------------------------------


def test_agreement_and_change_leave_padding_out() -> None:
    model, items = made("llama"), sentences("llama")
    other = made("llama")
    with torch.no_grad():
        for p in other.parameters():
            p.add_(0.02 * torch.randn_like(p))
    one_by_one = [Batch(((), item), None, 1) for item in items]
    batch = [Batch(((), padded(items, "right")), None, len(items))]
    assert 0 < agreement(model, other, one_by_one) < 1
    assert agreement(model, other, one_by_one) == agreement(model, other, batch)


def test_tokens_without_a_label_have_no_answer() -> None:
    ids, a = torch.randint(0, 9, (3, 4)), torch.randn(3, 4, 9)
    b = a.clone()
    b[2, 3], b[0, 0] = -b[2, 3], -b[0, 0]
    labels = a.argmax(-1)
    labels[2, 2:] = -100
    seen = compare([a], [b], [Batch(((ids,), {}), labels, 3)])
    assert (seen.answers, seen.agreement, seen.accuracy) == (10, 9 / 10, (1.0, 9 / 10))
    own = labels != -100
    change = (a - b)[own].square().sum() / a[own].square().sum()
    assert seen.output_change == pytest.approx(float(change), rel=1e-6)


@pytest.mark.usefixtures("steady")
def test_the_metric_probes_no_padding() -> None:
    model, items = made("bert"), sentences("bert")
    found = []
    for data in (items, [padded(items, "left")]):
        calibration = Calibration.of(model, take(data, model).batches)
        by_value = metric.measure_metric(calibration, calibration.structure.layers)
        found.append(by_value)
    assert len(found[0]) == len(found[1]) > 0
    for own, other in zip(found[0].values(), found[1].values(), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-6, atol=1e-12)


def test_answers_about_tokens_are_felt_as_the_fisher_information_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Against every answer of every position, with its probability."""
    torch.manual_seed(1)
    table, first, last = nn.Embedding(WORDS, 6), nn.Linear(6, 8), nn.Linear(8, 5)
    model, ids = nn.Sequential(table, first, nn.Tanh(), last), torch.randint(0, WORDS, (3, 4))
    calibration = Calibration.of(model, [Batch(((ids,), {}), None, 3)])
    monkeypatch.setattr(metric, "PROBES", 4000)
    found = metric.measure_metric(calibration, calibration.structure.layers)
    hidden = first(table(ids)).detach().requires_grad_()
    scores = last(hidden.tanh())
    exact = torch.zeros(8)
    for position in [(i, j) for i in range(3) for j in range(4)]:
        shares = scores[position].detach().softmax(-1)
        for answer, share in enumerate(shares):
            loss = scores[position].log_softmax(-1)[answer]
            (grad,) = torch.autograd.grad(loss, hidden, retain_graph=True)
            exact += share * grad.square().sum((0, 1)) / 12
    (own,) = [w for w in found.values() if len(w) == 8]
    torch.testing.assert_close(own.square().float(), exact, rtol=0.1, atol=0)


@pytest.mark.parametrize("name", ["llama", "bert"])
def test_budgets_of_language_models_follow_what_is_felt_alone(name: str) -> None:
    model, items = made(name), sentences(name)
    goal = {"keep": None, "compression": 1.3}
    budgets = [Felt(), Felt(share=1.0, mix=1.0)]
    usual, given = (pruned(model, items, allocate=felt, **goal) for felt in budgets)
    assert usual.plan.counts == given.plan.counts


def test_labels_that_say_so_are_not_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a label is -100, nothing about the output matters."""
    model = nn.Sequential(nn.Embedding(WORDS, 6), nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5))
    ids, labels = torch.randint(0, WORDS, (4, 7)), torch.randint(0, 5, (4, 7))
    labels[:, 3:] = -100
    monkeypatch.setattr(metric, "_drawn", lambda shares, random: shares.argmax(-1))
    found = []
    for batch in (Batch(((ids,), {}), labels, 4), Batch(((ids[:, :3],), {}), None, 4)):
        calibration = Calibration.of(model, [batch])
        found.append(metric.measure_metric(calibration, calibration.structure.layers))
    for value, weights in found[0].items():  # the mean is over all positions, of which 3 of 7 count
        torch.testing.assert_close(weights, found[1][value] * (3 / 7) ** 0.5)


@pytest.mark.parametrize("labels", [False, True])
def test_accuracy_curves_leave_padding_out(labels: bool) -> None:
    model, items = made("llama"), sentences("llama")
    batch = padded(items, "right")
    right = [torch.randint(0, WORDS, item["input_ids"].shape) for item in items]
    full = torch.zeros_like(batch["input_ids"])
    for i, row in enumerate(right):
        full[i, : row.shape[1]] = row[0]
    alone = [Batch(((), x), y, 1) for x, y in zip(items, right, strict=True)]
    together = [Batch(((), batch), full, len(items))]
    curves = []
    for batches in (alone, together):
        calibration = Calibration.of(model, batches)
        setting, recipe = setting_of(calibration), recipe_of("layer-in-change")
        curves.append(
            accuracy_curves(setting, recipe, calibration, labels=labels, fractions=(0.5, 1.0))
        )
    assert {n: c.values for n, c in curves[0].items()} == {
        n: c.values for n, c in curves[1].items()
    }


@pytest.mark.parametrize("method", ["layer-act-grad", "layer-greedy-fs"])
def test_scores_by_labels_leave_padding_out(method: str) -> None:
    model, items = made("llama"), sentences("llama")
    batch = padded(items, "right")
    labels = torch.randint(0, WORDS, batch["input_ids"].shape)
    alone = [
        {**x, "labels": labels[i : i + 1, : x["input_ids"].shape[1]]} for i, x in enumerate(items)
    ]
    one, other = (
        pruned(model, data, method=method, budgets={"model.layers.0.mlp": 12}, keep=None)
        for data in (alone, [{**batch, "labels": labels}])
    )
    if method == "layer-act-grad":
        assert one.plan.groups[0].order == other.plan.groups[0].order
    else:  # which draws whole batches: here just that it runs
        assert len(other.plan.groups[0].kept) == 12


@pytest.mark.parametrize("dim", [2, None])
def test_losses_of_recover_leave_padding_out(dim: int | None) -> None:
    wanted, given = torch.randn(2, 5, 7), torch.randn(2, 5, 7)
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]) == 1
    own = answer_loss(wanted, given, dim, mask[..., None])
    rows = [x[mask] for x in (wanted, given)]
    torch.testing.assert_close(own, answer_loss(rows[0], rows[1], None if dim is None else 1))


# ---- what cannot be read -------------------------------------------------------------------------

UNCLEAR: dict[str, Callable[[Tensor], Tensor]] = {
    "four dimensions": lambda mask: mask[:, None, None].bool(),
    "other numbers": lambda mask: mask * 3,
    "nothing counts": torch.zeros_like,
}


@pytest.mark.parametrize("case", UNCLEAR)
def test_unclear_masks_are_remarked(case: str) -> None:
    mask = torch.ones(3, 5, dtype=torch.int64)
    mask[0, 3:] = 0
    batch = {"input_ids": torch.randint(0, WORDS, (3, 5)), "attention_mask": UNCLEAR[case](mask)}
    taken = take([batch], Odd())
    assert any("all tokens count as data" in remark for remark in taken.remarks)
    assert masks(taken.batches[0].inputs) == {}


class Deaf(nn.Module):
    """Has another length inside than the mask."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, x: Tensor, attention_mask: Tensor) -> Tensor:
        return self.net(x)


def test_masks_about_nothing_are_remarked() -> None:
    mask = torch.ones(4, 9, dtype=torch.int64)
    mask[0, 3:] = 0
    data = [{"x": torch.randn(4, 6), "attention_mask": mask}]
    result = pruned(Deaf(), data)
    assert any("were not found in the model" in note for note in result.report.notes)


# ---- n_samples in tokens -------------------------------------------------------------------------


def tokens_of(batches: list[Batch]) -> int:
    return sum(int(b.inputs[1]["attention_mask"].sum()) for b in batches)


def test_samples_may_be_counted_in_tokens() -> None:
    items = sentences("llama")
    batch = padded(items, "right")
    model = llama()
    for wanted in (1, 10, 20, sum(LENGTHS), 1000):
        taken = take([batch], model, f"{wanted:,} tokens").batches
        total = tokens_of(taken)
        assert total >= min(wanted, sum(LENGTHS))
        last = int(taken[-1].inputs[1]["attention_mask"][-1].sum())
        assert total - last < wanted
    drawn = [take([batch], model, "10 tokens", seed=s).batches[0].inputs[1] for s in range(5)]
    assert len({str(x["input_ids"].tolist()) for x in drawn}) > 1


def test_tokens_without_a_mask_are_all_that_there_are() -> None:
    ids = torch.randint(0, WORDS, (20, 6))
    model = llama()
    taken = take([{"input_ids": ids}], model, "31 tokens").batches
    assert sum(b.size for b in taken) == 6
    stream = ({"input_ids": x} for x in ids.split(4))
    taken = take(stream, model, "31 tokens").batches
    assert torch.equal(torch.cat([b.inputs[1]["input_ids"] for b in taken]), ids[:6])


BAD: Mapping[str, Any] = {
    "words": "many tokens",
    "none": "0 tokens",
    "unit": "10 words",
    "text": "12",
}


@pytest.mark.parametrize("case", BAD)
def test_other_numbers_of_tokens_are_refused(case: str) -> None:
    with pytest.raises(DataError, match=r'n_samples must be .* "4096 tokens"'):
        subprune.prune(Odd(), torch.zeros(3, 4), keep=0.5, n_samples=BAD[case])


def test_images_have_no_tokens() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    with pytest.raises(DataError, match="counts tokens, and the inputs have none"):
        subprune.prune(model, torch.randn(9, 6), keep=0.5, n_samples="5 tokens")
