"""Random least-squares problems of every awkward kind, for the tests of the numerical core."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from reference import Problem
from torch import Tensor

from subprune.statistics.accumulation import Accumulator
from subprune.statistics.folds import FoldedStatistics
from subprune.statistics.statistics import Statistics

FOLDS = 3


@dataclass(frozen=True, kw_only=True)
class Case:
    """What a problem is made of; two equal ones are the same problem."""

    seed: int
    rows: int
    units: int
    per_unit: int
    outputs: int
    rank: int  # of the columns before they are spoilt; 0: full
    unitless: int  # columns that belong to no unit
    inside: bool  # whether the target is a combination of the columns
    mean: float  # of all columns: what a bias makes up for
    inputs: int  # exponent of ten of the columns
    targets: int  # of the targets
    spread: int  # columns differ by factors up to ten to this
    copies: int  # columns that are others again, or their negatives
    zeros: int  # that are zero
    parallel: int  # that are nearly others,
    apart: int  # up to ten to minus this
    double: bool  # precision of the products
    ridge: float
    bias: bool
    kept: float  # share of the units

    @property
    def d(self) -> int:
        return self.units * self.per_unit + self.unitless

    @property
    def k(self) -> int:
        return round(self.kept * self.units)


CASES = st.builds(
    Case,
    seed=st.integers(0, 2**31),
    rows=st.integers(1, 40),
    units=st.integers(1, 8),
    per_unit=st.sampled_from([1, 1, 2, 4]),
    outputs=st.integers(1, 6),
    rank=st.integers(0, 5),
    unitless=st.integers(0, 2),
    inside=st.booleans(),
    mean=st.sampled_from([0.0, 0.0, 1.0, 30.0]),
    inputs=st.integers(-30, 30),
    targets=st.integers(-30, 30),
    spread=st.sampled_from([0, 0, 3, 12]),
    copies=st.integers(0, 3),
    zeros=st.integers(0, 3),
    parallel=st.integers(0, 3),
    apart=st.integers(1, 16),
    double=st.sampled_from([True, True, False]),
    ridge=st.sampled_from([0.0, 0.0, 1e-12, 1e-6, 1e-3, 1.0, 1e6, float("inf")]),
    bias=st.booleans(),
    kept=st.sampled_from([0.0, 0.3, 0.5, 0.8, 1.0]),
)


def problem(case: Case) -> Problem:
    """B [n, d] and Y [n, m] in the precision in which they are multiplied."""
    draw = torch.Generator().manual_seed(case.seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    def columns(count: int) -> Tensor:
        return torch.randint(case.d, (count,), generator=draw)

    n, d = case.rows, case.d
    rows = normal(n, case.rank) @ normal(case.rank, d) if case.rank else normal(n, d)
    rows += case.mean
    for i, other in enumerate(columns(case.copies)):
        rows[:, columns(1)] = (-1) ** i * rows[:, [other]]
    for other in columns(case.parallel):
        rows[:, columns(1)] = rows[:, [other]] + 10.0**-case.apart * normal(n, 1)
    rows[:, columns(case.zeros)] = 0.0
    targets = rows @ normal(d, case.outputs) if case.inside else normal(n, case.outputs)
    spread = case.spread if case.double else min(3, case.spread)
    rows = rows * 10.0 ** (spread * (torch.rand(d, generator=draw, dtype=torch.float64) - 0.5))
    kind = torch.float64 if case.double else torch.float32
    units = torch.arange(case.units).repeat_interleave(case.per_unit)
    return Problem(
        (rows * 10.0**case.inputs).to(kind),
        (targets * 10.0**case.targets).to(kind),
        torch.cat([units, units.new_full((case.unitless,), -1)]),
    )


def folded(p: Problem) -> FoldedStatistics:
    """The statistics in folds; every fold has a row, some of them perhaps the same one."""
    parts = []
    for fold in range(FOLDS):
        own = slice(fold, None, FOLDS) if len(p.B) >= FOLDS else slice(None)
        part = Accumulator(p.B.shape[1], p.Y.shape[1], p.units)
        part.update(p.B[own], p.Y[own])
        parts.append(part)
    return FoldedStatistics(parts)


def exact(p: Problem) -> Problem:
    """The same numbers in float64."""
    return Problem(p.B.double(), p.Y.double(), p.units)


def noise(case: Case, statistics: Statistics) -> float:
    """How far relative errors may be from the truth, where columns are well apart."""
    return 1e-7 if case.double else 64 * statistics.precision * case.rows
