"""What a layer's output becomes where it lands: ``s = a·z + o``, with z the product alone.

a: [outputs], of the norms on the way; o: everything else that is added on the way, the layer's own
bias, what the norms shift by, and the shortcut, which differs from row to row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from subprune.structure.landing import Scaling, Sum

if TYPE_CHECKING:
    from subprune.statistics.runs import Run
    from subprune.statistics.spots import Spots
    from subprune.structure.landing import Landing

__all__ = ["factors", "felt", "felt_scale", "offset", "spread"]


def _factor(step: Scaling, tensors: Mapping[str, Tensor]) -> Tensor:
    """What a norm multiplies by: [outputs] float64."""
    factor = (tensors[step.variance].double() + step.epsilon).rsqrt()
    return factor if step.weight is None else factor * tensors[step.weight].double()


def factors(
    landing: Landing, tensors: Mapping[str, Tensor], steps: int | None = None
) -> Tensor | None:
    """What the first norms on the way multiply by, together: [outputs] float64; None: by nothing.

    steps: how many of the steps are taken; None: all.
    """
    product: Tensor | None = None
    for step in landing.steps[:steps]:
        if isinstance(step, Scaling):
            factor = _factor(step, tensors)
            product = factor if product is None else product * factor
    return product


def spread(vector: Tensor, landing: Landing, rank: int) -> Tensor:
    """A number for each output [outputs], in the shape that fits the landing's values."""
    dim = landing.dim % rank
    return vector.reshape(*[1] * dim, -1, *[1] * (rank - dim - 1))


def offset(
    landing: Landing,
    run: Run,
    batch: int,
    tensors: Mapping[str, Tensor],
    like: Tensor,
    spots: Spots | None = None,
) -> Tensor:
    """What is added to the product on the way, in a run that stands before the layer.

    tensors: of the model asked about; the shortcut is the run's. like: a value of the landing.
    spots: the places that are looked at; None: all.
    """
    total = torch.zeros((), dtype=like.dtype, device=like.device)

    def shaped(vector: Tensor) -> Tensor:
        return spread(vector, landing, like.ndim).to(like)

    if landing.bias is not None:
        total = shaped(tensors[landing.bias])
    for step in landing.steps:
        if isinstance(step, Sum):
            value = run.ahead(batch, step.needs, step.value)
            total = total + (value if spots is None else spots.at(value)).to(like)
            continue
        factor = _factor(step, tensors)
        shift = -tensors[step.mean].double() * factor
        shift = shift if step.bias is None else shift + tensors[step.bias].double()
        total = total * shaped(factor) + shaped(shift)
    return total


def felt(x: Tensor, landing: Landing, metric: Mapping[int, Tensor] | None) -> Tensor:
    """Values, or differences of values, of a landing, as the output feels them: √w·x."""
    weights = None if metric is None else metric.get(landing.value)
    return x if weights is None else x * spread(weights, landing, x.ndim).to(x)


def felt_scale(
    landing: Landing | None, tensors: Mapping[str, Tensor], metric: Mapping[int, Tensor] | None
) -> Tensor | None:
    """What an error of each output of the product counts with: [outputs] float64; None: with 1."""
    if landing is None:
        return None
    factor = factors(landing, tensors)
    weights = None if metric is None else metric.get(landing.value)
    if factor is None or weights is None:
        return weights if factor is None else factor
    return factor * weights.to(factor)
