"""Greedy on the loss: partial sums and trials in batches against full forward passes, draws, and the scale."""

from __future__ import annotations

import pytest
import slow_methods as slow
import torch
from method_nets import NETS

import subprune
from subprune import greedy_fs
from subprune.calibrate import Calibration
from subprune.data import batches
from subprune.ranking import rankers
from subprune.registry import METHODS, Setting


@pytest.mark.parametrize("together", [1, 600, greedy_fs.TOGETHER])
@pytest.mark.parametrize("name", NETS)
def test_the_whole_order_equals_full_forward_passes(name: str, together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each group alone on the dense model, with trials one by one and in batches."""
    monkeypatch.setattr(greedy_fs, "TOGETHER", together)
    net = NETS[name]
    model, data = net.build(), net.data(3, 8)
    calibration = Calibration.of(model, batches(data, model, None))
    for ranker in rankers(calibration, calibration.structure.inner(), METHODS["layer-greedy-fs"], seed=4):
        group = ranker.group.name
        readers, n = net.groups[group], ranker.n_units
        draws = Setting(calibration, (), 4).generator(group)
        found = greedy_fs.greedy_loss(ranker)
        assert list(found.order) == slow.greedy_fs(model, readers, data, n, draws), group
        assert found.scale is not None
        assert found.scale(2).tolist() == [n / 2] * n


@pytest.mark.parametrize("name", ["plain", "fork", "joined", "grouped"])
def test_operations_run_as_one_give_the_same_losses(name: str) -> None:
    """In float32 each trial runs fused; the losses agree with those in float64, where nothing is."""
    net = NETS[name]
    found: dict[torch.dtype, list[torch.Tensor]] = {}
    for dtype in (torch.float64, torch.float32):
        model = net.build().to(dtype)
        data = [(x.to(dtype), y) for x, y in net.data(1, 8)]
        calibration = Calibration.of(model, batches(data, model, None))
        for ranker in rankers(calibration, calibration.structure.inner(), METHODS["layer-greedy-fs"], seed=4):
            trial = greedy_fs._trial(ranker.start or ranker.current, ranker.group, calibration, 0, fresh=False)
            assert trial._fused is (dtype == torch.float32)
            found.setdefault(dtype, []).append(trial.losses([1], [0, 2]))
    for exact, fused in zip(found[torch.float64], found[torch.float32], strict=True):
        torch.testing.assert_close(fused.double(), exact, rtol=1e-5, atol=1e-6)


def test_batches_of_the_pool_are_drawn_not_those_of_the_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    net = NETS["plain"]
    model, data, pool = net.build(), net.data(2, 8), net.data(5, 7, seed=42)
    seen: list[int] = []
    original = greedy_fs._trial

    def watched(run, group, source, number, fresh):  # type: ignore[no-untyped-def]
        assert fresh
        assert len(source.batches) == 5
        seen.append(number)
        return original(run, group, source, number, fresh)

    monkeypatch.setattr(greedy_fs, "_trial", watched)
    subprune.prune(model, data, method="layer-greedy-fs-fd", keep=0.9, train_data=pool, progress=False)
    assert len(set(seen)) > 2


def test_the_scale_stays_in_the_weights_without_reweighting_only() -> None:
    net = NETS["plain"]
    model, data = net.build(), net.data(2, 20)
    result = subprune.prune(model, data, method="layer-greedy-fs", budgets=net.keep, reweight=False, progress=False)
    rows, columns = result.plan.kept["conv2"], result.plan.kept["conv1"]
    old = model.conv2.weight[list(rows)][:, list(columns)]
    torch.testing.assert_close(result.model.conv2.weight, old * (4 / 2))
    again = subprune.prune(model, data, method="layer-greedy-fs", budgets=net.keep, progress=False)
    assert not torch.allclose(again.model.conv2.weight, old * 2)


def test_a_loss_that_is_not_a_number_never_wins() -> None:
    nan = float("nan")
    assert greedy_fs._lowest(torch.tensor([nan, 2.0, 1.0, 1.0])) == 2
    assert greedy_fs._lowest(torch.tensor([nan, nan])) == 0
    assert greedy_fs._lowest(torch.tensor([1.0 + 1e-7, 1.0])) == 0
    assert greedy_fs._lowest(torch.tensor([1.0 + 1e-7, 1.0], dtype=torch.float64)) == 1
