"""One way through the network: rank, choose, reweight, switch off, go on."""

from __future__ import annotations

import copy
import functools
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from subprune import parallel
from subprune.batchnorm import stored_norms
from subprune.calibrate import Calibration, Passage, Run, consumer_weight, scale_units
from subprune.errors import OptionError
from subprune.greedy import KeepOrder
from subprune.masking import keep_mask, overrides, zero
from subprune.memory import give_back
from subprune.ranking import Tick, begin, gather, in_order, ranking_of, room
from subprune.registry import Method, Ranker, Ranking, Setting
from subprune.reweight import solve
from subprune.statistics import Statistics
from subprune.structure import Consumer, Group

__all__ = ["Decision", "Walk", "alone", "walk"]

_LARGE = 32 * 2**20  # bytes of a layer's G that are worth giving back before the next layer


@dataclass
class Decision:
    """What was decided for one group, and what was measured on the way."""

    group: str
    kept: tuple[int, ...]
    order: tuple[int, ...]
    errors: tuple[float, ...] = ()  # error curve, if the method has one: relative residual for every k
    dependent: tuple[int, ...] = ()  # units that added nothing to those before
    error: float = float("nan")  # relative input change left after reweighting, on the calibration data
    seconds: float = 0.0
    rank: int = 0  # independent columns among those kept, over all consumers
    columns: int = 0  # columns kept


@dataclass
class Walk:
    """The result of a walk: decisions by group, and the parameters of the masked, reweighted model."""

    decisions: dict[str, Decision]
    tensors: dict[str, Tensor]
    dense: Run  # of the dense model, past the last group
    renewed: tuple[str, ...] = ()  # tensors with BatchNorm statistics that were taken anew
    notes: list[str] = field(default_factory=list)


def walk(
    calibration: Calibration,
    groups: Sequence[Group],
    method: Method,
    counts: Mapping[str, int],
    *,
    reweight: bool = True,
    renew: bool = False,
    tick: Tick = lambda stage, group: None,
    **choices: Any,
) -> Walk:
    """Decide every group in forward order.

    The ``layer`` form looks at the dense model throughout; the others look at what earlier decisions left, with
    `renew` at what it computes once the BatchNorm statistics on the way are taken anew.
    `choices` are those of `Setting`: seed, epsilon, patches, train_data.
    """
    setting = Setting(calibration, tuple(groups), **choices)
    method.check(setting)
    dense, current = calibration.start(), calibration.start()
    current.renew = stored_norms(calibration.structure.program) if renew else {}
    past_dense, past_current = Passage(dense, groups), Passage(current, groups)
    alone = method.form == "layer"  # then the pruned model's activations are never looked at
    decisions: dict[str, Decision] = {}
    gone: dict[int, Tensor] = {}
    waiting: deque[tuple[Ranker, float, Future[tuple[Decision, Ranking]]]] = deque()

    def settle() -> None:
        ranker, spent, found = waiting.popleft()
        decision, ranking = found.result()
        started = time.perf_counter()
        tick("reweight", ranker.group)
        _apply(ranker, decision, ranking, current, reweight)
        _note_gone(gone, ranker.group, decision.kept)
        decisions[ranker.group.name] = decision
        wanted = [c.use.op for g in groups if g.name not in decisions for c in g.consumers]
        if ranker.passed is not None and ranker.passed.position <= min(wanted, default=ranker.passed.position):
            dense.go_on_from(ranker.passed)
        large = any(s.gram.nbytes > _LARGE for s in ranker.__dict__.pop("statistics", []))
        if large:
            give_back()
        decision.seconds += spent + time.perf_counter() - started

    for group in in_order(groups):
        while waiting and _shares_reader(group, [r.group for r, *_ in waiting]):
            settle()
        started = time.perf_counter()
        tick("rank", group)
        go = functools.partial(Passage.go_to, group=group)
        marks = parallel.each(go, [past_dense] if alone else [past_dense, past_current], current.on_cpu)
        mark = None if alone else marks[-1]
        source = dense if alone else current
        ranker = Ranker(group, method.form, source, dense, setting, counts[group.name], gone, mark)
        gather(ranker, method)
        spent = time.perf_counter() - started
        free = alone and room([ranker, *(r for r, *_ in waiting)])
        waiting.append((ranker, spent, begin(ranker, method, _decide, free)))
        while waiting and not (alone and room([r for r, *_ in waiting])):
            settle()
    while waiting:
        settle()
    if current.renew:
        current.advance(len(current.programs[0].ops))
    return Walk(decisions, current.tensors, dense, renewed=tuple(n for pair in current.renew.values() for n in pair))


def _shares_reader(group: Group, others: Sequence[Group]) -> bool:
    """Whether a layer reads this group and one of the others: then one decision changes the other's statistics."""
    own = {c.use.op for c in group.consumers}
    return any(c.use.op in own for other in others for c in other.consumers)


def _decide(ranker: Ranker, method: Method) -> tuple[Decision, Ranking]:
    started = time.perf_counter()
    ranked = method.order(ranker)
    ranking = ranking_of(ranker, ranked)
    k = ranker.k or 0
    if len(ranking.order) < k:
        raise OptionError(
            f"method {method.name!r} ranked {len(ranking.order)} units of group {ranker.group.name!r}, but {k} "
            "are to be kept; a method must rank at least ranker.k units"
        )
    decision = Decision(ranker.group.name, ranker.group.choice(ranking.order, k), ranking.order)
    if isinstance(ranked, KeepOrder):
        decision.errors = tuple(float(e) for e in ranked.errors)
        decision.dependent = ranked.dependent
    decision.seconds = time.perf_counter() - started
    return decision, ranking


def _apply(ranker: Ranker, decision: Decision, ranking: Ranking, current: Run, reweight: bool) -> None:
    """Switch the other units off in the current run, with new weights for what reads them."""
    group, mark = ranker.group, ranker.start
    keep = keep_mask(group, decision.kept)
    if reweight and len(decision.kept) < group.n_units:
        _reweight(ranker, decision, current)
    elif not reweight:
        if ranking.scale is not None:
            _scale(group, ranking.scale(len(decision.kept)), current)
        if "statistics" in ranker.__dict__:
            _measure_plain(ranker, decision, current)
    tensors = dict(current.tensors)
    zero(tensors, group, keep)
    current.tensors = tensors
    current.override.update(overrides(current.programs[0], [(group, keep)]))
    if mark is not None:
        mark.tensors, mark.override = current.tensors, current.override
        current.envs, current.position = mark.envs, mark.position


def _note_gone(gone: dict[int, Tensor], group: Group, kept: Sequence[int]) -> None:
    """Mark the inputs of the group's consumers that are removed: other groups may be read by the same layer."""
    keep = torch.as_tensor(keep_mask(group, kept))
    for consumer in group.consumers:
        units = torch.as_tensor(consumer.columns)
        off = (units >= 0) & ~keep[units.clamp(min=0)]
        gone[consumer.use.op] = gone[consumer.use.op] | off if consumer.use.op in gone else off


def _scale(group: Group, scale: Tensor, current: Run) -> None:
    """The factors a method wants on the outgoing weights of its units."""
    tensors = dict(current.tensors)
    for consumer in group.reweightable:
        scale_units(consumer, tensors, scale)
    current.tensors = tensors


def _blocks(ranker: Ranker) -> list[tuple[Consumer, list[Statistics]]]:
    """The statistics of each consumer."""
    found, at = [], 0
    for consumer in ranker.group.reweightable:
        found.append((consumer, ranker.statistics[at : at + consumer.groups]))
        at += consumer.groups
    return found


def _reweight(ranker: Ranker, decision: Decision, current: Run) -> None:
    tensors = dict(current.tensors)
    left = total = 0.0
    for consumer, blocks in _blocks(ranker):
        found = [solve(s, decision.kept) for s in blocks]
        decision.rank += sum(f.rank for f in found)
        decision.columns += sum(f.columns for f in found)
        left += sum(f.error * s.energy for f, s in zip(found, blocks, strict=True))
        total += sum(s.energy for s in blocks)
        old = tensors[consumer.use.weight]
        rows = torch.cat([f.weight.T for f in found])  # [outputs, inputs / groups · kernel positions]
        shape = consumer_weight(consumer, tensors).shape
        new = rows.reshape(shape).to(old)
        tensors[consumer.use.weight] = new.transpose(0, 1) if consumer.use.in_dim == 0 else new
    current.tensors = tensors
    decision.error = left / total if total else 0.0


def _measure_plain(ranker: Ranker, decision: Decision, current: Run) -> None:
    """The relative input change when the old weights stay, or are scaled."""
    left = total = 0.0
    for consumer, blocks in _blocks(ranker):
        weight = consumer_weight(consumer, current.tensors)
        for s, w in zip(blocks, weight.chunk(consumer.groups), strict=True):
            left += solve(s, decision.kept, method="none", weight=w.flatten(1).T).error * s.energy
            total += s.energy
    decision.error = left / total if total else 0.0


def alone(ranker: Ranker, ranking: Ranking, k: int, reweight: bool) -> Run:
    """The state of the dense model with only this group pruned, to k units: its tensors and overrides.

    The run that comes back holds no values; it lends its tensors and overrides to other runs.
    """
    state = Run(ranker.dense.programs, [], ranker.dense.tensors)
    decision = Decision(ranker.group.name, ranker.group.choice(ranking.order, k), ranking.order)
    unmoved = copy.copy(ranker)  # shares the statistics
    unmoved.start = None
    _apply(unmoved, decision, ranking, state, reweight)
    return state
