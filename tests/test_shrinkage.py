"""Statistics of few rows: correlations shrink, what is known stays."""

from __future__ import annotations

import torch
from torch import Tensor

import subprune
from subprune.select.greedy import greedy
from subprune.select.input_change import Greedy
from subprune.statistics.accumulation import Accumulator
from subprune.statistics.shrinkage import FEW, shrunk
from subprune.statistics.statistics import Statistics


def drawn(rows: int, d: int = 24, m: int = 5) -> tuple[Statistics, Tensor]:
    """Independent columns, of which the last is dead, and weights of a target that they explain."""
    random = torch.Generator().manual_seed(0)
    x = torch.randn(rows, d, generator=random, dtype=torch.float64)
    x[:, -1] = 0
    weight = torch.randn(d, m, generator=random, dtype=torch.float64)
    sums = Accumulator(d, 0, torch.arange(d))
    sums.update(x)
    return sums.result_for_weight(weight), weight


def test_of_many_rows_nothing_changes() -> None:
    stats, _ = drawn(FEW * 24)
    assert shrunk(stats) is stats


def test_correlations_shrink_by_one_share_and_energies_stay() -> None:
    stats, weight = drawn(60)
    found = shrunk(stats)
    torch.testing.assert_close(found.gram.diagonal(), stats.gram.diagonal())
    off = ~torch.eye(24, dtype=torch.bool)
    off &= stats.gram != 0
    shares = found.gram[off] / stats.gram[off]
    torch.testing.assert_close(shares, shares[:1].expand_as(shares))
    assert 0 <= float(shares[0]) < 1
    assert not bool(found.gram[-1].any())
    assert not bool(found.cross[-1].any())
    # The same weights make the target, but for the small ridge they are found with.
    torch.testing.assert_close(found.cross, found.gram @ weight, rtol=1e-2, atol=1e-1)
    explained = float((weight * (found.gram @ weight)).sum())
    assert abs(found.energy - explained) < 1e-2 * explained


def test_few_rows_do_not_make_columns_stand_in_for_each_other() -> None:
    stats, _ = drawn(8)
    plain, careful = greedy([stats], 24), greedy([shrunk(stats)], 24)
    assert float(plain.errors[8]) < 1e-9  # eight rows are met by eight columns, whichever
    # Of independent columns, each that goes takes its part with it.
    assert float(careful.errors[8]) > 0.2
    assert float(careful.errors[23]) < 1e-3  # all but the dead one


def test_a_layer_that_sees_few_rows_keeps_its_inputs() -> None:
    """Behind a pooled map every input is one row."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3),
        torch.nn.ReLU(),
        torch.nn.Conv2d(16, 48, 3),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(48, 10),
    )
    x = torch.randn(24, 3, 12, 12)
    quiet = {"progress": False, "time_calls": False}
    kept = [
        subprune.prune(model, x, speedup=1.3, selector=Greedy(shrink=s), **quiet).plan.counts
        for s in (False, True)
    ]
    assert kept[1]["2"] > kept[0]["2"]
