"""The paper's own way to select, written plainly: projections of activations (Proposition 3.2;
channels: section 4).

The residuals of all columns given the units chosen so far are kept. For every candidate its
residual columns are made orthonormal, all residual columns are projected onto them, and the gain is
the energy of what those projections send into the next layer. The best one is added and projected
out. Nothing is summed up beforehand: every gain costs a pass over all rows. Float64, no cleverness.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Selection:
    order: list[int]
    gains: list[float]
    seconds: float


def select(rows: Tensor, weight: Tensor, units: Tensor, steps: int) -> Selection:
    """The first `steps` units. rows: A [N, d], weight: W [d, m], units: [d]."""
    started = time.perf_counter()
    residual, weight = rows.double(), weight.double()
    scale = residual.norm(dim=0)
    order: list[int] = []
    gains: list[float] = []
    remaining = sorted(set(units.tolist()))
    for _ in range(steps):
        best, gain, basis = -1, -1.0, residual[:, :0]
        for unit in remaining:
            own = _basis(residual[:, units == unit], scale[units == unit])
            projected = own.T @ residual  # coefficients of the projections of all columns
            value = float((projected @ weight).square().sum())
            if value > gain:
                best, gain, basis = unit, value, own
        residual = residual - basis @ (basis.T @ residual)
        remaining.remove(best)
        order.append(best)
        gains.append(gain)
    return Selection(order, gains, time.perf_counter() - started)


def _basis(columns: Tensor, scale: Tensor, tolerance: float = 1e-5) -> Tensor:
    """Orthonormal basis of what the columns span, noise relative to their first length left out."""
    scaled = columns / scale.clamp_min(1e-300)
    q, r = torch.linalg.qr(scaled)
    return q[:, r.diagonal().abs() > tolerance]
