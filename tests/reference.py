"""Slow, obvious versions of everything, from raw activation matrices in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch
from torch import Tensor

from subprune.statistics.accumulation import Accumulator
from subprune.statistics.statistics import Statistics

SetFunction = Callable[[Iterable[int]], float]


@dataclass(frozen=True)
class Problem:
    """B [n, d]: inputs of the consumer; Y [n, m]: what it should give; units [d]."""

    B: Tensor
    Y: Tensor
    units: Tensor

    @property
    def n_units(self) -> int:
        return int(self.units.max()) + 1

    @property
    def energy(self) -> float:
        return float(self.Y.square().sum())

    def statistics(self) -> Statistics:
        accumulator = Accumulator(self.B.shape[1], self.Y.shape[1], self.units)
        accumulator.update(self.B, self.Y)
        return accumulator.result()


def random_problem(
    seed: int,
    *,
    rows: int = 60,
    units: int = 7,
    per_unit: int = 1,
    outputs: int = 4,
    rank: int | None = None,
    asymmetric: bool = False,
) -> Problem:
    """Correlated columns; rank: of B, full if None; symmetric: Y = B·W, else Y = A·W for A near B."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    d = units * per_unit
    B = normal(rows, rank) @ normal(rank, d) if rank else normal(rows, d) + 0.7 * normal(rows, 1)
    A = B + 0.3 * normal(rows, d) if asymmetric else B
    W = normal(d, outputs) * (0.3 + torch.rand(d, 1, generator=generator, dtype=torch.float64))
    return Problem(B, A @ W, torch.arange(units).repeat_interleave(per_unit))


def columns(p: Problem, kept: Iterable[int]) -> list[int]:
    kept = set(kept)
    return [j for j, unit in enumerate(p.units.tolist()) if unit == -1 or unit in kept]


def weights(p: Problem, kept: Iterable[int]) -> Tensor:
    """Minimum-norm least squares on the kept columns; zero rows elsewhere: [d, m]."""
    chosen = columns(p, kept)
    new = torch.zeros(p.B.shape[1], p.Y.shape[1], dtype=torch.float64)
    if chosen:
        B, Y = p.B[:, chosen].numpy(), p.Y.numpy()
        new[chosen] = torch.from_numpy(np.linalg.lstsq(B, Y, rcond=1e-10)[0])
    return new


def residual(p: Problem, kept: Iterable[int]) -> float:
    return float((p.Y - p.B @ weights(p, kept)).square().sum())


def value(p: Problem, kept: Iterable[int]) -> float:
    return p.energy - residual(p, kept)


def greedy(problems: list[Problem], n_units: int, k: int) -> tuple[list[int], list[float]]:
    """Try every unit at every step; ties within 1e-9 go to the lowest."""
    order: list[int] = []
    gains: list[float] = []
    for _ in range(k):
        before = sum(value(p, order) for p in problems)
        rest = [i for i in range(n_units) if i not in order]
        each = [sum(value(p, [*order, i]) for p in problems) - before for i in rest]
        best = max(each)
        pick = next(
            i for i, gain in zip(rest, each, strict=True) if gain >= best - 1e-9 * abs(best)
        )
        order.append(pick)
        gains.append(each[rest.index(pick)])
    return order, gains


def optimum(f: SetFunction, n_units: int, k: int) -> float:
    """The largest value of any k units, by trying them all (f does not decrease)."""
    return max(f(chosen) for chosen in combinations(range(n_units), k))


def submodularity_ratio(
    f: SetFunction, n_units: int, U: Iterable[int], k: int, tiny: float
) -> float:
    """γ_{U,k} of Definition 2.1 by brute force: min over disjoint L ⊆ U, |S| ≤ k of Σ F(i|L) /
    F(S|L).
    """
    cache: dict[frozenset[int], float] = {}

    def F(chosen: Iterable[int]) -> float:
        key = frozenset(chosen)
        if key not in cache:
            cache[key] = f(sorted(key))
        return cache[key]

    U, ratio = sorted(U), 1.0
    for L in (set(c) for size in range(len(U) + 1) for c in combinations(U, size)):
        rest = [i for i in range(n_units) if i not in L]
        single = {i: F(L | {i}) - F(L) for i in rest}
        for S in (c for size in range(1, min(k, len(rest)) + 1) for c in combinations(rest, size)):
            joint = F(L | set(S)) - F(L)
            if joint > tiny:
                ratio = min(ratio, sum(single[i] for i in S) / joint)
    return ratio
