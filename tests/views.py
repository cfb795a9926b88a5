"""Views of the groups of a dense model, as selectors get them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from subprune.loop.recipe import Recipe
from subprune.loop.tour import Tour
from subprune.methods import find_method
from subprune.select.selector import Setting, View
from subprune.statistics.calibration import Calibration
from subprune.statistics.place import Place, generator
from subprune.statistics.products import Layer
from subprune.statistics.runs import Run
from subprune.statistics.statistics import Statistics
from subprune.statistics.target import Target
from subprune.structure.groups import Group, in_order

__all__ = ["recipe_of", "setting_of", "statistics_at", "views"]


def setting_of(
    calibration: Calibration,
    groups: Sequence[Group] | None = None,
    seed: int = 0,
    pool: Calibration | None = None,
) -> Setting:
    """All groups that are pruned by default, or those given."""
    chosen = calibration.structure.inner() if groups is None else groups
    return Setting(calibration, tuple(chosen), seed, pool)


def recipe_of(method: str, *, plain: bool = True) -> Recipe:
    """A method's own parts; `plain`: with a fit that holds nothing out."""
    row = find_method(method)
    return Recipe(row.target, row.selector, row.fit.plain() if plain else row.fit, name=row.name)


def views(setting: Setting, target: Target | None = None) -> Iterator[View]:
    """In forward order, on the dense model; each good at any time."""
    tour = Tour(setting, setting.groups, pruned=False)
    for group in in_order(setting.groups):
        place = tour.go_to(group)
        yield View(
            group=group,
            setting=setting,
            generator=generator(setting.seed, group.name),
            statistics=(target or Layer()).gather(place).statistics,
            place=place,
        )


def statistics_at(group: Group, run: Run) -> tuple[Statistics, ...]:
    """Of a group that a run of the dense model stands before."""
    return Layer().gather(Place(group=group, current=run, dense=run)).statistics
