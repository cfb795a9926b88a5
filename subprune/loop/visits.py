"""One visit to every group, in forward order: go there, gather, rank. The only such loop.

Where a target looks at the dense model alone, nothing depends on earlier decisions: the runs go on
while earlier groups are still being ranked on other cores.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from subprune.errors import OptionError
from subprune.program import parallel
from subprune.select.selector import Ranking, Setting, View
from subprune.statistics.place import Gathered, generator
from subprune.structure.groups import Group, in_order

if TYPE_CHECKING:
    from subprune.loop.recipe import Recipe
    from subprune.loop.tour import Tour
    from subprune.program.ranks import Ranks
    from subprune.statistics.place import Place
    from subprune.statistics.runs import Run
    from subprune.statistics.statistics import Statistics

__all__ = ["Tick", "Visit", "visits"]

Tick = Callable[[Group], None]
"""Called when a group's turn comes."""

_PENDING = 256 * 2**20  # bytes of statistics that may wait for their selection


@dataclass(frozen=True, kw_only=True)
class Visit:
    """One group, ranked; everything it takes to decide it."""

    group: Group
    ranking: Ranking
    gathered: Gathered
    statistics: tuple[Statistics, ...]  # what was ranked by: those gathered, as the fit sees them
    place: Place | None  # where it was gathered, if more may be gathered there
    start: Run | None  # the run before anything saw how many units there are, if anything does
    seconds: float  # for going there, gathering and ranking


def visits(
    tour: Tour,
    groups: Sequence[Group],
    recipe: Recipe,
    setting: Setting,
    *,
    counts: Mapping[str, int] | None = None,
    statistics: bool | None = None,
    tick: Tick = lambda group: None,
) -> Iterator[Visit]:
    """The groups in forward order. Each must be decided, or left, before the next is asked for.

    counts: how many units will be kept, where that is known already. statistics: whether they are
    gathered; None: where the recipe needs them.
    """
    recipe.selector.check(setting, recipe.who)
    ahead, ranks = not recipe.target.sees_pruned, setting.calibration.ranks
    gather = recipe.needs_statistics if statistics is None else statistics
    waiting: deque[_Pending] = deque()

    def next_visit() -> Visit:
        _share_out(waiting, ranks)
        return waiting.popleft().visit()

    for group in in_order(groups):
        while waiting and _shares_reader(group, [w.group for w in waiting]):
            yield next_visit()
        tick(group)
        k = None if counts is None else counts[group.name]
        waiting.append(_begun(tour, group, recipe, setting, k, gather, waiting if ahead else None))
        if ranks.count > 1:  # all that wait are ranked at once, by a rank each
            if ahead and _fits([w.gathered for w in waiting], ranks.count):
                continue
            while waiting:
                yield next_visit()
            continue
        while waiting and not (ahead and _room(waiting)):
            yield next_visit()
    while waiting:
        yield next_visit()


@dataclass(frozen=True, kw_only=True)
class _Pending:
    """A group whose ranking was begun."""

    group: Group
    gathered: Gathered
    statistics: tuple[Statistics, ...]
    place: Place | None
    start: Run | None
    ranking: Future[tuple[Ranking, float]]
    rank: Callable[[], tuple[Ranking, float]]  # which makes it, where it was put off
    seconds: float

    def visit(self) -> Visit:
        """Wait for the ranking."""
        ranking, seconds = self.ranking.result()
        return Visit(
            group=self.group,
            ranking=ranking,
            gathered=self.gathered,
            statistics=self.statistics,
            place=self.place,
            start=self.start,
            seconds=self.seconds + seconds,
        )


def _begun(
    tour: Tour,
    group: Group,
    recipe: Recipe,
    setting: Setting,
    k: int | None,
    gather: bool,
    others: Sequence[_Pending] | None,
) -> _Pending:
    """Go to a group, gather what is needed, and begin to rank it.

    others: those that are being ranked meanwhile; None where the ranking cannot be put off.
    """
    started = time.perf_counter()
    place = tour.go_to(group)
    gathered = recipe.target.gather(place) if gather else Gathered()
    selector, statistics = recipe.selector, recipe.fit.seen(group, gathered)
    view = View(
        group=group,
        setting=setting,
        generator=generator(setting.seed, group.name),
        statistics=statistics,
        k=k,
        place=place if selector.needs_runs else None,
    )

    def rank() -> tuple[Ranking, float]:
        begun = time.perf_counter()
        ranking = selector.rank(view)
        if k is None and len(ranking.order) < group.n_units:
            raise OptionError(
                f"{recipe.who} ranked {len(ranking.order)} of {group.n_units} units of group "
                f"{group.name!r}; where view.k is None, a method must rank all of them"
            )
        return ranking, time.perf_counter() - begun

    seconds = time.perf_counter() - started
    put_off = others is not None and not selector.needs_runs
    future: Future[tuple[Ranking, float]]
    if setting.calibration.ranks.count > 1 and not selector.needs_runs:
        future = Future()  # one of the ranks makes it
    elif put_off and _fits([gathered, *(w.gathered for w in others or ())]):
        future = parallel.later(rank)
    else:
        future = Future()
        future.set_result(rank())
    return _Pending(
        group=group,
        gathered=gathered,
        statistics=statistics,
        place=place if gathered.aims else None,
        start=place.start,
        ranking=future,
        rank=rank,
        seconds=seconds,
    )


def _share_out(waiting: Sequence[_Pending], ranks: Ranks) -> None:
    """Let every rank make the rankings of some of the groups that wait for theirs, for all."""
    missing = [w for w in waiting if not w.ranking.done() and ranks.count > 1]
    if not missing:
        return

    def made(pending: _Pending) -> tuple[Any, ...]:
        ranking, seconds = pending.rank()
        return (*ranking.to_plain(pending.group.name), seconds)

    for pending, (*plain, seconds) in zip(missing, ranks.each(made, missing), strict=True):
        pending.ranking.set_result((Ranking.of_plain(*plain), seconds))


def _room(waiting: Sequence[_Pending]) -> bool:
    """Whether one more group may be gathered while these are still being ranked."""
    return _fits([w.gathered for w in waiting])


def _fits(gathered: Sequence[Gathered], workers: int | None = None) -> bool:
    """Whether statistics as large as the largest of these fit into memory with them, and a thread is free to
    rank by them; None: as many as there are threads.
    """
    sizes = [s.gram.nbytes for one in gathered for s in one.statistics]
    few = len(gathered) < (torch.get_num_threads() if workers is None else workers)
    return few and sum(sizes) + max(sizes, default=_PENDING) <= _PENDING


def _shares_reader(group: Group, others: Sequence[Group]) -> bool:
    """Whether a layer reads this group and one of the others.

    Then the decision of one changes the statistics of the other.
    """
    readers = {c.use.op for c in group.consumers}
    return any(c.use.op in readers for other in others for c in other.consumers)
