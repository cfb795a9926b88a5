"""Cut = mask on random networks: every group of each alone, and all of them together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
import torch
from random_nets import Generator, random_net
from zoo import some_units

from subprune.cutting.surgery import cut, prove
from subprune.errors import BudgetError
from subprune.program.record import as_inputs, record
from subprune.structure.analysis import find_groups
from subprune.structure.cost import CostModel
from subprune.structure.grouping import analyse


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tensors this small are slowed down by threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


NETS, CHUNK = 520, 52
TOLERANCE = 1e-9  # in double precision: nothing is left to rounding


def check(seed: int) -> tuple[Counter[str], int]:
    """One net; returns what it is made of and how many groups it had."""
    model, x, used = random_net(seed)
    inputs = as_inputs(x)
    # A run on the real, tiny tensors is faster than one on fake ones; both must find the same.
    structure = (
        find_groups(model, x) if seed % 10 == 0 else analyse(record(model, inputs, fake=False))
    )
    chosen = some_units(structure, seed)
    for name, kept in chosen.items():
        prove(model, structure, {name: kept}, inputs, TOLERANCE)
    small = prove(model, structure, chosen, inputs, TOLERANCE)
    cost = CostModel(model, structure)
    assert cost.params_of(chosen) == sum(p.numel() for p in small.parameters())
    return used, len(chosen)


@pytest.mark.parametrize("first", range(0, NETS, CHUNK))
def test_cut_equals_mask(first: int) -> None:
    groups = 0
    for seed in range(first, first + CHUNK):
        try:
            groups += check(seed)[1]
        except Exception as error:
            raise AssertionError(f"random_net({seed}): {error}") from error
    assert groups > CHUNK  # there is something to cut in most of them


def test_parts_that_must_keep_a_unit_are_named() -> None:
    """Shuffles and concatenations can leave a layer with some of a group's units only."""
    model, x, _ = random_net(349)
    group = find_groups(model, x)["0"]
    assert group.parts == (frozenset({0, 1}),)
    assert not group.inner
    with pytest.raises(BudgetError, match=r"at least one of the units \[0, 1\] must stay"):
        cut(model, group, [2, 3])


def test_every_operation_is_drawn_often() -> None:
    drawn: Counter[str] = Counter()
    for seed in range(NETS):
        drawn += random_net(seed)[2]
    rare = {kind: drawn[kind] for kind in (*Generator.LAYERS, *Generator.HEADS) if drawn[kind] < 20}
    assert not rare
    assert NETS >= 500


@pytest.mark.parametrize("seed", range(0, 60, 6))
def test_fake_and_real_recordings_agree(seed: int) -> None:
    model, x, _ = random_net(seed)
    fake, real = find_groups(model, x), analyse(record(model, as_inputs(x), fake=False))
    assert [(g.name, g.kind, g.n_units) for g in fake] == [
        (g.name, g.kind, g.n_units) for g in real
    ]
    assert fake.refused == real.refused
    assert [op.name for op in fake.program.ops] == [op.name for op in real.program.ops]
