"""Work at the width of the kept units gives what work on the masked model gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_refine import QUIET, block, images
from zoo import ZOO

import subprune
from subprune.data.batches import batches
from subprune.loop.narrow import Narrow, narrow
from subprune.loop.tour import switched_off
from subprune.statistics.calibration import Calibration


def test_steps_are_the_same_at_both_widths(monkeypatch: pytest.MonkeyPatch) -> None:
    how: dict[str, Any] = {"budgets": {"first": 4}, "refine": 3, "folds": 4, **QUIET}
    small = subprune.prune(block(), images(128), **how)
    used: list[Narrow] = []

    def whole(start: Any, group: Any, kept: Any) -> Narrow:
        used.append(narrow(start, group, kept))
        return Narrow.whole(group)

    monkeypatch.setattr("subprune.loop.walk.narrow", whole)
    wide = subprune.prune(block(), images(128), **how)
    assert used[0].group.n_units == 4  # what the first call did its work with
    assert small.plan.groups[0].steps == wide.plan.groups[0].steps > 0
    for mine, theirs in zip(small.model.parameters(), wide.model.parameters(), strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-7, atol=1e-9)


NARROW = ("resnet20-B", "bottleneck", "densenet")


@pytest.mark.parametrize("name", [*NARROW, "mobilenet-v3", "resnext", "convnext", "lenet", "gqa"])
def test_there_and_back_is_the_masked_model(name: str) -> None:
    model, example = ZOO[name].build()
    known = Calibration.of(model, batches([example] * 2, model))
    start, narrowed = known.start(), 0
    for group in known.structure.inner():
        kept = tuple(range(0, group.n_units, 2))
        (masked,) = switched_off(group, kept, [start.tensors])
        start.tensors = masked
        small = narrow(start, group, kept)
        assert small.numbers(kept) == tuple(range(len(kept))) or small.kept != kept
        narrowed += small.kept == kept
        cut = small.tensors(masked)
        again = small.widened({n: x.clone() for n, x in cut.items()}, cut, masked)
        assert all(torch.equal(again[n], masked[n]) for n in masked)
        untouched = small.widened(cut, cut, masked)
        assert all(untouched[n] is masked[n] for n in masked)
    if name in NARROW:  # others have operations that know how many channels there are
        assert narrowed > 0
