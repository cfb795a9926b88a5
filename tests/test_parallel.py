"""Pieces of work on several cores give what they give on one."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch
from views import statistics_at

import subprune
from subprune.data.batches import batches
from subprune.program import parallel
from subprune.statistics.calibration import Calibration
from subprune.structure.groups import in_order
from subprune.zoo.datasets import load
from subprune.zoo.models import build, shipped_lenet


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
class TestEach:
    def test_order_and_threads(self) -> None:
        found = parallel.each(
            lambda i: (i, torch.get_num_threads(), threading.current_thread().name), range(20)
        )
        assert [i for i, _, _ in found] == list(range(20))
        assert {threads for _, threads, _ in found} == {1}
        assert all(name.startswith("subprune") for _, _, name in found)
        assert torch.get_num_threads() == 2

    def test_not_worthwhile_runs_here(self) -> None:
        here = threading.current_thread().name
        assert (
            parallel.each(lambda _: threading.current_thread().name, range(3), False) == [here] * 3
        )

    def test_work_inside_work_does_not_wait_for_itself(self) -> None:
        found = parallel.each(lambda i: sum(parallel.each(lambda j: i * j, range(5))), range(8))
        assert found == [10 * i for i in range(8)]

    def test_error_after_all_have_ended(self) -> None:
        ended = []

        def work(i: int) -> None:
            if i == 1:
                raise ValueError("one")
            ended.append(i)

        with pytest.raises(ValueError, match="one"):
            parallel.each(work, range(4))
        assert sorted(ended) == [0, 2, 3]

    @pytest.mark.parametrize("grad", [True, False])
    def test_gradient_mode_of_the_caller(self, grad: bool) -> None:
        with torch.set_grad_enabled(grad):
            assert parallel.each(lambda _: torch.is_grad_enabled(), range(3)) == [grad] * 3
            assert parallel.later(torch.is_grad_enabled).result() is grad


@pytest.mark.parametrize("threads", [1, 2])
def test_later(threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert parallel.later(lambda: 7).result() == 7
        failed = parallel.later(lambda: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            failed.result()
    finally:
        torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_one_thread_is_given_back() -> None:
    with parallel.one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2
    with pytest.raises(ZeroDivisionError), parallel.one_thread():
        torch.get_num_threads() / 0
    assert torch.get_num_threads() == 2
    with parallel.one_thread(False):
        assert torch.get_num_threads() == 2


@pytest.mark.parametrize("method", ["layer-in-change", "asym-in-change"])
def test_same_network_on_one_core_and_on_two(method: str) -> None:
    images = load("mnist-sample", "train").inputs(torch.arange(128))
    found, before = [], torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            model = shipped_lenet()[0]
            found.append(
                subprune.prune(
                    model, images, compression=4, method=method, time_calls=False, progress=False
                )
            )
    finally:
        torch.set_num_threads(before)
    one, two = found
    assert one.plan.kept == two.plan.kept
    for a, b in zip(one.model.parameters(), two.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_fused_runs_give_the_same_statistics() -> None:
    torch.manual_seed(0)
    model = build("resnet20").eval()
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.normal_(module.running_mean, std=0.3)
            torch.nn.init.uniform_(module.running_var, 0.5, 2.0)
    calibration = Calibration.of(model, batches(torch.randn(6, 3, 32, 32), model))
    group = in_order(calibration.structure.inner())[-2]
    found = []
    for fuse in ({}, None):
        run = calibration.start()
        run.fuse = fuse
        run.advance(min(c.use.op for c in group.consumers))
        found.append(statistics_at(group, run)[0])
    fused, plain = found
    torch.testing.assert_close(
        fused.gram, plain.gram, rtol=1e-4, atol=1e-4 * float(plain.gram.diagonal().max())
    )
    torch.testing.assert_close(
        fused.cross, plain.cross, rtol=1e-4, atol=1e-4 * float(plain.cross.abs().max())
    )
