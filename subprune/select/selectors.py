"""The selectors there are, by the name that stands for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from subprune.select.backward import Backward
from subprune.select.contribution import Contribution
from subprune.select.fluctuation import Fluctuation
from subprune.select.forward_selection import GreedyLoss, GreedyPoolLoss
from subprune.select.independence import Independence
from subprune.select.input_change import Greedy
from subprune.select.scores import ActGrad, Random, WeightNorm
from subprune.select.sensitivity import Sampling
from subprune.select.swap import Swap
from subprune.select.wanda import Wanda

if TYPE_CHECKING:
    from subprune.select.selector import Selector

__all__ = ["SELECTORS"]

SELECTORS: dict[str, Selector] = {
    selector.name: selector
    for selector in (
        Greedy(),
        Backward(),
        Swap(),
        GreedyLoss(),
        GreedyPoolLoss(),
        Sampling(),
        ActGrad(),
        WeightNorm(),
        Wanda(),
        Fluctuation(),
        Contribution(),
        Independence(),
        Random(),
    )
}
