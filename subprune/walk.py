"""One way through the network: rank, choose, reweight, switch off, go on."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from subprune.calibrate import Calibration, Passage, Run, consumer_weight, scale_units
from subprune.errors import OptionError
from subprune.greedy import KeepOrder, follow
from subprune.masking import keep_mask, overrides, zero
from subprune.registry import METHODS, Method, Ranker, Ranking, Setting
from subprune.reweight import Reweighting, solve
from subprune.sampling import Sensitivity, sensitivity
from subprune.statistics import Statistics
from subprune.structure import Consumer, Group

__all__ = ["Decision", "Walk", "alone", "curves", "in_order", "rankers", "ranking_of", "rankings", "walk"]

Tick = Callable[[str, Group], None]


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
    solves: tuple[Reweighting, ...] = ()


@dataclass
class Walk:
    """The result of a walk: decisions by group, and the parameters of the masked, reweighted model."""

    decisions: dict[str, Decision]
    tensors: dict[str, Tensor]
    dense: Run  # of the dense model, past the last group
    notes: list[str] = field(default_factory=list)


def in_order(groups: Sequence[Group]) -> list[Group]:
    """Forward order: by the first layer that reads the units."""
    return sorted(groups, key=lambda g: (min(c.use.op for c in g.reweightable), g.first_op))


def walk(
    calibration: Calibration,
    groups: Sequence[Group],
    method: Method,
    counts: Mapping[str, int],
    *,
    reweight: bool = True,
    tick: Tick = lambda stage, group: None,
    **choices: Any,
) -> Walk:
    """Decide every group in forward order.

    The ``layer`` form looks at the dense model throughout; the others look at what earlier decisions left.
    `choices` are those of `Setting`: seed, epsilon, patches, train_data.
    """
    setting = Setting(calibration, tuple(groups), **choices)
    method.check(setting)
    dense, current = calibration.start(), calibration.start()
    past_dense, past_current = Passage(dense, groups), Passage(current, groups)
    decisions: dict[str, Decision] = {}
    gone: dict[int, Tensor] = {}
    for group in in_order(groups):
        started = time.perf_counter()
        tick("rank", group)
        past_dense.go_to(group)
        alone = method.form == "layer"  # then the pruned model's activations are never looked at
        mark = None if alone else past_current.go_to(group)
        source = dense if alone else current
        ranker = Ranker(group, method.form, source, dense, setting, counts[group.name], gone, mark)
        decision, ranking = _decide(ranker, method)
        tick("reweight", group)
        _apply(ranker, decision, ranking, current, reweight)
        _note_gone(gone, group, decision.kept)
        wanted = [c.use.op for g in groups if g.name not in decisions and g is not group for c in g.consumers]
        if ranker.passed is not None and ranker.passed.position <= min(wanted, default=ranker.passed.position):
            dense.go_on_from(ranker.passed)
        decision.seconds = time.perf_counter() - started
        decisions[group.name] = decision
    return Walk(decisions, current.tensors, dense)


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


def rankings(calibration: Calibration, groups: Sequence[Group], method: Method, **options: Any) -> dict[str, Ranking]:
    """Rankings of all groups on the dense model; options as for `rankers`."""
    return {r.group.name: ranking_of(r, method.order(r)) for r in rankers(calibration, groups, method, **options)}


def curves(calibration: Calibration, groups: Sequence[Group], method: Method, **options: Any) -> dict[str, KeepOrder]:
    """Keep orders and error curves of all groups on the dense model; options as for `rankers`."""
    return {r.group.name: with_errors(r, method.order(r)) for r in rankers(calibration, groups, method, **options)}


def comparable_scores(
    calibration: Calibration, groups: Sequence[Group], method: Method, **options: Any
) -> dict[str, Tensor]:
    """Scores of all units on the dense model, comparable between groups; options as for `rankers`."""
    found: dict[str, Tensor] = {}
    for name, ranking in rankings(calibration, groups, method, **options).items():
        if ranking.scores is None:
            able = ", ".join(m.name for m in METHODS.values() if m.allocate == "score")
            raise OptionError(
                f"allocate='score' needs scores that can be compared between layers, and method {method.name!r} "
                f"has none; use another rule, or one of {able}"
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


def _decide(ranker: Ranker, method: Method) -> tuple[Decision, Ranking]:
    ranked = method.order(ranker)
    ranking = ranking_of(ranker, ranked)
    k = ranker.k or 0
    if len(ranking.order) < k:
        raise OptionError(
            f"method {method.name!r} ranked {len(ranking.order)} units of group {ranker.group.name!r}, but {k} "
            "are to be kept; a method must rank at least ranker.k units"
        )
    decision = Decision(ranker.group.name, tuple(sorted(ranking.order[:k])), ranking.order)
    if isinstance(ranked, KeepOrder):
        decision.errors = tuple(float(e) for e in ranked.errors)
        decision.dependent = ranked.dependent
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
    solves: list[Reweighting] = []
    left = total = 0.0
    for consumer, blocks in _blocks(ranker):
        found = [solve(s, decision.kept) for s in blocks]
        solves += found
        left += sum(f.error * s.energy for f, s in zip(found, blocks, strict=True))
        total += sum(s.energy for s in blocks)
        old = tensors[consumer.use.weight]
        rows = torch.cat([f.weight.T for f in found])  # [outputs, inputs / groups · kernel positions]
        shape = consumer_weight(consumer, tensors).shape
        new = rows.reshape(shape).to(old)
        tensors[consumer.use.weight] = new.transpose(0, 1) if consumer.use.in_dim == 0 else new
    current.tensors = tensors
    decision.solves = tuple(solves)
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
    decision = Decision(ranker.group.name, tuple(sorted(ranking.order[:k])), ranking.order)
    unmoved = copy.copy(ranker)  # shares the statistics
    unmoved.start = None
    _apply(unmoved, decision, ranking, state, reweight)
    return state
