"""Rankings of groups on the dense model, layer after layer in one forward pass.

Where a ranking needs nothing but a layer's statistics, layers are ranked on other cores while the
pass goes on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from subprune.errors import OptionError
from subprune.messages import Message
from subprune.program import parallel
from subprune.select.greedy import KeepOrder, follow
from subprune.select.registry import METHODS, Method, Ranker, Ranking, Setting
from subprune.select.sensitivity import Sensitivity, sensitivity
from subprune.statistics.calibrate import Calibration, Passage
from subprune.structure import Group

__all__ = [
    "Tick",
    "begin",
    "comparable_scores",
    "curves",
    "gather",
    "in_order",
    "rankers",
    "ranking_of",
    "rankings",
    "room",
    "sensitivities",
    "with_errors",
]

Tick = Callable[[str, Group], None]
Found = TypeVar("Found")


def in_order(groups: Sequence[Group]) -> list[Group]:
    """Forward order: by the first layer that reads the units."""
    return sorted(groups, key=lambda g: (min(c.use.op for c in g.reweightable), g.first_op))


def rankers(
    calibration: Calibration,
    groups: Sequence[Group],
    method: Method,
    *,
    tick: Tick = lambda stage, group: None,
    **choices: Any,
) -> Iterator[Ranker]:
    """The groups in forward order, each ready to be ranked on the dense model, in one forward pass.

    A ranker is good until the next one is asked for.
    """
    setting = Setting(calibration, tuple(groups), **choices)
    method.check(setting)
    dense = calibration.start()
    passage = Passage(dense, groups)
    for group in in_order(groups):
        tick("curve", group)
        mark = passage.go_to(group)
        yield Ranker(group, "layer", dense, dense, setting, start=mark)


def rankings(
    calibration: Calibration, groups: Sequence[Group], method: Method, **options: Any
) -> dict[str, Ranking]:
    """Rankings of all groups on the dense model; options as for `rankers`."""

    def finish(ranker: Ranker, method: Method) -> Ranking:
        return ranking_of(ranker, method.order(ranker))

    return dict(_one_by_one(rankers(calibration, groups, method, **options), method, finish))


def curves(
    calibration: Calibration, groups: Sequence[Group], method: Method, **options: Any
) -> dict[str, KeepOrder]:
    """Keep orders and error curves of all groups on the dense model; options as for `rankers`."""

    def finish(ranker: Ranker, method: Method) -> KeepOrder:
        return with_errors(ranker, method.order(ranker))

    return dict(_one_by_one(rankers(calibration, groups, method, **options), method, finish))


def comparable_scores(
    calibration: Calibration, groups: Sequence[Group], method: Method, **options: Any
) -> dict[str, Tensor]:
    """Scores of all units on the dense model, comparable between groups; options as for `rankers`."""
    found: dict[str, Tensor] = {}
    for name, ranking in rankings(calibration, groups, method, **options).items():
        if ranking.scores is None:
            able = ", ".join(m.name for m in METHODS.values() if m.allocate == "score")
            raise OptionError(
                Message(
                    "{allocate=} needs scores that can be compared between layers, and {method=} "
                    "has none; use another rule, or one of {able}",
                    allocate="score",
                    method=method.name,
                    able=able,
                )
            )
        found[name] = ranking.scores
    return found


def sensitivities(
    calibration: Calibration, groups: Sequence[Group], method: Method, **options: Any
) -> dict[str, Sensitivity]:
    """Sensitivities of all units on the dense model; options as for `rankers`."""
    return {r.group.name: sensitivity(r) for r in rankers(calibration, groups, method, **options)}


def with_errors(ranker: Ranker, ranked: KeepOrder | Ranking | Sequence[int]) -> KeepOrder:
    """A ranking with its error curve, computed from the statistics if the method gave none."""
    if isinstance(ranked, KeepOrder):
        return ranked
    return follow(ranker.statistics, ranker.n_units, ranking_of(ranker, ranked).order)


def ranking_of(ranker: Ranker, ranked: KeepOrder | Ranking | Sequence[int]) -> Ranking:
    """Whatever a method returned as a checked ranking."""
    if isinstance(ranked, Ranking):
        return replace(ranked, order=checked_order(ranker, ranked.order))
    return Ranking(checked_order(ranker, ranked.order if isinstance(ranked, KeepOrder) else ranked))


def checked_order(ranker: Ranker, ranked: Sequence[int]) -> tuple[int, ...]:
    """The ranking as unit numbers; one that is no ranking is refused."""
    order = tuple(int(u) for u in ranked)
    if len(set(order)) != len(order) or any(not 0 <= u < ranker.n_units for u in order):
        raise OptionError(
            f"the method's ranking of group {ranker.group.name!r} must hold different numbers from 0 to "
            f"{ranker.n_units - 1}, got {order[:8]}{'…' if len(order) > 8 else ''}"
        )
    return order


_PENDING = 256 * 2**20  # bytes of statistics that may wait for their selection


def room(waiting: Sequence[Ranker]) -> bool:
    """Whether one more layer's statistics may be gathered while these are still being ranked."""
    known = [s for r in waiting for s in r.__dict__.get("statistics", [])]
    widest = max((s.gram.nbytes for s in known), default=_PENDING)
    return (
        len(waiting) < torch.get_num_threads()
        and sum(s.gram.nbytes for s in known) + widest <= _PENDING
    )


def begin(
    ranker: Ranker, method: Method, finish: Callable[[Ranker, Method], Found], background: bool
) -> Future[Found]:
    """Rank a group: in the background, if wished and if its statistics, gathered before, are all
    that takes.
    """
    if method.statistics_only and background:
        return parallel.later(lambda: finish(ranker, method))
    done: Future[Found] = Future()
    done.set_result(finish(ranker, method))
    return done


def gather(ranker: Ranker, method: Method) -> None:
    """Take the statistics while the runs stand where they are, if the ranking is to follow later."""
    if method.statistics_only:
        _ = ranker.statistics


def _one_by_one(
    ranked: Iterator[Ranker], method: Method, finish: Callable[[Ranker, Method], Found]
) -> Iterator[tuple[str, Found]]:
    """What `finish` makes of every group; the runs go on while earlier groups are still being
    ranked.
    """
    waiting: deque[tuple[Ranker, Future[Found]]] = deque()
    for ranker in ranked:
        gather(ranker, method)
        free = room([ranker, *(r for r, _ in waiting)])
        waiting.append((ranker, begin(ranker, method, finish, free)))
        while waiting and not room([r for r, _ in waiting]):
            first, found = waiting.popleft()
            yield first.group.name, found.result()
    for first, found in waiting:
        yield first.group.name, found.result()
