"""Sampling of units in proportion to their sensitivity (Liebenwein et al. 2020).

A unit is sensitive if somewhere, for some input and some output of the layer that reads it, it
carries a large share of the sum. Positive and negative weights, and positive and negative
activations, are looked at separately, so that all terms of a sum have one sign. Everything is computed
on the dense model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import Tensor

from subprune.program.precision import single
from subprune.select.selector import Ranking, Selector, View, order_by
from subprune.statistics.columns import column_map
from subprune.statistics.consumers import consumer_weight
from subprune.statistics.patches import conv_rows
from subprune.statistics.sums import MAX_BYTES
from subprune.statistics.trace import Trace

if TYPE_CHECKING:
    from subprune.statistics.calibration import Calibration
    from subprune.statistics.columns import ColumnMap
    from subprune.statistics.runs import Run
    from subprune.structure.groups import Group

__all__ = [
    "DELTA",
    "Sampling",
    "Sensitivity",
    "distinct",
    "draws_for",
    "max_shares",
    "sampled",
    "sensitivity",
]

DELTA = 1e-12
"""Allowed probability of failure: 1e-12 in the paper's MNIST experiments, 1e-16 on CIFAR-10."""

_EPS = float(torch.finfo(torch.float32).eps)  # sums below this count as infinite


@dataclass(frozen=True)
class Sensitivity:
    """Of the units of one group, and how many sums there are in a layer that reads them."""

    # [n_units] float64, each from 0 to 1, to six digits: draws must not depend on rounding
    units: Tensor
    sums: int  # (patches + 1) · kernel positions, the largest of all readers

    @property
    def probabilities(self) -> Tensor:
        """Chance of each unit to be drawn, [n_units]; uniform if no unit matters."""
        total = float(self.units.sum())
        return self.units / total if total > 0 else torch.full_like(self.units, 1 / len(self.units))

    def draws(self, epsilon: float, delta: float = DELTA) -> float:
        """Samples needed for an error of epsilon, as a whole number."""
        coefficient = float(self.units.sum()) * 2 * 3 * math.log(8 * self.sums / delta)
        return max(1.0, float(math.ceil(3 * (6 + 2 * epsilon) * coefficient / epsilon**2)))

    @staticmethod
    def together(groups: Sequence[Sensitivity]) -> Sensitivity:
        """Groups of as many units, rank by rank: the mean of their sensitivities."""
        falling = [x.units.sort(descending=True).values for x in groups]
        return Sensitivity(torch.stack(falling).mean(dim=0), max(x.sums for x in groups))


def distinct(probabilities: Tensor, draws: float) -> float:
    """Expected number of different units among a number of draws with replacement."""
    return float(_inclusion(probabilities, draws).sum())


def _inclusion(probabilities: Tensor, draws: float) -> Tensor:
    """1 − (1 − p)^m, without cancellation."""
    return -torch.expm1(draws * torch.log1p(-probabilities.clamp(max=1)))


def draws_for(probabilities: Tensor, k: int) -> int:
    """The least number of draws whose expected number of different units, rounded up, is k."""
    support = int((probabilities > 0).sum())
    wanted = min(k, support) - 1 + 1e-9
    high = 1
    while distinct(probabilities, high) <= wanted and high < 2**60:
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if distinct(probabilities, middle) <= wanted else (low, middle)
    return high


@dataclass(frozen=True)
class Sampling(Selector):
    """Units drawn in proportion to their sensitivity."""

    name: ClassVar[str] = "sampling"
    needs_runs: ClassVar[bool] = True
    runs_divide: ClassVar[bool] = True
    needs_statistics: ClassVar[bool] = False

    # By group, from an earlier call with the same model and inputs.
    known: Mapping[str, Sensitivity] = field(default_factory=dict, repr=False, compare=False)

    @property
    def nested(self) -> bool:
        """A smaller budget is a draw of its own."""
        return False

    def knowing(self, calibration: Calibration) -> Sampling:
        """The selector with the sensitivities that were measured on these inputs."""
        known = {
            group.name: calibration.cache[_key(group)]
            for group in calibration.structure.groups
            if _key(group) in calibration.cache
        }
        return replace(self, known=known)

    def rank(self, view: View) -> Ranking:
        """See `sampled`."""
        return sampled(view, self.known.get(view.group.name))


def sampled(view: View, measured: Sensitivity | None = None) -> Ranking:
    """Draw until about k different units are there; too many lose the least probable, too few gain
    the most.

    Without reweighting, weights are multiplied by (times drawn) / (draws · probability). If k is
    not known, units come in the order of their first draw, and that factor is the inverse of the
    chance to be drawn. measured: the group's sensitivities, if they are known.
    """
    if measured is None:
        measured = sensitivity(view.setting.calibration, view.group, view.dense)
    p, n, k = measured.probabilities, view.n_units, view.k
    rng = np.random.default_rng(int(torch.randint(2**62, (1,), generator=view.generator)))
    if k is None:
        waits = torch.from_numpy(rng.exponential(size=n)) / p  # infinite where p is zero
        order = tuple(waits.sort(stable=True).indices.tolist())
        return Ranking(
            order,
            scale=lambda k: _factors(_inclusion(p, draws_for(p, k))) if k < n else torch.ones(n),
        )
    draws = draws_for(p, k)
    counts = torch.from_numpy(rng.multinomial(draws, p.numpy() / p.numpy().sum()))
    by_chance = order_by(p)
    kept = [u for u in by_chance if counts[u] > 0][:k]
    kept += [u for u in by_chance if counts[u] == 0][: k - len(kept)]
    rest = [u for u in by_chance if u not in set(kept)]
    scale = counts.clamp(min=1) * _factors(draws * p)
    return Ranking((*kept, *rest), scale=lambda k: scale if k < n else torch.ones(n))


def _factors(x: Tensor) -> Tensor:
    """1 / x, and 1 for units that are never drawn: they carry nothing."""
    return torch.where(x > 0, 1 / x, 1.0)


# ---- sensitivity ---------------------------------------------------------------------------------


def sensitivity(calibration: Calibration, group: Group, dense: Run) -> Sensitivity:
    """Sensitivities of the group's units in the dense model; computed once.

    dense: the dense run, at or before the first layer that reads the units.
    """
    cache = calibration.cache
    key = _key(group)
    if key not in cache:
        cache[key] = _sensitivity(group, dense)
    known: Sensitivity = cache[key]
    return known


def _key(group: Group) -> str:
    """Under which a calibration keeps them."""
    return f"sensitivity {group.name}"


def _sensitivity(group: Group, dense: Run) -> Sensitivity:
    program = dense.programs[0]
    total = torch.zeros(group.n_units, dtype=torch.float64)
    sums = 1
    for consumer in group.reweightable:
        mapping = column_map(consumer, program, f"layer {consumer.name!r}")
        weights = mapping.weight_blocks(consumer_weight(consumer, dense.tensors))
        inputs: list[Tensor] = []
        trace = Trace([consumer], lambda n, c, x, y, seen=inputs: seen.append(x))  # type: ignore[misc]
        dense.fork().advance(consumer.use.op + 1, trace.watch(outputs=False))
        for batch, x in enumerate(inputs):
            pieces = _rows(x, mapping, dense.counted_rows(consumer, batch))
            places = 0
            for rows in pieces:
                places += len(rows)
                for part, weight, units in zip(
                    single(rows).chunk(mapping.groups, 1),
                    weights,
                    mapping.column_units(),
                    strict=True,
                ):
                    _raise(total, _shares(part, weight), units)
            taps, images = (1, len(x)) if mapping.conv is None else (mapping.conv.taps, len(x))
            sums = max(sums, (places // max(1, images) + 1) * taps)
    most = torch.tensor([float(sums)], dtype=torch.float64)
    dense.ranks.largest([total, most])
    return Sensitivity(total.clamp(max=1).round(decimals=6), int(most))


def _rows(x: Tensor, mapping: ColumnMap, counted: Tensor | None) -> Iterator[Tensor]:
    """The rows [n, d] of a layer's input that count, in pieces."""
    if mapping.conv is None:
        rows = x.reshape(-1, x.shape[-1])
        yield rows if counted is None else rows[counted.reshape(-1)]
        return
    for rows, images, lines in conv_rows(x, mapping.conv):
        yield rows if counted is None else rows[counted[images, :, lines].reshape(-1)]


def _raise(total: Tensor, shares: Tensor, units: Tensor) -> None:
    """Lift the units' maxima to those of their columns."""
    mine = (units >= 0).nonzero().flatten()
    total.scatter_reduce_(0, units[mine], shares[mine], "amax")


def _shares(rows: Tensor, weight: Tensor) -> Tensor:
    """Largest share of each column in any sum, over both signs of activations and weights: [d]
    float64.
    """
    shares = torch.zeros(rows.shape[1], dtype=rows.dtype, device=rows.device)
    sides = [rows.clamp(min=0), (-rows).clamp(min=0)] if bool((rows < 0).any()) else [rows]
    for side in sides:
        for part in (weight.clamp(min=0), (-weight).clamp(min=0)):
            shares = torch.maximum(shares, max_shares(side, part.to(rows)))
    return shares.double().cpu()


def max_shares(rows: Tensor, weight: Tensor) -> Tensor:
    """max over r, o of rows[r, j]·weight[j, o] / Σ_i rows[r, i]·weight[i, o],
    for entries ≥ 0: [d].
    """
    best = rows.new_zeros(rows.shape[1])
    # what fits the caches
    step = max(1, MAX_BYTES // 32 // max(1, rows.shape[1] * rows.element_size()))
    room = torch.empty_like(rows[:step])
    for part in rows.split(step):
        sums = part @ weight  # [R, m]
        inverse = torch.where(sums < _EPS, 0.0, 1 / sums).T.contiguous()
        for scale, column in zip(inverse, weight.T, strict=True):
            top = torch.mul(part, scale[:, None], out=room[: len(part)]).amax(0)
            best = torch.maximum(best, top * column)
    return best
