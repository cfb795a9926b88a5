"""Streamed statistics equal the products of the raw matrices; patches equal torch's convolutions."""

from __future__ import annotations

from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from subprune.errors import DataError, OptionError
from subprune.program.ranks import ALONE
from subprune.select.greedy import greedy
from subprune.statistics.accumulation import Accumulator
from subprune.statistics.collectors import ConsumerStatistics, summed
from subprune.statistics.columns import ColumnMap
from subprune.statistics.folds import FoldedStatistics
from subprune.statistics.patches import Convolution, conv_rows, patches
from subprune.statistics.shifts import ShiftSums, can_shift, shifted_products
from subprune.statistics.statistics import Statistics, unit_count


def normal(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def same(a: Statistics, b: Statistics, rtol: float) -> None:
    for name in ("gram", "cross", "sums", "target_sums"):
        x, y = getattr(a, name), getattr(b, name)
        assert float((x - y).abs().max()) <= rtol * float(y.abs().max()), name
    assert a.energy == pytest.approx(b.energy, rel=rtol)
    assert a.rows == b.rows
    assert torch.equal(a.units, b.units)


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_streaming_equals_one_product(dtype: torch.dtype, rtol: float) -> None:
    B, Y, units = normal(0, 500, 9, dtype=dtype), normal(1, 500, 4, dtype=dtype), torch.arange(9)
    accumulator = Accumulator(9, 4, units)
    for rows, targets in zip(B.split(37), Y.split(37), strict=True):
        accumulator.update(rows, targets, max_bytes=1000)
    B, Y = B.double(), Y.double()
    energy = float(Y.square().sum())
    same(
        accumulator.result(),
        Statistics(
            gram=B.T @ B,
            cross=B.T @ Y,
            energy=energy,
            rows=500,
            sums=B.sum(0),
            target_sums=Y.sum(0),
            units=units,
        ),
        rtol,
    )


def test_float32_chunks_do_not_lose_what_float64_sums_keep() -> None:
    B = 1000 + normal(0, 20000, 2, dtype=torch.float32)
    accumulator = Accumulator(2, 0, torch.arange(2))
    for rows in B.split(100):
        accumulator.update(rows)
    exact = B.double().T @ B.double()
    assert float(((accumulator.result().gram - exact) / exact).abs().max()) < 1e-7


def test_half_precision_is_widened() -> None:
    B = normal(0, 50, 3, dtype=torch.float32).bfloat16()
    accumulator = Accumulator(3, 3, torch.arange(3))
    accumulator.update(B, B)
    torch.testing.assert_close(
        accumulator.result().cross, B.double().T @ B.double(), rtol=1e-6, atol=1e-5
    )


def test_symmetric_form_needs_no_targets() -> None:
    B, W, units = normal(0, 100, 6), normal(1, 6, 3), torch.arange(6)
    bare, full = Accumulator(6, 0, units), Accumulator(6, 3, units)
    bare.update(B)
    full.update(B, B @ W)
    same(bare.result_for_weight(W), full.result(), 1e-10)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("place", ["inputs", "targets"])
def test_not_finite_is_refused_by_name(bad: float, place: str) -> None:
    B, Y = normal(0, 10, 3), normal(1, 10, 2)
    (B if place == "inputs" else Y)[4, 1] = bad
    with pytest.raises(DataError, match=rf"layer3\.fc: the {place} contain NaN"):
        Accumulator(3, 2, torch.arange(3), where="layer3.fc").update(B, Y)


def test_overflow_no_rows_and_wrong_shapes_are_refused() -> None:
    accumulator = Accumulator(2, 0, torch.arange(2), where="fc")
    with pytest.raises(DataError, match="fc: no rows"):
        accumulator.result()
    accumulator.update(torch.full((3, 2), 1e200, dtype=torch.float64))
    with pytest.raises(DataError, match="fc: the statistics overflowed"):
        accumulator.result()
    with pytest.raises(DataError, match="do not fit"):
        accumulator.update(torch.zeros(3, 4))
    with pytest.raises(DataError, match="must be float64"):
        Statistics(
            gram=torch.eye(2),
            cross=torch.eye(2),
            energy=1.0,
            rows=1,
            sums=torch.ones(2),
            target_sums=torch.ones(2),
            units=torch.arange(2),
        )
    eye = torch.eye(2).double()
    with pytest.raises(DataError, match="sums has shape"):
        Statistics(
            gram=eye,
            cross=eye,
            energy=1.0,
            rows=1,
            sums=torch.ones(3).double(),
            target_sums=torch.ones(2).double(),
            units=torch.arange(2),
        )


def test_columns_of_units() -> None:
    eye = torch.eye(5).double()
    ones = torch.ones(5).double()
    stats = Statistics(
        gram=eye,
        cross=eye,
        energy=5.0,
        rows=5,
        sums=ones,
        target_sums=ones,
        units=torch.tensor([0, -1, 2, 0, 1]),
    )
    assert stats.columns([0]).tolist() == [0, 1, 3]
    assert stats.columns([]).tolist() == [1]
    assert (stats.width, stats.outputs, unit_count([stats])) == (5, 5, 3)


CONVS = [nn.Conv1d, nn.Conv2d, nn.Conv3d]
PADDINGS = [0, 1, "same", "valid"]
MODES = ["zeros", "reflect", "replicate", "circular"]


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("padding_mode", MODES)
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
def test_patches_times_weight_is_the_convolution(dims: int, padding_mode: str, groups: int) -> None:
    x = normal(0, 2, 4, *(7, 6, 5)[:dims])
    for kernel, stride, padding, dilation in product([1, 2, 3], [1, 2], PADDINGS, [1, 2]):
        if padding == "same" and stride != 1:
            continue
        sizes = (kernel,) * (dims - 1) + (2,)
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(0)
            layer = CONVS[dims - 1](
                4,
                6,
                sizes,
                stride,
                padding,
                dilation,
                groups,
                False,
                padding_mode,
                dtype=torch.float64,
            )
            expected = layer(x)
        conv = Convolution.of(layer)
        rows = patches(x, sizes, stride, padding, dilation, padding_mode)
        blocks = ColumnMap(torch.arange(4), 6, conv).weight_blocks(layer.weight.detach())
        found = torch.cat([r @ w for r, w in zip(rows.chunk(groups, 1), blocks, strict=True)], 1)
        found = found.reshape(2, *expected.shape[2:], 6).movedim(-1, 1)
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
        again = ColumnMap(torch.arange(4), 6, conv).output(x, layer.weight.detach())
        torch.testing.assert_close(again, expected, rtol=1e-10, atol=1e-10)


def test_patches_equal_unfold_and_accept_any_memory_layout() -> None:
    x = normal(0, 3, 4, 8, 9)
    expected = F.unfold(x, (3, 2), dilation=(2, 1), padding=(1, 2), stride=(2, 1)).mT.reshape(
        -1, 24
    )
    for layout in (
        x,
        x.contiguous(memory_format=torch.channels_last),
        x.transpose(2, 3).contiguous().mT,
    ):
        assert torch.equal(patches(layout, (3, 2), (2, 1), (1, 2), (2, 1)), expected)


@pytest.mark.parametrize("max_bytes", [1, 700, 3000, 20000, 10**9])
def test_chunks_are_bounded_and_complete(max_bytes: int) -> None:
    x = normal(0, 5, 3, 6, 7)
    conv = Convolution.make((3, 3), padding=1)
    line = 7 * 27 * 8
    seen = torch.zeros(5, 6, 7, 27, dtype=torch.float64)
    for rows, images, lines in conv_rows(x, conv, max_bytes):
        assert rows.numel() * 8 <= max(max_bytes, line)
        seen[images, lines] += rows.reshape(seen[images, lines].shape)
    assert torch.equal(seen.reshape(-1, 27), patches(x, (3, 3), padding=1))


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("padding_mode", MODES)
@pytest.mark.parametrize("size", [(9, 10, 8), (5, 5, 5)])
def test_shifts_equal_patches(dims: int, padding_mode: str, size: tuple[int, ...]) -> None:
    x = normal(0, 3, 4, *size[:dims])
    for kernel, padding, dilation in product(
        [2, 3] if dims < 3 else [2], [0, 1, 2, "same"], [1, 2]
    ):
        sizes = (kernel,) * (dims - 1) + (3,)
        conv = Convolution.make(sizes, 1, padding, dilation, padding_mode)
        rows = patches(x, sizes, 1, padding, dilation, padding_mode)
        y = normal(1, 3, *conv.windows(x).shape[1 : dims + 1], 5)
        found = shifted_products(x, y.movedim(-1, 1), conv)
        expected = (rows.T @ rows, rows.T @ y.reshape(-1, 5), rows.sum(0))
        for a, b in zip((found.gram, found.cross, found.sums), expected, strict=True):
            assert float((a - b).abs().max()) <= 1e-12 * float(b.abs().max())
        assert found.rows == len(rows)


@pytest.mark.parametrize(
    ("size", "kernel", "padding"), [((1, 1), 3, 1), ((2, 2), 3, 1), ((2, 3), 5, 2), ((3, 2), 5, 4)]
)
def test_shifts_on_maps_smaller_than_the_kernel(
    size: tuple[int, int], kernel: int, padding: int
) -> None:
    x = normal(0, 7, 3, *size)
    conv = Convolution.make((kernel, kernel), 1, padding)
    rows = patches(x, (kernel, kernel), 1, padding)
    y = normal(1, 7, *conv.windows(x).shape[1:3], 2)
    found = shifted_products(x, y.movedim(-1, 1), conv)
    for a, b in (
        (found.gram, rows.T @ rows),
        (found.cross, rows.T @ y.reshape(-1, 2)),
        (found.sums, rows.sum(0)),
    ):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_columns_that_see_only_zeros_are_exactly_zero() -> None:
    x = torch.zeros(4, 2, 6, 6)
    x[:, 0, -1] = normal(0, 4, 6, dtype=torch.float32)  # a channel that lives on the last line
    gram = shifted_products(x, None, Convolution.make((3, 3), padding=1)).gram
    assert float(gram.diagonal()[:3].abs().max()) == 0.0
    assert float(gram.diagonal()[3:9].min()) > 0.0


def test_shifts_are_used_where_they_pay() -> None:
    assert can_shift(Convolution.make((3, 3), padding=1), (8, 8))
    assert can_shift(Convolution.make((3, 3), padding=1), (2, 2))
    assert not can_shift(Convolution.make((3, 3), 2, 1), (32, 32))
    assert not can_shift(Convolution.make((1, 1)), (32, 32))
    assert not can_shift(Convolution.make((31, 31), padding=15), (32, 32))


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("max_bytes", [2000, 10**8])
def test_conv_consumer_equals_raw_patches(
    stride: int, groups: int, symmetric: bool, max_bytes: int
) -> None:
    b, a, weight = normal(0, 6, 4, 9, 8), normal(1, 6, 4, 9, 8), normal(2, 8, 4 // groups, 3, 2)
    conv = Convolution.make((3, 2), (stride, 1), 1, groups=groups)
    consumer = ColumnMap(torch.tensor([0, -1, 1, 2]), 8, conv)
    y = consumer.output(b if symmetric else a, weight)
    assert can_shift(conv, (9, 8)) == (stride == 1)
    collector = ConsumerStatistics(consumer, symmetric, max_bytes)
    for part, target in zip(b.split(4), y.split(4), strict=True):
        collector.update(part, None if symmetric else target)
    found = collector.result(weight if symmetric else None)
    assert len(found) == groups
    rows, targets = patches(b, (3, 2), (stride, 1), 1), y.movedim(1, -1).reshape(-1, 8)
    units = consumer.units.repeat_interleave(6)
    pieces = zip(rows.chunk(groups, 1), targets.chunk(groups, 1), units.chunk(groups), strict=True)
    for stats, (B, Y, u) in zip(found, pieces, strict=True):
        energy = float(Y.square().sum())
        same(
            stats,
            Statistics(
                gram=B.T @ B,
                cross=B.T @ Y,
                energy=energy,
                rows=len(B),
                sums=B.sum(0),
                target_sums=Y.sum(0),
                units=u,
            ),
            1e-10,
        )


def test_linear_consumer_takes_any_leading_dimensions() -> None:
    b, weight = normal(0, 5, 3, 4), normal(1, 2, 4)
    consumer = ColumnMap(torch.arange(4), 2)
    symmetric, asymmetric = ConsumerStatistics(consumer, True), ConsumerStatistics(consumer, False)
    symmetric.update(b)
    asymmetric.update(b, consumer.output(b, weight))
    same(symmetric.result(weight)[0], asymmetric.result()[0], 1e-10)
    assert consumer.kind == "linear"


@pytest.mark.parametrize("stride", [1, 2])
def test_not_finite_is_refused_in_a_convolution_too(stride: int) -> None:
    b = normal(0, 2, 3, 9, 9)
    b[1, 2, 4, 4] = float("inf")
    consumer = ColumnMap(torch.arange(3), 2, Convolution.make((3, 3), stride, 1), where="conv2")
    with pytest.raises(DataError, match="conv2: the inputs contain NaN"):
        ConsumerStatistics(consumer, True).update(b)


def test_forms_cannot_be_mixed() -> None:
    consumer = ColumnMap(torch.arange(4), 2, where="fc")
    with pytest.raises(OptionError, match="fc: these statistics are symmetric"):
        ConsumerStatistics(consumer, True).update(normal(0, 3, 4), normal(0, 3, 2))
    with pytest.raises(OptionError, match="fc: these statistics are asymmetric"):
        ConsumerStatistics(consumer, False).update(normal(0, 3, 4))
    with pytest.raises(OptionError, match="symmetric: result needs"):
        ConsumerStatistics(consumer, True).result()
    with pytest.raises(DataError, match="the unit map describes 4"):
        ConsumerStatistics(consumer, True).update(normal(0, 3, 5))


def test_wrong_convolutions_are_refused() -> None:
    with pytest.raises(OptionError, match="padding_mode"):
        Convolution.make((3,), padding_mode="mirror")
    with pytest.raises(OptionError, match="does not fit"):
        patches(normal(0, 1, 1, 2), (3,))
    with pytest.raises(OptionError, match="2-dimensional"):
        patches(normal(0, 1, 1, 5), (3, 3))
    consumer = ColumnMap(torch.arange(1), 1, Convolution.make((3, 3)))
    with pytest.raises(OptionError, match="2-dimensional"):
        ConsumerStatistics(consumer, True).update(normal(0, 1, 1, 5))
    with pytest.raises(OptionError, match="cannot be split"):
        ColumnMap(torch.arange(5), 4, Convolution.make((3, 3), groups=2)).column_units()


# ---- the same rows with other targets, and less their means ---------------------------------------


@pytest.mark.parametrize("kind", ["linear", "shifted", "unfolded", "grouped", "transposed"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_targets_that_come_later_go_with_the_rows_seen_before(
    kind: str, dtype: torch.dtype
) -> None:
    """First all products, then those with new targets alone: as if gathered in one go."""
    conv = {
        "linear": None,
        "shifted": Convolution.make((3, 2), 1, 1),
        "unfolded": Convolution.make((3, 2), 2, 1),
        "grouped": Convolution.make((3, 2), 1, 1, groups=2),
        "transposed": Convolution.transposed((3, 2), (2, 2), (1, 1), (0, 0), (1, 1), 1),
    }[kind]
    shape = (6, 4) if conv is None else (6, 4, 5, 6)
    b = normal(0, *shape, dtype=dtype)
    consumer = ColumnMap(torch.tensor([0, -1, 1, 2]), 8, conv)
    groups = consumer.groups
    weights = (8, 4) if conv is None else (8, 4 // groups, 3, 2)
    y, other = (consumer.output(b, normal(s, *weights, dtype=dtype)).square() for s in (1, 2))
    first, second = (
        [ConsumerStatistics(consumer, False, gram=gram) for _ in range(2)] for gram in (True, False)
    )
    expected = [ConsumerStatistics(consumer, False) for _ in range(2)]
    for fold, part in enumerate((slice(0, 4), slice(4, 6))):
        first[fold].update(b[part], y[part])
        second[fold].update(b[part], other[part])
        expected[fold].update(b[part], other[part])
    for i in range(groups):
        before = FoldedStatistics([c.accumulators()[i] for c in first])
        seen = before.whole().cross.clone()
        after = before.with_targets([c.accumulators()[i] for c in second])
        once = FoldedStatistics([c.accumulators()[i] for c in expected])
        assert second[0].accumulators()[i].bytes < first[0].accumulators()[i].bytes
        for found, wanted in (
            (after.whole(), once.whole()),
            (after.without(0), once.without(0)),
            (after.only(1), once.only(1)),
        ):
            same(found, wanted, 1e-12)
            assert found.precision == wanted.precision
        assert torch.equal(before.whole().cross, seen)  # which stays as it is


def test_scaled_targets_scale_the_weights_that_make_them() -> None:
    b, weight, scale = normal(0, 9, 4), normal(1, 4, 3), torch.tensor([2.0, -1.0, 0.0]).double()
    part = Accumulator(4, 0, torch.arange(4))
    part.update(b)
    found = FoldedStatistics([part], weight, scale=scale).whole()
    Y = b @ weight * scale
    same(
        found,
        Statistics(
            gram=b.T @ b,
            cross=b.T @ Y,
            energy=float(Y.square().sum()),
            rows=9,
            sums=b.sum(0),
            target_sums=Y.sum(0),
            units=torch.arange(4),
        ),
        1e-12,
    )


def test_centred_statistics_are_those_of_centred_columns() -> None:
    B, Y = normal(0, 30, 5) + 3, normal(1, 30, 2) - 1
    B[:, 2] = 0.7  # nothing is left of it
    units = torch.tensor([0, 0, 1, -1, 2])
    energy = float(Y.square().sum())
    whole = Statistics(
        gram=B.T @ B,
        cross=B.T @ Y,
        energy=energy,
        rows=30,
        sums=B.sum(0),
        target_sums=Y.sum(0),
        units=units,
    )
    b, y = B - B.mean(0), Y - Y.mean(0)
    b[:, 2] = 0
    wanted = Statistics(
        gram=b.T @ b,
        cross=b.T @ y,
        energy=float(y.square().sum()),
        rows=30,
        sums=b.sum(0),
        target_sums=y.sum(0),
        units=units,
    )
    found = whole.centred()
    for name in ("gram", "cross", "sums", "target_sums"):
        torch.testing.assert_close(
            getattr(found, name), getattr(wanted, name), rtol=1e-10, atol=1e-10
        )
    assert found.energy == pytest.approx(wanted.energy)
    assert (found.rows, found.precision) == (30, whole.precision)
    assert not found.gram[2].any()
    again = found.centred()
    torch.testing.assert_close(again.gram, found.gram)


@pytest.mark.parametrize("seed", range(4))
def test_greedy_on_centred_statistics_has_a_constant_for_free(seed: int) -> None:
    """Against trying every unit, with a column of ones that is always kept."""
    B = normal(seed, 40, 8).relu() + normal(seed + 50, 8).abs() * 2
    Y = B @ normal(seed + 100, 8, 3) + 0.3 * normal(seed + 200, 40, 3) + 1
    units = torch.arange(4).repeat_interleave(2)
    energy = float(Y.square().sum())
    stats = Statistics(
        gram=B.T @ B,
        cross=B.T @ Y,
        energy=energy,
        rows=40,
        sums=B.sum(0),
        target_sums=Y.sum(0),
        units=units,
    )
    found = greedy([stats.centred()], 4)
    ones, kept = torch.ones(40, 1).double(), []
    total = float((Y - Y.mean(0)).square().sum())
    for step in range(4):
        left = {}
        for unit in set(range(4)) - set(kept):
            wide = torch.cat([B[:, torch.isin(units, torch.tensor([*kept, unit]))], ones], 1)
            left[unit] = float((Y - wide @ torch.linalg.lstsq(wide, Y).solution).square().sum())
        kept.append(min(left, key=lambda unit: left[unit]))
        assert float(found.errors[step + 1]) == pytest.approx(left[kept[-1]] / total, abs=1e-9)
    assert list(found.order) == kept
    assert found.energy == pytest.approx(total)


@pytest.mark.parametrize("gram", [True, False])
def test_images_that_wait_count_as_if_they_came_at_once(gram: bool) -> None:
    conv = Convolution.make((3, 3), padding=1)
    x, y = normal(0, 9, 5, 6, 7), normal(1, 9, 4, 6, 7)
    whole, few = (ShiftSums(conv, (6, 7), 5, 4, gram) for _ in range(2))
    totals = whole.update(x, y)
    parts = [few.update(a, b) for a, b in zip(x.split(2), y.split(2), strict=True)]
    assert few.rows == whole.rows
    torch.testing.assert_close(few.result().tensors(), whole.result().tensors())
    for name in ("sums", "targets"):
        torch.testing.assert_close(sum(getattr(p, name) for p in parts), getattr(totals, name))


@pytest.mark.parametrize("kernel", [1, 3])
def test_a_collector_absorbs_others(kernel: int) -> None:
    units = torch.arange(5)
    mapping = ColumnMap(units, 4, Convolution.make((kernel, kernel), padding=kernel // 2), "conv")
    x, y = normal(0, 12, 5, 6, 7), normal(1, 12, 4, 6, 7)
    folds = [ConsumerStatistics(mapping, symmetric=False) for _ in range(3)]
    for fold, a, b in zip(folds, x.split(4), y.split(4), strict=True):
        fold.update(a, b)
    whole = ConsumerStatistics(mapping, symmetric=False)
    whole.update(x, y)
    ((together,),) = summed(folds, ALONE, apart=False)
    same(together.result(), whole.result()[0], 1e-12)


def test_folds_of_some_columns_are_those_of_all_cut_down() -> None:
    units, gone = torch.tensor([0, 0, 1, 2, -1]), torch.tensor([False, True, False, False, False])
    parts = [Accumulator(5, 3, units) for _ in range(3)]
    for i, part in enumerate(parts):
        part.update(normal(i, 20, 5), normal(9 + i, 20, 3))
    columns = torch.tensor([1, 2, 4])
    for weight, made in ((None, parts), (normal(7, 5, 3), parts)):
        folded = FoldedStatistics(made, weight, gone)
        some = folded.part(columns)
        for fold in range(3):
            for cut, every in (
                (some.without(fold), folded.without(fold)),
                (some.only(fold), folded.only(fold)),
            ):
                same(cut, every.part(columns), 0.0)
