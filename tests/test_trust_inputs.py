"""Inputs people bring: each works, or is refused with the true reason."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset
from zoo_odd import Pooled

import subprune
from subprune.data.batch import Batch
from subprune.data.batches import take
from subprune.data.division import folded
from subprune.errors import DataError, OptionError
from subprune.zoo.models import LeNet

# ---- folds ---------------------------------------------------------------------------------------


def _batch(*rows: int, size: int | None = None) -> Batch:
    x = torch.tensor(rows).reshape(-1, 1)
    return Batch(((x,), {}), x[:, 0], len(x) if size is None else size)


def _ranges(*sizes: int) -> list[Batch]:
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return [_batch(*range(a, a + n)) for a, n in zip(starts, sizes, strict=True)]


def _order(batches: list[Batch]) -> list[int]:
    return torch.cat([b.inputs[0][0][:, 0] for b in batches]).tolist()


@pytest.mark.parametrize(
    ("sizes", "parts"),
    [
        ((10,), 4),
        ((128, 128), 4),
        ((7, 2, 1), 4),
        ((5, 5, 5, 5), 4),
        ((9, 1, 1, 1, 8), 4),
        ((2,), 4),
        ((3, 3), 2),
        ((5, 1, 5), 4),
    ],
)
def test_folds_hold_every_sample_once(sizes: tuple[int, ...], parts: int) -> None:
    given = _ranges(*sizes)
    pieces, folds = folded(given, parts)
    assert sorted(_order(pieces)) == list(range(sum(sizes)))
    assert all(
        torch.equal(b.labels, b.inputs[0][0][:, 0]) and b.size == len(b.labels) for b in pieces
    )
    assert sorted(set(folds)) == list(range(min(parts, sum(sizes))))
    held = [sum(b.size for b, f in zip(pieces, folds, strict=True) if f == k) for k in range(parts)]
    assert max(held) - min(held) <= 1
    assert max(b.size for b in pieces) <= max(sizes)
    assert len(pieces) <= len(sizes) + parts


def test_folds_of_sorted_data_are_alike() -> None:
    """Every fourth sample goes to the same fold, across batches."""
    pieces, folds = folded(_ranges(6, 7, 3), 4)
    for fold in range(4):
        own = _order([b for b, f in zip(pieces, folds, strict=True) if f == fold])
        assert own == list(range(fold, 16, 4))


def test_one_fold_leaves_the_batches_alone() -> None:
    given = _ranges(3, 4)
    pieces, folds = folded(given, 1)
    assert all(a is b for a, b in zip(pieces, given, strict=True))
    assert folds == [0, 0]


def test_a_shared_tensor_stays_whole_and_a_lone_batch_that_cannot_be_cut_makes_one_fold() -> None:
    shared = Batch(((torch.zeros(8, 2), torch.ones(1, 2)), {"scale": 2}), None, 8)
    pieces, folds = folded([shared], 4)
    assert folds == [0, 1, 2, 3]
    assert {tuple(b.inputs[0][1].shape) for b in pieces} == {(1, 2)}
    graph = Batch(((torch.zeros(8, 2), torch.zeros(2, 30)), {}), None, 8)
    for lone in (graph, _batch(1)):
        pieces, folds = folded([lone], 4)
        assert (pieces, folds) == ([lone], [0])
    assert folded([graph, graph], 4)[1] == [0, 1]


# ---- what people have ----------------------------------------------------------------------------


class Net(nn.Module):
    """A small classifier of images [N, 3, 8, 8]."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.fc = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 8, 3), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.relu(self.b(F.relu(self.a(x)))).mean((2, 3)))


class Denoiser(nn.Module):
    """Convolutions only: it takes an image with and without a batch dimension, and gives 3 channels
    again.
    """

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(F.relu(self.a(x)))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def loose_mlp() -> nn.Module:
    """Flattens the last dimensions, so that a single image runs as well."""
    return nn.Sequential(nn.Flatten(-3), nn.Linear(192, 8), nn.ReLU(), nn.Linear(8, 4))


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.a, self.b = nn.Embedding(9, 6), nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.b(F.relu(self.a(self.embed(input_ids)))).mean(1)


class Images(Dataset):  # type: ignore[type-arg]
    """A map-style data set, sorted by class: (image, label)."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return self.images[i], int(self.labels[i])


class Stream(IterableDataset):  # type: ignore[type-arg]
    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items)


X = torch.randn(40, 3, 8, 8, generator=torch.Generator().manual_seed(0))
Y = torch.arange(40) // 10  # sorted by class
PAIRS = [(x, int(y)) for x, y in zip(X, Y, strict=True)]
WHOLE: dict[str, Callable[[], Any]] = {
    "array": lambda: X.numpy(),
    "array that must not be written to": lambda: np.broadcast_to(X.numpy(), X.shape),
    "array of the other byte order": lambda: X.numpy().astype(">f4"),
    "reversed array": lambda: X.flip(0).numpy()[::-1],
    "arrays": lambda: (X.numpy(), Y.numpy()),
    "tensors": lambda: (X, Y),
    "list of arrays": lambda: [x.numpy() for x in X.split(16)],
    "list of array pairs": lambda: [
        (x.numpy(), y.numpy()) for x, y in zip(X.split(16), Y.split(16), strict=True)
    ],
    "generator of arrays": lambda: (x.numpy() for x in X.split(16)),
    "dict of arrays": lambda: {"x": X.numpy(), "labels": Y.numpy()},
    "list of dicts of arrays": lambda: [{"x": X.numpy(), "labels": Y.numpy()}],
    "data set": lambda: Images(X, Y),
    "tensor data set": lambda: TensorDataset(X, Y),
    "subset": lambda: Subset(Images(X, Y), range(40)),
    "stream of samples": lambda: Stream(PAIRS),
    "stream of images": lambda: Stream(list(X)),
    "generator of samples": lambda: (x for x in X),
    "list of samples": lambda: list(X),
    "list of labelled samples": lambda: PAIRS,
    "list of samples with tensor labels": lambda: list(zip(X, Y, strict=True)),
    "list of sample arrays": lambda: list(X.numpy()),
    "list of sample dicts": lambda: [{"x": x, "labels": int(y)} for x, y in PAIRS],
    "tuple of samples": lambda: tuple(PAIRS),
    "loader": lambda: DataLoader(Images(X, Y), batch_size=16),
    "loader of arrays": lambda: DataLoader(Images(X, Y), batch_size=16, collate_fn=_arrays),
    "loader of a stream": lambda: DataLoader(Stream(PAIRS), batch_size=16),
    "loader without batches": lambda: DataLoader(Images(X, Y), batch_size=None),
}


def _arrays(samples: list[tuple[Tensor, int]]) -> tuple[np.ndarray, np.ndarray]:
    return np.stack([x.numpy() for x, _ in samples]), np.array([y for _, y in samples])


def inputs_of(taken: Sequence[Batch]) -> Tensor:
    return torch.cat([x for b in taken for x in (*b.inputs[0], *b.inputs[1].values())])


@pytest.mark.parametrize("kind", WHOLE)
@pytest.mark.parametrize("model", [Net, Denoiser, loose_mlp])
def test_all_of_it_in_its_own_order(kind: str, model: Callable[[], nn.Module]) -> None:
    net = model()
    if isinstance(net, nn.Sequential) and "dict" in kind:
        net.forward = lambda x: nn.Sequential.forward(net, x)  # type: ignore[method-assign]
    for n in (None, 40, 1000):
        taken = take(WHOLE[kind](), net, n)
        assert torch.equal(inputs_of(taken.batches), X)
        assert all(b.inputs[0][0].ndim == 4 for b in taken.batches if b.inputs[0])
        assert not taken.remarks or kind.startswith(("stream", "generator", "loader")), (
            taken.remarks
        )
        labels = [b.labels for b in taken.batches if b.labels is not None]
        assert not labels or torch.equal(torch.cat(labels), Y)


STREAMS = ("generator", "stream", "loader of a stream", "loader without")


@pytest.mark.parametrize("kind", WHOLE)
def test_some_of_it_is_drawn_by_seed_from_all_classes(kind: str) -> None:
    net = Net()
    first, again, other = (take(WHOLE[kind](), net, 12, seed=s) for s in (1, 1, 2))
    assert sum(b.size for b in first.batches) == 12
    assert torch.equal(inputs_of(first.batches), inputs_of(again.batches))
    rows = [
        next(i for i, known in enumerate(X) if torch.equal(known, x))
        for x in inputs_of(first.batches)
    ]
    assert len(set(rows)) == 12
    labels = [b.labels for b in first.batches if b.labels is not None]
    assert not labels or torch.cat(labels).tolist() == Y[rows].tolist()
    if kind.startswith(STREAMS):
        assert rows == list(range(12))
        assert any("first 12 inputs of a stream" in r for r in first.remarks)
    elif kind != "list of dicts of arrays":
        assert {int(Y[i]) for i in rows} == {0, 1, 2, 3}
        assert not torch.equal(inputs_of(first.batches), inputs_of(other.batches))
        assert not first.remarks


def test_a_loader_that_shuffles_is_a_draw_already() -> None:
    generator = torch.Generator().manual_seed(3)
    loader = DataLoader(Images(X, Y), batch_size=8, shuffle=True, generator=generator)
    taken = take(loader, Net(), 16)
    assert not taken.remarks
    generator.manual_seed(3)
    assert torch.equal(inputs_of(taken.batches), torch.cat([x for x, _ in loader][:2]))


def test_batches_of_other_shapes_are_drawn_whole() -> None:
    given = [torch.randn(4, 3, 8, 8 + i) for i in range(10)]
    taken = take(given, Net(), 12, seed=1)
    assert [b.size for b in taken.batches] == [4, 4, 4]
    widths = [b.inputs[0][0].shape[-1] - 8 for b in taken.batches]
    assert widths != [0, 1, 2]
    assert all(
        torch.equal(b.inputs[0][0], given[w]) for b, w in zip(taken.batches, widths, strict=True)
    )


def test_samples_of_other_shapes_are_not_mixed() -> None:
    given = [torch.randn(3, 8, 8 + (i > 2)) for i in range(5)]
    assert [tuple(b.inputs[0][0].shape) for b in take(given, Net()).batches] == [
        (3, 3, 8, 8),
        (2, 3, 8, 9),
    ]


class Scalar(nn.Module):
    """A stack of its inputs is not treated alike: the last dimension is dropped only for rows."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(F.relu(self.a(x))).squeeze(1)


BATCHES: dict[str, tuple[Callable[[], nn.Module], list[Any], list[tuple[int, ...]]]] = {
    "rows for an mlp": (mlp, [torch.randn(5, 6), torch.randn(5, 6)], [(5, 6), (5, 6)]),
    "vectors for an mlp": (mlp, [torch.randn(6) for _ in range(4)], [(4, 6)]),
    "labelled rows": (mlp, [(torch.randn(5, 6), torch.arange(5) % 3)], [(5, 6)]),
    "labelled vectors": (mlp, [(torch.randn(6), 1), (torch.randn(6), 2)], [(2, 6)]),
    "a batch of one with a number": (Net, [(X[:1], 2), (X[1:2], 1)], [(1, 3, 8, 8), (1, 3, 8, 8)]),
    "images of one channel with numbers": (
        LeNet,
        [(torch.randn(1, 28, 28), 2), (torch.randn(1, 28, 28), 1)],
        [(2, 1, 28, 28)],
    ),
    "token batches": (Tokens, [torch.randint(9, (2, 5))] * 2, [(2, 5), (2, 5)]),
    "token sequences": (Tokens, [torch.randint(9, (5,)) for _ in range(3)], [(3, 5)]),
    "token sequences of other lengths": (
        Tokens,
        [torch.randint(9, (n,)) for n in (5, 5, 4)],
        [(2, 5), (1, 4)],
    ),
    "sequences for an encoder": (
        lambda: nn.TransformerEncoderLayer(6, 2, 8, batch_first=True),
        [torch.randn(5, 6)] * 3,
        [(3, 5, 6)],
    ),
    "batches of sequences": (
        lambda: nn.TransformerEncoderLayer(6, 2, 8, batch_first=True),
        [torch.randn(2, 5, 6)],
        [(2, 5, 6)],
    ),
    "numbers of classes": (
        lambda: nn.Sequential(nn.Embedding(9, 6), *mlp()),
        [torch.arange(5)] * 2,
        [(5,), (5,)],
    ),
    "rows for an mlp with one output": (
        Scalar,
        [torch.randn(5, 6), torch.randn(5, 6)],
        [(5, 6), (5, 6)],
    ),
    "three images": (Denoiser, [torch.randn(3, 3, 8, 8)], [(3, 3, 8, 8)]),
}


@pytest.mark.parametrize("case", BATCHES)
def test_samples_are_told_from_batches(case: str) -> None:
    make, data, shapes = BATCHES[case]
    taken = take(data, make().eval(), None)
    assert [tuple(b.inputs[0][0].shape) for b in taken.batches] == shapes
    assert [b.size for b in taken.batches] == [s[0] for s in shapes]
    doubtful = case == "rows for an mlp with one output"
    assert (
        any("were read as batches of 5; if each is one sample" in r for r in taken.remarks)
        == doubtful
    )


class TwoArguments(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor, step: int) -> Tensor:
        return self.b(F.relu(self.a(x))) * step


def test_a_number_may_be_an_argument() -> None:
    taken = take([(torch.randn(5, 6), 3)], TwoArguments(), None)
    assert taken.batches[0].inputs[0][1] == 3
    assert taken.batches[0].size == 5


class Strict(Net):
    def forward(self, x: Tensor) -> Tensor:
        assert x.shape[1:] == (3, 8, 8), "images of another kind"
        return super().forward(x)


def test_contradictions_name_both_readings() -> None:
    with pytest.raises(
        DataError, match=r"each is one sample, but the model takes it only as a batch.*torch\.stack"
    ):
        take([(X[:4], 1)], Strict())
    with pytest.raises(
        DataError,
        match=r"single input of shape \(3, 8, 8\), without a batch dimension.*data\[None\]",
    ):
        subprune.prune(Net(), X[0], keep=0.5)
    assert subprune.prune(Net(), X[0][None], keep=0.5, time_calls=False).report.samples == 1


UNREADABLE: dict[str, tuple[Any, str]] = {
    "strings": ("images", "type str cannot be read; give a tensor, a NumPy array"),
    "objects": (np.array([object()]), "values of type object; allowed are numbers"),
    "a number": (3, "type int cannot be read"),
    "no length": (type("Endless", (Dataset,), {})(), "type Endless cannot be read"),
    "a table": (
        type("Table", (), {"to_numpy": lambda self: X.numpy()})(),
        r"give data\.to_numpy\(\)",
    ),
    "an empty data set": (Images(X[:0], Y[:0]), "is empty"),
    "an empty list": ([], "is empty"),
    "pictures": (Images([object()] * 3, Y), "holds no tensor|cannot be put into one batch"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_what_cannot_be_read_is_named(case: str) -> None:
    data, text = UNREADABLE[case]
    with pytest.raises(DataError, match=text):
        take(data, Net())


# ---- precision -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("weights", "data"), [("float", "double"), ("double", "float"), ("float", "half")]
)
def test_fractions_are_cast_and_it_is_said(weights: str, data: str) -> None:
    model = getattr(Net(), weights)().eval()
    same = next(model.parameters()).dtype
    given = getattr(X, data)()
    result = subprune.prune(model, given, keep=0.5, time_calls=False)
    assert any("were cast to" in n and str(same)[6:] in n for n in result.report.notes)
    assert next(result.model.parameters()).dtype == same
    plain = subprune.prune(model, given.to(same), keep=0.5, time_calls=False)
    assert torch.equal(plain.model(given.to(same)), result.model(given.to(same)))
    assert not any("cast" in n for n in plain.report.notes)


def test_whole_numbers_and_mixed_models_are_left_alone() -> None:
    ids = torch.randint(9, (4, 5))
    assert take(ids, Tokens()).batches[0].inputs[0][0].dtype == torch.int64
    mixed = Net()
    mixed.register_buffer("table", torch.zeros(2, dtype=torch.float64))
    assert take(X.double(), mixed).batches[0].inputs[0][0].dtype == torch.float64


# ---- examples ------------------------------------------------------------------------------------

EXAMPLES: dict[str, Callable[[], Any]] = {
    **{kind: make for kind, make in WHOLE.items() if "dict" not in kind},
    "float64": lambda: X.double(),
    "float64 array": lambda: X.double().numpy(),
    "arguments": lambda: [X],
    "array in a tuple": lambda: (X.double().numpy(),),
}


@pytest.mark.parametrize("kind", EXAMPLES)
def test_an_example_is_whatever_can_be_pruned_with(kind: str) -> None:
    model = Net().eval()
    seen = subprune.inspect(model, EXAMPLES[kind]())
    assert [row.name for row in seen if row.default] == ["a", "b"]
    assert seen.flops == subprune.inspect(model, X).flops
    assert subprune.find_groups(model, EXAMPLES[kind]()).names == ["a", "b"]


def test_an_example_that_the_model_does_not_take_is_refused() -> None:
    for given in (X.byte(), X.permute(0, 2, 3, 1)):
        with pytest.raises(DataError, match=r"cannot be called with the example inputs \(shapes"):
            subprune.inspect(Net(), given)
    with pytest.raises(DataError, match="type str cannot be read"):
        subprune.inspect(Net(), "images")


@pytest.mark.parametrize("asked", [{"keep": 0.5}, {"budgets": {"0": 4}}])
def test_data_that_only_fake_tensors_would_take_is_not_blamed_on_the_cut(asked: Any) -> None:
    """A linear layer takes whole numbers as long as nothing is computed."""
    with pytest.raises(
        DataError,
        match=r"cannot be called with the calibration data \(shapes \[\(20, 6\)\]\).*dtype",
    ):
        subprune.prune(mlp(), torch.randint(9, (20, 6)), **asked)


def test_data_without_values_is_refused() -> None:
    with pytest.raises(DataError, match="on the meta device and has no values"):
        subprune.prune(mlp(), torch.randn(20, 6, device="meta"), keep=0.5)


# ---- the whole way -------------------------------------------------------------------------------


def test_a_sorted_set_keeps_all_classes_and_notes_reach_the_report() -> None:
    labels = torch.arange(1000) // 100
    data = (torch.randn(1000, 6), labels)
    seen = torch.cat(
        [b.labels for b in take(data, mlp(), 64, seed=4).batches if b.labels is not None]
    )
    assert set(seen.tolist()) == set(range(10))
    result = subprune.prune(
        mlp(), (x for x in data[0].split(50)), keep=0.5, n_samples=64, time_calls=False
    )
    assert any("first 64 inputs of a stream" in note for note in result.report.notes)


def test_exactly_as_many_are_used_as_they_come() -> None:
    model = Net().eval()
    kept = [
        subprune.prune(model, data, keep=0.5, n_samples=40, seed=s, time_calls=False)
        for data, s in ((X, 0), (X, 7), (list(X.split(16)), 3))
    ]
    assert torch.equal(kept[0].model(X), kept[1].model(X))
    assert kept[0].plan.data == kept[1].plan.data
    assert kept[0].plan.kept == kept[2].plan.kept


# ---- models --------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "DataParallel": (lambda: nn.DataParallel(mlp()), "wrapped in DataParallel; give model.module"),
    "scripted": (
        lambda: torch.jit.script(mlp()),
        "the model is scripted or traced .*give the Python module",
    ),
    "a scripted part": (
        lambda: nn.Sequential(torch.jit.script(nn.Linear(6, 8)), nn.Linear(8, 3)),
        "'0' of the model is scripted",
    ),
    "traced": (lambda: torch.jit.trace(mlp(), torch.randn(2, 6)), "scripted or traced"),
    "exported": (
        lambda: torch.export.export(mlp(), (torch.randn(2, 6),)).module(),
        "made by torch.export.*Python module",
    ),
    "compiled": (lambda: torch.compile(mlp()), "compiled by torch.compile; give model._orig_mod"),
    "lazy": (
        lambda: nn.Sequential(nn.LazyLinear(8), nn.Linear(8, 3)),
        "'0' of the model is a LazyLinear.*call the model",
    ),
    "meta": (
        lambda: mlp().to("meta"),
        r"0\.weight is on the meta device and has no values.*to_empty",
    ),
    "quantised": (
        lambda: torch.ao.quantization.quantize_dynamic(mlp(), {nn.Linear}),
        r"'0' of the model is quantised .*float32",
    ),
    "quantised tensors": (
        lambda: _packed(),
        r"'0' of the model is quantised \(torchao\.dtypes\.PackedTensor\).*float32",
    ),
    "sparse": (lambda: _sparse(), r"0\.weight is stored as torch\.sparse_coo; make it dense"),
}


class PackedTensor(Tensor):
    """As torchao puts into ordinary layers: the class tells, nothing else does."""

    __module__ = "torchao.dtypes"


def _packed() -> nn.Module:
    model = mlp()
    model[0].weight = nn.Parameter(model[0].weight.detach().as_subclass(PackedTensor))  # type: ignore[index,union-attr]
    return model


def _sparse() -> nn.Module:
    model = mlp()
    model[0].weight = nn.Parameter(model[0].weight.detach().to_sparse())  # type: ignore[index,union-attr]
    return model


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"
)
@pytest.mark.parametrize("case", REFUSED)
def test_models_that_cannot_be_pruned_are_refused_by_name(case: str) -> None:
    make, text = REFUSED[case]
    model = make()
    with pytest.raises(OptionError, match=text):
        subprune.prune(model, torch.randn(20, 6), keep=0.5)
    if case not in ("meta", "sparse"):  # whose structure can be looked at
        with pytest.raises(OptionError, match=text):
            subprune.inspect(model, torch.randn(20, 6))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_graphs_and_modules_compiled_in_place_are_pruned() -> None:
    model, x = mlp().eval(), torch.randn(50, 6)
    expected = subprune.prune(model, x, keep=0.5, time_calls=False).model(x)
    graph = torch.fx.symbolic_trace(model)
    compiled = copy.deepcopy(model)
    compiled.compile(backend="eager")
    for other in (graph, compiled, nn.Sequential(nn.DataParallel(model))):
        result = subprune.prune(other, x, keep=0.5, time_calls=False)
        assert torch.allclose(result.model(x), expected, atol=1e-6)


def half(x: Tensor) -> Tensor:
    return torch.relu(x) / 2


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_scripted_function_is_kept() -> None:
    class Scripted(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return self[1](self.function(self[0](x)))

    model = Scripted(nn.Linear(6, 8), nn.Linear(8, 3)).eval()
    model.function = torch.jit.script(half)
    small = subprune.prune(model, torch.randn(20, 6), keep=0.5, time_calls=False).model
    assert small.function is model.function
    assert small[0].out_features == 4  # type: ignore[union-attr]


@pytest.mark.parametrize("place", ["lock", "0.lock"])
def test_what_cannot_be_copied_is_named(place: str) -> None:
    model = mlp()
    model.get_submodule(place.rpartition(".")[0]).lock = threading.Lock()  # type: ignore[assignment]
    with pytest.raises(
        OptionError, match=f"cannot be copied, because of its attribute '{place}' of type lock"
    ):
        subprune.prune(model, torch.randn(20, 6), keep=0.5)


# ---- methods -------------------------------------------------------------------------------------

WRONG_METHODS: dict[str, tuple[Callable[[], Any], str]] = {
    "form": (
        lambda: subprune.method("new", target="asymetric")(len),
        r"target='asymetric': did you mean 'asymmetric'",
    ),
    "rule": (
        lambda: subprune.method("new", allocate="scores")(len),
        "allocate='scores': did you mean 'score'",
    ),
    "no function": (
        lambda: subprune.method("new")("order"),
        "must be a function of a View, got 'order'",
    ),
    "no name": (
        lambda: subprune.method(len),
        r'needs a name, as in @subprune.method\("my-method"\)',
    ),
    "known": (lambda: subprune.method("random")(len), "a method named 'random' already"),
}


@pytest.mark.parametrize("case", WRONG_METHODS)
def test_a_method_is_checked_when_it_is_registered(case: str) -> None:
    call, text = WRONG_METHODS[case]
    with pytest.raises(OptionError, match=text):
        call()
    assert "new" not in subprune.METHODS


# ---- pooling -------------------------------------------------------------------------------------


@pytest.mark.parametrize("pool", [nn.MaxPool3d((1, 2, 2)), nn.AvgPool3d((1, 2, 2))])
def test_pooling_beside_the_channels_is_pruned(pool: nn.Module) -> None:
    """Three-dimensional pooling of [N, C, H, W] sees C as depth, and refuses memory with channels
    last.
    """
    result = subprune.prune(Pooled(2, pool).eval(), X, keep=0.5, time_calls=False)
    assert result.plan.counts == {"first": 4}
    with pytest.raises(OptionError, match="a window slides over it"):
        subprune.prune(Pooled(2, nn.MaxPool3d((3, 1, 1), 1, (1, 0, 0))).eval(), X, keep=0.5)
