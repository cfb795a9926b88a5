"""What a layer should give, and from which inputs: the Y and the B of the statistics.

`B` are the layer's inputs in the model pruned so far, `A` the same in the dense model, `W` its
weights. A target is a frozen object that gathers statistics at a place; another idea of what a
layer should give is another class in a file of its own, and a row in `TARGETS`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from subprune.statistics.products import Asymmetric, Layer, Sequential
from subprune.statistics.residual import Residual

if TYPE_CHECKING:
    from subprune.statistics.target import Target

__all__ = ["TARGETS"]

TARGETS: dict[str, Target] = {t.name: t for t in (Layer(), Sequential(), Asymmetric(), Residual())}
"""By the name that stands for them."""
