"""Inputs people bring: each works, or is refused with the true reason."""

from __future__ import annotations

import pytest
import torch

from subprune.data import Batch, folded

# ---- folds ------------------------------------------------------------------------------------------


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
def test_folds_hold_every_sample_once_in_order(sizes: tuple[int, ...], parts: int) -> None:
    given = _ranges(*sizes)
    pieces, folds = folded(given, parts)
    assert _order(pieces) == list(range(sum(sizes)))
    assert all(torch.equal(b.labels, b.inputs[0][0][:, 0]) and b.size == len(b.labels) for b in pieces)
    assert sorted(set(folds)) == list(range(min(parts, sum(sizes))))
    held = [sum(b.size for b, f in zip(pieces, folds, strict=True) if f == k) for k in range(parts)]
    if len(sizes) >= parts:
        assert all(a is b for a, b in zip(pieces, given, strict=True))  # whole batches are not cut
    else:
        assert max(held) - min(held) <= 1


def test_folds_of_unequal_batches_are_balanced_by_samples() -> None:
    _, folds = folded(_ranges(8, 1, 1, 1, 5), 2)
    assert folds == [0, 1, 1, 1, 1]


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
