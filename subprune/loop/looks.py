"""One look at all groups of the dense model, in one forward pass; and what a group by itself does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from subprune.cutting.masking import keep_mask, overrides
from subprune.errors import OptionError
from subprune.fit.fit import Work
from subprune.loop.tour import Tour, switched_off
from subprune.loop.visits import Tick, Visit, visits
from subprune.messages import Message
from subprune.select.greedy import follow

if TYPE_CHECKING:
    from subprune.fit.fit import Fit, Tensors
    from subprune.loop.recipe import Recipe
    from subprune.program.program import Override, Program
    from subprune.select.keep_order import KeepOrder
    from subprune.select.selector import Setting
    from subprune.structure.groups import Group

__all__ = ["alone", "comparable_scores", "curves", "looks", "work_of"]


def looks(
    setting: Setting,
    recipe: Recipe,
    *,
    groups: Sequence[Group] | None = None,
    clip: float | None = None,
    landed: bool | None = None,
    statistics: bool | None = None,
    tick: Tick = lambda group: None,
) -> Iterator[Visit]:
    """Visits to groups of the dense model, none of which is decided; None: to all."""
    chosen = setting.groups if groups is None else tuple(groups)
    dense = recipe.on_dense(clip, landed)
    tour = Tour(setting, chosen, pruned=False)
    return visits(tour, chosen, dense, setting, statistics=statistics, tick=tick)


def curves(
    setting: Setting,
    recipe: Recipe,
    *,
    clip: float | None = None,
    landed: bool | None = None,
    tick: Tick = lambda group: None,
) -> dict[str, KeepOrder]:
    """Keep orders and error curves; those of selectors without a curve are computed."""
    orders = {}
    for visit in looks(setting, recipe, clip=clip, landed=landed, statistics=True, tick=tick):
        orders[visit.group.name] = with_errors(visit)
        del visit
    return orders


def with_errors(visit: Visit) -> KeepOrder:
    """A ranking with its error curve, computed from the statistics if the selector gave none."""
    if visit.ranking.curve is not None:
        return visit.ranking.curve
    return follow(visit.statistics, visit.group.n_units, visit.ranking.order)


def comparable_scores(
    setting: Setting, recipe: Recipe, *, tick: Tick = lambda group: None
) -> dict[str, Tensor]:
    """Scores of all units that can be compared between groups."""
    without = OptionError(
        Message(
            "{allocate=} needs scores that can be compared between layers, and {who} has none; use "
            "another rule, or one of the methods act-grad, weight-norm, flap and random",
            allocate="score",
            who=recipe.who,
        )
    )
    if not recipe.selector.comparable:
        raise without
    scores: dict[str, Tensor] = {}
    needed = recipe.selector.needs_statistics
    for visit in looks(setting, recipe, statistics=needed, tick=tick):
        if visit.ranking.scores is None:  # which a user's function shows only now
            raise without
        scores[visit.group.name] = visit.ranking.scores
    return scores


def work_of(visit: Visit, kept: tuple[int, ...]) -> Work:
    """The layers that read the units that stay."""
    scale = visit.ranking.scale
    return Work(
        group=visit.group,
        kept=kept,
        gathered=visit.gathered,
        scale=None if scale is None else scale(len(kept)),
    )


def alone(
    visit: Visit, k: int, fit: Fit, tensors: Tensors, program: Program
) -> tuple[Tensors, dict[int, Override]]:
    """The dense model with only this group pruned, to k units: its tensors and overrides."""
    kept = visit.group.choice(visit.ranking.order, k)
    new = dict(tensors)
    fit.apply(work_of(visit, kept), [new])
    (pruned,) = switched_off(visit.group, kept, [new])
    return pruned, overrides(program, [(visit.group, keep_mask(visit.group, kept))])
