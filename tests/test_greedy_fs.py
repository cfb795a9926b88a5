"""Greedy on the loss: partial sums and trials in batches against full forward passes, draws, and
the scale.
"""

from __future__ import annotations

from typing import Any

import pytest
import slow_methods as slow
import torch
from method_nets import NETS
from views import setting_of, views

import subprune
from subprune.data.batches import batches
from subprune.program import fuse
from subprune.select import forward_selection as greedy_fs
from subprune.statistics.calibration import Calibration
from subprune.statistics.place import generator
from subprune.zoo.models import build


@pytest.mark.parametrize("together", [1, 600, greedy_fs.TOGETHER])
@pytest.mark.parametrize("name", NETS)
def test_the_whole_order_equals_full_forward_passes(
    name: str, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each group alone on the dense model, with trials one by one and in batches."""
    monkeypatch.setattr(greedy_fs, "TOGETHER", together)
    net = NETS[name]
    model, data = net.build(), net.data(3, 8)
    calibration = Calibration.of(model, batches(data, model, None))
    for view in views(setting_of(calibration, seed=4)):
        group = view.group.name
        readers, n = net.groups[group], view.n_units
        draws = generator(4, group)
        found = greedy_fs.greedy_loss(view)
        assert list(found.order) == slow.greedy_fs(model, readers, data, n, draws), group
        assert found.scale is not None
        assert found.scale(2).tolist() == [n / 2] * n


@pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="operations run as one by oneDNN only"
)
@pytest.mark.parametrize("fresh", [False, True])
def test_operations_run_as_one_give_the_same_losses(
    fresh: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float32 what follows runs fused; the losses agree with those in float64, where nothing is."""
    fused: list[int] = []
    original = fuse.Chain.run

    def counted(self: fuse.Chain, *more: Any) -> torch.Tensor | None:
        result = original(self, *more)
        fused.extend([] if result is None else [self.ops[0]])
        return result

    monkeypatch.setattr(fuse.Chain, "run", counted)
    found: dict[torch.dtype, torch.Tensor] = {}
    for dtype in (torch.float64, torch.float32):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = build("resnet20").eval().to(dtype)
            x, y = torch.randn(8, 3, 32, 32).to(dtype), torch.arange(8)
        calibration = Calibration.of(model, batches([(x, y)], model, None))
        groups = [g for g in calibration.structure.inner() if g.name == "layer2.1.conv1"]
        (view,) = views(setting_of(calibration, groups, seed=4))
        trial = greedy_fs._batch_trial(view.start, view.group, calibration, 0, fresh=fresh)
        fused.clear()
        found[dtype] = trial.losses([1, 5], [0, 2, 3])
        assert trial._fused is (dtype == torch.float32)
        # four blocks of two follow, for each unit
        assert len(fused) == (3 * 8 if dtype == torch.float32 else 0)
    torch.testing.assert_close(
        found[torch.float32].double(), found[torch.float64], rtol=1e-4, atol=0
    )
    assert found[torch.float64].std() > 1e-3 * found[torch.float64].mean()


def test_where_nothing_runs_as_one_units_are_tried_together() -> None:
    """Only linear layers follow: no operation is fused, so several units at once are faster."""
    net = NETS["plain"]
    model = net.build().float()
    calibration = Calibration.of(
        model, batches([(x.float(), y) for x, y in net.data(1, 8)], model, None)
    )
    for view in views(setting_of(calibration, seed=4)):
        trial = greedy_fs._batch_trial(view.start, view.group, calibration, 0, fresh=False)
        assert not trial._fused, view.group.name


def test_batches_of_the_pool_are_drawn_not_those_of_the_calibration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net = NETS["plain"]
    model, data, pool = net.build(), net.data(2, 8), net.data(5, 7, seed=42)
    seen: list[int] = []
    original = greedy_fs._batch_trial

    def watched(run, group, source, number, fresh):  # type: ignore[no-untyped-def]
        assert fresh
        assert len(source.batches) == 5
        seen.append(number)
        return original(run, group, source, number, fresh)

    monkeypatch.setattr(greedy_fs, "_batch_trial", watched)
    subprune.prune(
        model, data, method="layer-greedy-fs-fd", keep=0.9, train_data=pool, progress=False
    )
    assert len(set(seen)) > 2


def test_the_scale_stays_in_the_weights_without_reweighting_only() -> None:
    net = NETS["plain"]
    model, data = net.build(), net.data(2, 20)
    result = subprune.prune(
        model, data, method="layer-greedy-fs", budgets=net.keep, fit="keep", progress=False
    )
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
