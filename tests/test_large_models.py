"""What makes large models fit into time and memory changes nothing but rounding, if that."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from language_models import llama
from torch import Tensor, nn

import subprune
from subprune.cutting import twin
from subprune.data.batches import batches
from subprune.data.division import folded
from subprune.errors import OptionError
from subprune.fit import cross_fit
from subprune.program import shelf
from subprune.program.cores import granted
from subprune.statistics import accumulation, calibration, runs, sums
from subprune.statistics.accumulation import Accumulator
from subprune.statistics.calibration import Calibration
from subprune.statistics.shared import SharedInputs

QUIET: dict[str, Any] = {"progress": False, "time_calls": False}


class Branched(nn.Module):
    """Convolutions with norms, and a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.a, self.b = nn.Conv2d(8, 12, 3, padding=1), nn.Conv2d(12, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        x = torch.relu(x + self.norm(self.b(torch.relu(self.a(x)))))
        return self.head(x.mean((2, 3)))


def images() -> tuple[nn.Module, Any]:
    torch.manual_seed(3)
    return Branched().double().eval(), torch.randn(40, 3, 8, 8, dtype=torch.float64)


def words() -> tuple[nn.Module, Any]:
    model = llama().double().eval()
    ids = torch.randint(0, 50, (24, 12), generator=torch.Generator().manual_seed(1))
    return model, [{"input_ids": part} for part in ids.split(8)]


MODELS = {"images": images, "words": words}


def pruned(make: Any, **options: Any) -> subprune.Result:
    model, data = make()
    return subprune.prune(model, data, keep=0.6, n_samples=None, **QUIET, **options)


def assert_same(one: subprune.Result, other: subprune.Result, rtol: float = 0.0) -> None:
    assert one.plan.kept == other.plan.kept
    for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=rtol, atol=rtol)
    assert one.report.held_out is not None
    assert other.report.held_out is not None
    mine, theirs = one.report.held_out.output_change, other.report.held_out.output_change
    assert mine == pytest.approx(theirs, rel=1e-6)


# ---- batches with large values -------------------------------------------------------------------


def test_batches_with_large_values_are_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    model, data = words()
    whole = Calibration.of(model, batches(data, model, None), 4)
    assert {b.size for b in whole.batches} == {6}
    # the logits of one input are 12 · 50 numbers
    monkeypatch.setattr(calibration, "VALUE_BYTES", 3 * 12 * 50 * 8)
    divided = Calibration.of(model, batches(data, model, None), 4)
    assert [b.size for b in divided.batches] == [3] * 8
    for fold in range(4):
        rows = [
            [b.inputs[1]["input_ids"] for b, f in zip(c.batches, c.folds, strict=True) if f == fold]
            for c in (whole, divided)
        ]
        assert torch.equal(torch.cat(rows[0]), torch.cat(rows[1]))


def test_all_values_together_count_too(monkeypatch: pytest.MonkeyPatch) -> None:
    model, data = images()
    monkeypatch.setattr(calibration, "ALL_BYTES", 2**17)
    divided = Calibration.of(model, batches(data, model, None))
    assert max(b.size for b in divided.batches) < 10
    assert sum(b.size for b in divided.batches) == 40


def test_a_model_that_takes_whole_batches_keeps_them(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fixed(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.reshape(8, 4))

    monkeypatch.setattr(calibration, "VALUE_BYTES", 8)
    model = nn.Sequential(Fixed(4, 6), nn.ReLU(), nn.Linear(6, 2))
    given = [torch.randn(8, 4) for _ in range(3)]
    assert [b.size for b in Calibration.of(model, batches(given, model, None)).batches] == [8] * 3


def test_statistics_of_divided_batches_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model, data = images()
    options = {"method": "asym-in-change", "fit": "ridge"}
    one = subprune.prune(model, data, keep=0.6, **QUIET, **options)
    monkeypatch.setattr(calibration, "ALL_BYTES", 2**17)
    assert_same(one, subprune.prune(model, data, keep=0.6, **QUIET, **options), 1e-9)


@pytest.mark.parametrize("most", [1, 3, 100])
@pytest.mark.parametrize("parts", [1, 4])
def test_folds_do_not_depend_on_how_batches_are_divided(parts: int, most: int) -> None:
    model, data = images()
    given = batches([data[:25], data[25:]], model, None)
    expected, numbers = folded(given, parts)
    divided, others = folded(given, parts, most=most)
    assert max(b.size for b in divided) <= max(most, 1) or most == 100
    for fold in range(parts):
        one = [b.inputs[0][0] for b, f in zip(expected, numbers, strict=True) if f == fold]
        two = [b.inputs[0][0] for b, f in zip(divided, others, strict=True) if f == fold]
        assert torch.equal(torch.cat(one), torch.cat(two))


def test_rows_in_small_pieces_give_the_same_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    rows, targets = torch.randn(60, 7).double(), torch.randn(60, 3).double()
    units = torch.arange(7)
    whole, pieces = Accumulator(7, 3, units), Accumulator(7, 3, units)
    whole.update(rows, targets)
    monkeypatch.setattr(accumulation, "_ROWS", 25)
    monkeypatch.setattr(accumulation, "_JOINED", 2)
    for module in (accumulation, sums):
        monkeypatch.setattr(module, "STRIP", 2)
    for part, own in zip(rows.split(9), targets.split(9), strict=True):
        part = part.clone()
        pieces.update(part, own)
        part.zero_()  # what was seen is not looked at again
    one, two = whole.result(), pieces.result()
    assert one.rows == two.rows == 60
    for name in ("gram", "cross", "sums", "target_sums"):
        torch.testing.assert_close(getattr(one, name), getattr(two, name), rtol=1e-12, atol=1e-12)
    assert torch.equal(two.gram, two.gram.T)


# ---- files in the place of memory ----------------------------------------------------------------


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_values_in_files_change_nothing(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    one = pruned(make)
    made: list[Tensor] = []

    def shelved(x: Tensor) -> Tensor:
        made.append(shelf.shelved(x))
        return made[-1]

    monkeypatch.setattr(runs, "RUN_BYTES", 0)
    monkeypatch.setattr(shelf, "SMALL", 64)
    monkeypatch.setattr(runs, "shelved", shelved)
    assert_same(one, pruned(make))
    assert any(x.data_ptr() in shelf._maps for x in made)
    made.clear()
    gc.collect()
    assert not shelf._maps  # the files are gone


def test_a_tensor_in_a_file_is_an_ordinary_one() -> None:
    x = torch.randn(4, 8, 64, 64).contiguous(memory_format=torch.channels_last)
    kept = shelf.shelved(x)
    assert kept.data_ptr() != x.data_ptr()
    assert kept.stride() == x.stride()
    shelf.rest(kept)
    assert torch.equal(kept, x)
    assert shelf.shelved(kept) is kept
    part = x[:, :4]  # of a larger tensor
    assert shelf.shelved(part) is part


def test_without_room_for_files_values_stay_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**options: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shelf.tempfile, "TemporaryFile", full)
    x = torch.randn(4, 8, 64, 64)
    assert shelf.shelved(x) is x


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64, torch.bool])
def test_every_type_of_number_can_lie_in_a_file(dtype: torch.dtype) -> None:
    x = torch.randint(0, 2, (2**19,)).to(dtype)
    kept = shelf.shelved(x)
    assert kept.data_ptr() != x.data_ptr()
    assert torch.equal(kept, x)


# ---- what is shared ------------------------------------------------------------------------------


def test_layers_that_read_the_same_share_their_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[bool] = []
    known = SharedInputs.known

    def noted(self: SharedInputs, *args: Any) -> bool:
        answers.append(known(self, *args))
        return answers[-1]

    monkeypatch.setattr(SharedInputs, "known", noted)
    one = pruned(words)
    assert sum(answers) >= 3  # k and v after q, up after gate
    monkeypatch.setattr(SharedInputs, "known", lambda *args: False)
    assert_same(one, pruned(words), 1e-9)


def test_what_is_made_again_for_wide_layers_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    one = pruned(images)
    monkeypatch.setattr(cross_fit, "_WIDE", 0)
    monkeypatch.setattr(cross_fit, "_KEPT", 0)
    assert_same(one, pruned(images), 1e-9)


# ---- cores ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_any_number_of_threads_gives_the_same(make: Any) -> None:
    before = torch.get_num_threads()
    one, two, again, three = (pruned(make, threads=n) for n in (1, 2, 2, 3))
    assert torch.get_num_threads() == before
    assert_same(two, again)  # to the last bit
    assert_same(one, two, 1e-9)
    assert_same(one, three, 1e-9)


@pytest.mark.parametrize("threads", [0, -1, 1.5, True, "two"])
def test_threads_are_a_number(threads: Any) -> None:
    with pytest.raises(OptionError, match="threads"):
        pruned(images, threads=threads)


def test_cores_of_a_container(tmp_path: Path) -> None:
    free = granted(tmp_path)
    assert free >= 1
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert granted(tmp_path) == free
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    assert granted(tmp_path) == 1
    old = tmp_path / "old" / "cpu"
    old.mkdir(parents=True)
    (old / "cpu.cfs_quota_us").write_text("-1\n")
    (old / "cpu.cfs_period_us").write_text("100000\n")
    assert granted(tmp_path / "old") == free
    (old / "cpu.cfs_quota_us").write_text("100000\n")
    assert granted(tmp_path / "old") == 1


def test_of_a_large_model_one_fold_is_judged(monkeypatch: Any) -> None:
    """One version instead of one for each fold: the same model, the same figures on that fold."""
    usual = pruned(words)
    monkeypatch.setattr(calibration, "JUDGED_BYTES", 0)
    large = pruned(words)
    for (name, a), (_, b) in zip(
        usual.model.state_dict().items(), large.model.state_dict().items(), strict=True
    ):
        assert torch.equal(a, b), name
    _, data = words()
    inputs = batches(data, usual.model, None)
    parts, numbers = folded(inputs, cross_fit.FOLDS)
    first = sum(b.size for b, fold in zip(parts, numbers, strict=True) if not fold)
    assert large.report.held_out is not None
    assert large.report.held_out.inputs == large.report.fitted.inputs == first
    # What the version without a fold answers there, by hand.
    model, _ = words()
    every = Calibration.of(model, inputs, cross_fit.FOLDS)
    assert every.judged == 1
    monkeypatch.setattr(calibration, "JUDGED_BYTES", 2**30)
    assert every.judged == cross_fit.FOLDS
    assert Calibration.of(model, inputs).judged == 0
    one = [b for b, fold in zip(every.batches, every.folds, strict=True) if not fold]
    with torch.no_grad():
        outputs = [[m(**b.inputs[1]).logits for b in one] for m in (model, large.model)]
    apart = sum(float((a - b).square().sum()) for a, b in zip(*outputs, strict=True))
    energy = sum(float(a.square().sum()) for a in outputs[0])
    assert large.report.fitted.output_change == pytest.approx(apart / energy, rel=1e-6)


def test_a_fold_of_many_inputs_is_enough_for_a_model_that_is_not_small(monkeypatch: Any) -> None:
    model, data = images()
    four = Calibration.of(model, batches(data, model, None), 4)
    assert four.judged == 4
    monkeypatch.setattr(calibration, "MANY_BYTES", 0)
    assert four.judged == 4  # ten inputs in a fold
    monkeypatch.setattr(calibration, "JUDGED_INPUTS", 10)
    assert four.judged == 1
    monkeypatch.setattr(calibration, "JUDGED_INPUTS", 11)
    assert four.judged == 4


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_one_judged_fold_has_the_figures_it_has_among_all(make: Any, monkeypatch: Any) -> None:
    """With two folds held out of two, or one of them: what the first says is the same."""
    from subprune.loop import walk

    monkeypatch.setattr(walk, "_unseen", lambda calibration, recipe: frozenset({0}))
    usual = pruned(make, folds=2, target="asymmetric")
    monkeypatch.setattr(calibration, "JUDGED_BYTES", 0)
    large = pruned(make, folds=2, target="asymmetric")
    assert usual.report.held_out is not None
    assert large.report.held_out is not None
    assert large.report.held_out.inputs == usual.report.held_out.inputs
    both = (large.report.held_out.output_change, usual.report.held_out.output_change)
    assert both[0] == pytest.approx(both[1], rel=1e-9)


def test_large_outputs_are_compared_piece_by_piece(monkeypatch: Any) -> None:
    """The largest difference relative to the largest finite entry, infinities of masks apart."""
    torch.manual_seed(0)
    a = torch.randn(7, 11)
    b = a + 1e-3 * torch.randn(7, 11)
    a[2, 3] = b[2, 3] = -torch.inf
    finite = a.isfinite()
    expected = float((a - b)[finite].abs().max() / a[finite].abs().max())
    for size in (5, 1000):
        monkeypatch.setattr(twin, "_PIECE", size)
        assert twin._difference([a], [b])[1] == pytest.approx(expected)
    b[4, 4] = torch.inf
    assert twin._difference([a], [b])[1] == torch.inf
    b[4, 4] = torch.nan
    assert twin._difference([a], [b])[1] == torch.inf
