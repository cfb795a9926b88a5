"""One way through the network: rank, choose, reweight, switch off, go on."""

from __future__ import annotations

import copy
import functools
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from subprune.cut.masking import Keep, keep_mask, overrides, zero
from subprune.errors import OptionError
from subprune.fit.least_squares import solve
from subprune.fit.ridge import Fitted, fit
from subprune.loop.ranking import Tick, begin, gather, in_order, ranking_of, room
from subprune.program import parallel
from subprune.program.program import Override
from subprune.select.greedy import KeepOrder
from subprune.select.registry import Method, Ranker, Ranking, Setting
from subprune.statistics.batchnorm import stored_norms
from subprune.statistics.calibrate import Calibration, Passage, Run
from subprune.statistics.consumers import consumer_weight, scale_units, stored_weight
from subprune.structure import Consumer, Group

__all__ = ["Decision", "Walk", "alone", "walk"]

Block = TypeVar("Block")


@dataclass
class Decision:
    """What was decided for one group, and what was measured on the way."""

    group: str
    kept: tuple[int, ...]
    order: tuple[int, ...]
    # error curve, if the method has one: relative residual for every k
    errors: tuple[float, ...] = ()
    dependent: tuple[int, ...] = ()  # units that added nothing to those before
    # relative input change left after reweighting, on the inputs that were fitted
    error: float = float("nan")
    held_out: float = float("nan")  # the same on inputs that were not fitted
    ridge: tuple[float, ...] = ()  # strength of the ridge of every fit
    growth: float = float("nan")  # the largest ‖new weights‖ / ‖old weights‖
    rows: int = 0  # the fewest rows that a fit had
    seconds: float = 0.0
    rank: int = 0  # independent columns among those kept, over all consumers
    columns: int = 0  # columns kept


@dataclass
class Walk:
    """The result of a walk: decisions by group, and the parameters of the masked, reweighted model."""

    decisions: dict[str, Decision]
    tensors: dict[str, Tensor]
    dense: Run  # of the dense model, past the last group
    # the same fitted without each fold
    versions: list[dict[str, Tensor]] = field(default_factory=list)
    # corrected operations of the masked model
    override: dict[int, Override] = field(default_factory=dict)
    renewed: tuple[str, ...] = ()  # tensors with BatchNorm statistics that were re-estimated
    notes: list[str] = field(default_factory=list)


def walk(
    calibration: Calibration,
    groups: Sequence[Group],
    method: Method,
    counts: Mapping[str, int],
    *,
    reweight: bool = True,
    ridge: float | None = 0.0,
    renew: bool = False,
    tick: Tick = lambda stage, group: None,
    **choices: Any,
) -> Walk:
    """Decide every group in forward order.

    The ``layer`` form looks at the dense model throughout; the others look at what earlier
    decisions left, with `renew` at what it computes once the BatchNorm statistics on the way are
    re-estimated. `ridge` draws fits toward the old weights, None with a strength chosen on held-out
    inputs. `choices` are those of `Setting`: seed, epsilon, patches, train_data.
    """
    setting = Setting(calibration, tuple(groups), **choices)
    method.check(setting)
    dense, current = calibration.start(), calibration.start()
    versions = (
        [current.tensors] * calibration.n_folds if reweight and calibration.n_folds > 1 else []
    )
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
        _apply(ranker, decision, ranking, current, versions, reweight, ridge)
        _note_gone(gone, ranker.group, decision.kept)
        decisions[ranker.group.name] = decision
        wanted = [c.use.op for g in groups if g.name not in decisions for c in g.consumers]
        if ranker.passed is not None and ranker.passed.position <= min(
            wanted, default=ranker.passed.position
        ):
            dense.go_on_from(ranker.passed)
        for held in ("statistics", "folded"):  # no longer needed, and large
            ranker.__dict__.pop(held, None)
        decision.seconds += spent + time.perf_counter() - started

    for group in in_order(groups):
        while waiting and _shares_reader(group, [r.group for r, *_ in waiting]):
            settle()
        started = time.perf_counter()
        tick("rank", group)
        go = functools.partial(Passage.go_to, group=group)
        marks = parallel.each(
            go, [past_dense] if alone else [past_dense, past_current], current.on_cpu
        )
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
    renewed = tuple(name for pair in current.renew.values() for name in pair)
    versions = [{**own, **{name: current.tensors[name] for name in renewed}} for own in versions]
    return Walk(decisions, current.tensors, dense, versions, current.override, renewed)


def _shares_reader(group: Group, others: Sequence[Group]) -> bool:
    """Whether a layer reads this group and one of the others: then one decision changes the other's
    statistics.
    """
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
        decision.rank = sum(ranked.ranks[:k])
    decision.seconds = time.perf_counter() - started
    return decision, ranking


def _apply(
    ranker: Ranker,
    decision: Decision,
    ranking: Ranking,
    current: Run,
    versions: list[dict[str, Tensor]],
    reweight: bool,
    ridge: float | None,
) -> None:
    """Switch the other units off in the current run, with new weights for what reads them; in
    `versions` too.
    """
    group, mark = ranker.group, ranker.start
    keep = keep_mask(group, decision.kept)
    if reweight and len(decision.kept) < group.n_units:
        _reweight(ranker, decision, current, versions, ridge)
    elif not reweight:
        if ranking.scale is not None:
            _scale(group, ranking.scale(len(decision.kept)), current)
        if "statistics" in ranker.__dict__:
            _measure_plain(ranker, decision, current)
    current.tensors, *versions[:] = _switched_off(group, keep, [current.tensors, *versions])
    current.override.update(overrides(current.programs[0], [(group, keep)]))
    if mark is not None:
        mark.tensors, mark.override = current.tensors, current.override
        current.envs, current.position = mark.envs, mark.position


def _switched_off(
    group: Group, keep: Keep, models: Sequence[dict[str, Tensor]]
) -> list[dict[str, Tensor]]:
    """Several versions of a model with removed units zeroed; they go on sharing the tensors that
    they share.
    """
    zeroed: dict[int, Tensor] = {}  # by the identity of the tensor before
    results = []
    for tensors in models:
        new = dict(tensors)
        zero(new, group, keep)
        for name in {slot.tensor for slot in group.slots}:
            new[name] = zeroed.setdefault(id(tensors[name]), new[name])
        results.append(new)
    return results


def _note_gone(gone: dict[int, Tensor], group: Group, kept: Sequence[int]) -> None:
    """Mark the inputs of the group's consumers that are removed: other groups may be read by the
    same layer.
    """
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


def _blocks(group: Group, blocks: Sequence[Block]) -> list[tuple[Consumer, Sequence[Block]]]:
    """What belongs to each consumer."""
    pairs, at = [], 0
    for consumer in group.reweightable:
        pairs.append((consumer, blocks[at : at + consumer.groups]))
        at += consumer.groups
    return pairs


def _reweight(
    ranker: Ranker,
    decision: Decision,
    current: Run,
    versions: list[dict[str, Tensor]],
    ridge: float | None,
) -> None:
    """Fit every consumer, for the model itself and for each fold's version of it."""
    models = [dict(tensors) for tensors in (current.tensors, *versions)]
    fits: list[Fitted] = []
    pairs = list(zip(ranker.folded, ranker.statistics, strict=True))
    for consumer, blocks in _blocks(ranker.group, pairs):
        old = _matrices(consumer, current.tensors)
        own = [fit(*block, decision.kept, w, ridge) for block, w in zip(blocks, old, strict=True)]
        for i, tensors in enumerate(models):
            new = [f.weight if i == 0 else f.versions[i - 1] for f in own]
            tensors[consumer.use.weight] = _as_weight(consumer, tensors, new)
        fits += own
    current.tensors, *versions[:] = models
    _note_fits(decision, fits)


def _note_fits(decision: Decision, fits: Sequence[Fitted]) -> None:
    """What the fits of all consumers say together."""
    total = sum(f.energy for f in fits)
    decision.error = sum(f.error * f.energy for f in fits) / total if total else 0.0
    decision.held_out = sum(f.held_out * f.energy for f in fits) / total if total else 0.0
    decision.ridge = tuple(f.ridge for f in fits)
    decision.growth = max(f.growth for f in fits)
    decision.rows = min(f.rows for f in fits)
    decision.rank = decision.rank or sum(f.rank for f in fits)
    decision.columns = sum(f.columns for f in fits)


def _matrices(consumer: Consumer, tensors: Mapping[str, Tensor]) -> list[Tensor]:
    """A consumer's weight as one matrix [d, m] for each block."""
    return [w.flatten(1).T for w in consumer_weight(consumer, tensors).chunk(consumer.groups)]


def _as_weight(
    consumer: Consumer, tensors: Mapping[str, Tensor], blocks: Sequence[Tensor]
) -> Tensor:
    """Matrices [d, m], one per block, as the consumer holds its weight."""
    old = tensors[consumer.use.weight]
    rows = torch.cat([block.T for block in blocks])  # [outputs, inputs / groups · kernel positions]
    new = rows.reshape(consumer_weight(consumer, tensors).shape).to(old)
    return stored_weight(consumer, new)


def _measure_plain(ranker: Ranker, decision: Decision, current: Run) -> None:
    """The relative input change when the old weights stay, or are scaled."""
    left = total = 0.0
    for consumer, blocks in _blocks(ranker.group, ranker.statistics):
        weight = consumer_weight(consumer, current.tensors)
        for s, w in zip(blocks, weight.chunk(consumer.groups), strict=True):
            left += solve(s, decision.kept, method="none", weight=w.flatten(1).T).error * s.energy
            total += s.energy
    decision.error = left / total if total else 0.0


def alone(ranker: Ranker, ranking: Ranking, k: int, reweight: bool) -> Run:
    """The state of the dense model with only this group pruned, to k units: its tensors and
    overrides.

    Fits are plain least squares here.

    The run that comes back holds no values; it lends its tensors and overrides to other runs.
    """
    state = Run(ranker.dense.programs, [], ranker.dense.tensors)
    decision = Decision(ranker.group.name, ranker.group.choice(ranking.order, k), ranking.order)
    unmoved = copy.copy(ranker)  # shares the statistics
    unmoved.start = None
    _apply(unmoved, decision, ranking, state, [], reweight, 0.0)
    return state
