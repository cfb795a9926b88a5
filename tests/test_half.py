"""Models in half precision: pruned as they are, with sums and fits in more."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

import subprune
from subprune.cutting.surgery import prove
from subprune.data.batches import model_dtype, take
from subprune.errors import OptionError
from subprune.program.precision import SINGLE
from subprune.program.program import model_tensors
from subprune.program.record import as_inputs, record
from subprune.statistics.calibration import Calibration
from subprune.statistics.collectors import ConsumerStatistics
from subprune.statistics.columns import ColumnMap
from subprune.statistics.metric import measure_metric

pytestmark = pytest.mark.filterwarnings("default")

QUIET: dict[str, Any] = {"progress": False, "time_calls": False}
HALF = [torch.bfloat16, torch.float16]
WORDS = 60


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12)
        self.inner, self.norm = nn.Conv2d(12, 24, 3, padding=1), nn.BatchNorm2d(24)
        self.conv2, self.norm2 = nn.Conv2d(24, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12)
        self.fc1, self.fc2 = nn.Linear(12, 24), nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(self.conv1(x)).relu()
        inside = self.norm(self.inner(x)).relu()
        x = (self.norm2(self.conv2(inside)) + x).relu()
        return self.fc2(self.fc1(x.mean((2, 3))).relu())


def cnn() -> tuple[nn.Module, Any]:
    return Plain(), torch.randn(48, 3, 8, 8)


def sizes(**more: Any) -> dict[str, Any]:
    return {
        "vocab_size": WORDS,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 24,
        "max_position_embeddings": 32,
        "use_cache": False,
        **more,
    }


def tokens() -> list[dict[str, Tensor]]:
    return [{"input_ids": torch.randint(0, WORDS, (8, 12))} for _ in range(4)]


def llama() -> tuple[nn.Module, Any]:
    library = pytest.importorskip("transformers")
    config = library.LlamaConfig(**sizes(num_key_value_heads=2))
    return library.LlamaForCausalLM(config), tokens()


def bert() -> tuple[nn.Module, Any]:
    library = pytest.importorskip("transformers")
    return library.BertForMaskedLM(library.BertConfig(**sizes())), tokens()


MODELS: dict[str, Callable[[], tuple[nn.Module, Any]]] = {"cnn": cnn, "llama": llama, "bert": bert}


def made(name: str, dtype: torch.dtype) -> tuple[nn.Module, nn.Module, Any]:
    """A model in half precision, the same in float32, and data."""
    torch.manual_seed(0)
    model, data = MODELS[name]()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
    narrow = model.eval().to(dtype)
    return narrow, copy.deepcopy(narrow).float(), data


def dtypes(model: nn.Module) -> dict[str, torch.dtype]:
    return {name: x.dtype for name, x in model.state_dict().items()}


# ---- the whole way -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("name", MODELS)
def test_half_is_pruned_like_single(name: str, dtype: torch.dtype) -> None:
    model, wide, data = made(name, dtype)
    before = {n: x.clone() for n, x in model.state_dict().items()}
    own, other = (subprune.prune(m, data, keep=0.5, **QUIET) for m in (model, wide))
    assert dtypes(own.model) == dtypes(model)
    assert all(torch.equal(x, before[n]) for n, x in model.state_dict().items())
    assert own.plan.counts == other.plan.counts
    assert not any("left whole" in n or "rounding" in n for n in own.report.notes)
    kept = [(a.kept, b.kept) for a, b in zip(own.plan.groups, other.plan.groups, strict=True)]
    common = sum(len(set(a) & set(b)) for a, b in kept)
    assert common >= 0.8 * sum(len(a) for a, _ in kept)
    for a, b in (
        (own.report.fitted, other.report.fitted),
        (own.report.held_out, other.report.held_out),
    ):
        assert a is not None
        assert b is not None
        assert a.output_change == pytest.approx(b.output_change, rel=0.25, abs=0.02)
        assert a.agreement == pytest.approx(b.agreement, abs=0.15)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("name", MODELS)
def test_cut_is_mask_in_half_precision(name: str, dtype: torch.dtype) -> None:
    """The check looks in float64, where a wrong index cannot hide behind rounding."""
    model, _, data = made(name, dtype)
    example = take(data, model).batches[0].inputs
    structure = subprune.find_groups(model, data)
    kept = {g.name: list(range(1, g.n_units)) for g in structure.inner()}
    small = prove(model, structure, kept, example)
    assert dtypes(small) == dtypes(model)


@pytest.mark.parametrize("name", ["cnn", "llama"])
def test_recover_trains_in_more_and_gives_half_back(name: str) -> None:
    half, _, data = made(name, torch.bfloat16)
    result = subprune.prune(half, data, keep=0.2, fit="keep", **QUIET)
    better = subprune.recover(result, data, steps=30, rate=1e-3, progress=False)
    assert dtypes(better.model) == dtypes(result.model)
    assert better.recovery is not None
    assert better.recovery.loss[1] < better.recovery.loss[0]
    changed = [
        not torch.equal(a, b)
        for a, b in zip(better.model.parameters(), result.model.parameters(), strict=True)
    ]
    assert any(changed)


def test_a_wrong_cut_is_still_noticed() -> None:
    from subprune.cutting.masking import mask
    from subprune.cutting.surgery import cut
    from subprune.cutting.twin import match

    model, _, data = made("cnn", torch.bfloat16)
    inputs = take(data, model).batches[0].inputs
    structure = subprune.find_groups(model, inputs[0])
    name = structure.inner()[-1].name
    units = structure[name].n_units
    twin = mask(model, structure, {name: list(range(units - 1))})
    right = cut(model, structure, {name: list(range(units - 1))})
    wrong = cut(model, structure, {name: list(range(1, units))})
    found = match(twin, right, inputs, wide=True)
    assert found.problem == ""
    assert found.wide_gap is not None
    assert found.wide_gap < 1e-12
    assert "differs from the masked one" in match(twin, wrong, inputs).problem


OPTIONS: dict[str, dict[str, Any]] = {
    "refined": {"refine": 2},
    "the paper's": {"method": "asym-in-change"},
    "budgets": {"keep": None, "compression": 1.3},
    "norms": {"batchnorm": "sequential"},
    "norms at the end": {"batchnorm": "recalibrate"},
    "sampled": {"method": "layer-sampling"},
}


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("case", OPTIONS)
def test_every_part_takes_half_precision(case: str, dtype: torch.dtype) -> None:
    model, wide, x = made("cnn", dtype)
    options = {"keep": 0.5, **QUIET, **OPTIONS[case]}
    own, other = (subprune.prune(m, x, **options) for m in (model, wide))
    assert dtypes(own.model) == dtypes(model)
    change = own.report.fitted.output_change
    assert change == pytest.approx(other.report.fitted.output_change, rel=0.3, abs=0.02)


@pytest.mark.parametrize("method", ["layer-act-grad", "layer-greedy-fs"])
def test_methods_with_labels_take_half_precision(method: str) -> None:
    model, _, x = made("cnn", torch.bfloat16)
    labels = torch.randint(0, 5, (len(x),))
    result = subprune.prune(model, (x, labels), keep=0.5, method=method, **QUIET)
    assert dtypes(result.model) == dtypes(model)


def test_forecast_and_inspect_take_half_precision() -> None:
    model, _, x = made("cnn", torch.bfloat16)
    assert subprune.forecast(model, x, compression=2, progress=False).feasible
    assert "conv1" in str(subprune.inspect(model, x))


@pytest.mark.parametrize("name", ["cnn", "llama"])
def test_mixed_models_stay_mixed(name: str) -> None:
    model, _, data = made(name, torch.bfloat16)
    for n, module in model.named_modules():
        if "norm" in n:
            module.float()
    if name == "llama":  # whose norms give what they are given; their weights then decide
        for n, module in model.named_modules():
            if "norm" in n:
                module.register_forward_hook(lambda m, args, y: y.to(args[0].dtype))
    kinds = dtypes(model)
    assert len(set(kinds.values()) - {torch.int64}) == 2
    assert model_dtype(model) == torch.bfloat16
    result = subprune.prune(model, data, keep=0.5, **QUIET)
    assert dtypes(result.model) == kinds


def test_other_types_are_refused_by_name() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    model[0].weight = nn.Parameter(model[0].weight.detach().to(torch.float8_e4m3fn))
    with pytest.raises(OptionError, match=r"0\.weight is torch\.float8_e4m3fn.*bfloat16"):
        subprune.prune(model, torch.randn(8, 4), keep=0.5)


# ---- the parts -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", HALF)
def test_statistics_are_sums_of_converted_values(dtype: torch.dtype) -> None:
    """Not of products in half precision, and with squares beyond its range."""
    b, y = (300 * torch.randn(200, n) for n in (6, 3))
    b, y = b.to(dtype), y.to(dtype)
    own = ConsumerStatistics(ColumnMap(torch.arange(6), 3), symmetric=False)
    own.update(b, y)
    (found,) = own.result()
    wide, target = b.double(), y.double()
    torch.testing.assert_close(found.gram, wide.T @ wide, rtol=1e-5, atol=1e-1)
    torch.testing.assert_close(found.cross, wide.T @ target, rtol=1e-5, atol=10.0)
    clipped = ConsumerStatistics(ColumnMap(torch.arange(6), 3), symmetric=True, clip=2.0)
    clipped.update(b)
    assert bool(clipped.result(torch.randn(3, 6))[0].gram.isfinite().all())


@pytest.mark.parametrize("name", MODELS)
def test_a_run_can_be_widened_operation_by_operation(name: str) -> None:
    model, wide, data = made(name, torch.bfloat16)
    inputs = take(data, model).batches[0].inputs
    program = record(model, inputs)
    (out, *_) = program.call(inputs, model_tensors(model, program), wide=SINGLE)
    with torch.no_grad():
        args, kwargs = as_inputs(inputs[1] or inputs[0])
        args = tuple(x.float() if x.is_floating_point() else x for x in args)
        expected = wide(*args, **kwargs)
    expected = expected if isinstance(expected, Tensor) else expected.logits
    assert out.dtype == torch.float32
    scale = float(expected.abs().max())
    # positions and the like may be computed in the model's own type
    assert float((out - expected).abs().max()) < 2e-2 * scale


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("name", MODELS)
def test_the_metric_in_half_precision(name: str, dtype: torch.dtype) -> None:
    model, wide, data = made(name, dtype)
    found = []
    for m in (model, wide):
        calibration = Calibration.of(m, take(data, m).batches)
        found.append(measure_metric(calibration, calibration.structure.layers))
    for own, other in zip(found[0].values(), found[1].values(), strict=True):
        assert float((own - other).norm() / other.norm()) < 0.1


# ---- memory --------------------------------------------------------------------------------------


class Wide(TorchDispatchMode):
    """Counts the bytes of all tensors of four or more bytes an entry that are alive."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: dict[int, tuple[int, list[weakref.ref[Tensor]]]] = {}
        self.peak = self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for x in tree_flatten(result)[0]:
            if not isinstance(x, Tensor) or isinstance(x, FakeTensor) or x.is_meta:
                continue
            if x.dtype in (torch.float32, torch.float64):
                storage = x.untyped_storage()
                _, known = self.alive.get(storage.data_ptr(), (0, []))
                self.alive[storage.data_ptr()] = (storage.nbytes(), [*known, weakref.ref(x)])
        self.alive = {
            key: (size, living)
            for key, (size, refs) in self.alive.items()
            if (living := [r for r in refs if r() is not None])
        }
        self.peak = max(self.peak, sum(size for size, _ in self.alive.values()))
        self.largest = max([self.largest, *(size for size, _ in self.alive.values())])
        return result


@pytest.mark.parametrize("refined", [0, 1])
def test_no_wider_copy_of_the_model_is_made(refined: int) -> None:
    library = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = library.LlamaConfig(**{**sizes(num_key_value_heads=2), "vocab_size": 30_000})
    model = library.LlamaModel(config).bfloat16().eval()
    copied = 4 * sum(p.numel() for p in model.parameters())
    data = [{"input_ids": torch.randint(0, 30_000, (4, 6))} for _ in range(4)]
    seen = Wide()
    with seen:
        result = subprune.prune(model, data, keep=0.5, refine=refined, **QUIET)
    assert dtypes(result.model) == dtypes(model)
    assert 0 < seen.peak < copied / 2
