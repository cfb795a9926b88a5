"""The prune loop: visit, decide, fit, switch off, go on."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

from torch import Tensor

from subprune.errors import OptionError
from subprune.fit.fit import Figures, Fit, Tensors, Work, error_before
from subprune.loop.journal import Log
from subprune.loop.looks import work_of
from subprune.loop.narrow import narrow
from subprune.loop.refine import constant_of, makers, refine
from subprune.loop.tour import Tour, switched_off
from subprune.loop.visits import Tick, Visit, visits
from subprune.plan import FITTED, MOVED, REFINED, UNFITTED, GroupPlan
from subprune.structure.groups import in_order

if TYPE_CHECKING:
    from subprune.loop.recipe import Recipe
    from subprune.program.program import Override
    from subprune.select.selector import Setting
    from subprune.statistics.calibration import Calibration
    from subprune.statistics.place import Place
    from subprune.statistics.runs import Run
    from subprune.statistics.target import Target
    from subprune.structure.groups import Group

__all__ = ["Walk", "walk"]


_WIDE = 1024  # columns
_REWRITTEN, _TRAIL = "rewritten", "trail"  # in the log, besides the plan of a group


@dataclass(kw_only=True)
class Walk:
    """The result of a walk: what was decided, and the tensors of the masked, refitted model."""

    groups: dict[str, GroupPlan]
    tensors: dict[str, Tensor]
    dense: Run  # of the dense model, past the last group
    versions: list[Tensors] = field(default_factory=list)  # fitted without each judged fold
    # corrected operations of the masked model
    override: dict[int, Override] = field(default_factory=dict)
    rewritten: frozenset[str] = frozenset()  # tensors that fits replaced
    # folds that nothing was fitted to in the version without them; None: all
    unseen: frozenset[int] | None = None
    # layers that lost no input, and were refitted all the same
    refitted: dict[str, Figures] = field(default_factory=dict)
    renewed: tuple[str, ...] = ()  # tensors with BatchNorm statistics that were re-estimated
    notes: list[str] = field(default_factory=list)


def walk(
    setting: Setting,
    recipe: Recipe,
    counts: Mapping[str, int],
    *,
    renew: bool = False,
    see: Callable[[Visit], None] = lambda visit: None,
    tick: Tick = lambda group: None,
    tell: Callable[[GroupPlan], None] = lambda group: None,
    log: Log | None = None,
) -> Walk:
    """Decide every group of the setting in forward order.

    `renew` re-estimates BatchNorm statistics on the way, so that targets that look at the pruned
    model see what it then computes. `see` is shown every visit before it is decided, `tell` is told
    what was; an error that either raises ends the walk. `log` has what an earlier walk of the same
    kind finished, which is taken over, and is given what this one does.
    """
    groups, log = setting.groups, Log() if log is None else log
    pruned = recipe.target.sees_pruned
    refit = None
    if recipe.drift is not None:
        refit = functools.partial(_refitted, recipe.fit, recipe.drift, log)
    steps = recipe.refine > 0
    tour = Tour(setting, groups, pruned=pruned, renew=renew, refit=refit, mark_all=steps)
    plans: dict[str, GroupPlan] = {}
    for group in in_order(groups):
        if not log.has("group", group.name):
            break
        tick(group)
        plans[group.name] = _taken_over(tour, group, log)
        tell(plans[group.name])
    rest = [g for g in groups if g.name not in plans]
    for visit in visits(tour, rest, recipe, setting, counts=counts, tick=tick):
        see(visit)
        before, name = tour.models, visit.group.name
        plans[name], trail = _decide(tour, visit, recipe, counts[name])
        facts = {**asdict(plans[name]), _REWRITTEN: sorted(tour.rewritten), _TRAIL: trail}
        log.note("group", name, before, tour.models, facts)
        tell(plans[name])
        del visit, before  # statistics are large, and the next ones are about to be gathered
    renewed = tour.finish()
    return Walk(
        groups=plans,
        tensors=tour.current.tensors,
        dense=tour.dense,
        versions=tour.versions,
        override=tour.current.override,
        rewritten=frozenset(tour.rewritten),
        renewed=renewed,
        unseen=_unseen(setting.calibration, recipe),
        refitted=tour.refitted,
    )


def _unseen(calibration: Calibration, recipe: Recipe) -> frozenset[int] | None:
    """Folds that a version knows nothing about; steps of refinement looked at all but the first."""
    if recipe.refine:
        return frozenset({0})
    every = calibration.judged in (0, calibration.n_folds)
    return None if every else frozenset(range(calibration.judged))


def _taken_over(tour: Tour, group: Group, log: Log) -> GroupPlan:
    """Go past a group as an earlier walk has decided it; nothing is gathered, ranked or fitted."""
    place = tour.go_to(group)  # layers on the way come from the log as well
    step = log.take("group", group.name, tour.models)
    assert step is not None, "the log has it"
    facts = dict(step.facts)
    tour.rewritten, trail = set(facts.pop(_REWRITTEN)), facts.pop(_TRAIL)
    plan = GroupPlan(**facts)
    tour.settle(group, plan.kept, step.models, place.start)
    for stop in trail:
        tour.dense.advance(stop)
    return plan


def _decide(tour: Tour, visit: Visit, recipe: Recipe, k: int) -> tuple[GroupPlan, tuple[int, ...]]:
    """Keep the first k units, and bring the tour up to date; where the dense run stopped."""
    started = time.perf_counter()
    group, order = visit.group, visit.ranking.order
    if len(order) < k:
        raise OptionError(
            f"{recipe.who} ranked {len(order)} units of group {group.name!r}, but {k} are to be "
            "kept; a method must rank at least view.k units"
        )
    kept = group.choice(order, k)
    before = {slot.tensor: tuple(tour.dense.tensors[slot.tensor].shape) for slot in group.slots}
    work = work_of(visit, kept)
    unfitted = tour.models
    models, figures = _in_rounds(work, recipe.fit, recipe.target, visit.place, unfitted)
    tour.apply(group, kept, models, visit.start)
    steps = 0
    if recipe.refine and visit.place is not None and visit.start is not None:
        again, steps = _refined(tour, visit, kept, recipe, unfitted, figures.ridge)
        if again is not None:
            figures = replace(again, stages=(*figures.stages, (REFINED, again.left)))
    trail = tour.skip_to(visit.gathered.passed)
    curve = visit.ranking.curve
    plan = GroupPlan(
        name=group.name,
        kind=group.kind,
        units=group.n_units,
        kept=kept,
        consumers=tuple(c.name for c in group.consumers),
        order=order,
        errors=() if curve is None else tuple(float(e) for e in curve.errors),
        dependent=() if curve is None else curve.dependent,
        error=figures.error,
        held_out=figures.held_out,
        ridge=figures.ridge,
        growth=figures.growth,
        rows=figures.rows,
        rank=(0 if curve is None else sum(curve.ranks[:k])) or figures.rank,
        columns=figures.columns,
        steps=steps,
        stages=figures.stages,
        seconds=visit.seconds + time.perf_counter() - started,
        shapes=before,
    )
    return plan, trail


def _refitted(
    fit: Fit, target: Target, log: Log, place: Place, models: Sequence[Tensors]
) -> tuple[list[Tensors], Figures, Run | None]:
    """Models with new weights for a layer that loses no input; the dense run past it."""
    step = log.take("layer", place.group.name, models)
    if step is not None:
        facts, passed = dict(step.facts), place.dense
        for stop in facts.pop(_TRAIL):
            passed.advance(stop)
        return step.models, Figures(**facts), passed
    gathered = target.gather(place)
    work = Work(group=place.group, kept=(), gathered=gathered, factors=gathered.factors)
    new, figures = _in_rounds(work, fit, target, place, models)
    trail = () if gathered.passed is None else tuple(gathered.passed.trail)
    log.note("layer", place.group.name, models, new, {**asdict(figures), _TRAIL: trail})
    return new, figures, gathered.passed


def _in_rounds(
    work: Work,
    fit: Fit,
    target: Target,
    place: Place | None,
    models: Sequence[Tensors],
    given: Sequence[Tensors] | None = None,
) -> tuple[list[Tensors], Figures]:
    """Fit; then, as often as the target asks for it, to what it became, always from the start.

    given: models that are close to what will be fitted; targets move with them before the first
    fit, which then is the only one.
    """
    rounds = target.repeats if place is not None else 0
    if given is not None and rounds:
        assert place is not None
        moved = target.moved(place, work.gathered, work.kept, given)
        work = work if moved is None else replace(work, gathered=moved)
        rounds = 0
    new = [dict(tensors) for tensors in models]
    figures = fit.apply(work, new)
    stages = []
    if len(work.kept) < work.group.n_units and figures.rows:
        stages = [(UNFITTED, error_before(work, models[0])), (FITTED, figures.left)]
    # Strengths of a ridge: chosen again for the first targets that moved, then kept; those of wide
    # layers, whose fits take long, are kept from the start.
    wide = any(s.width > _WIDE for s in work.gathered.statistics)
    chosen: tuple[float, ...] = figures.ridge if wide else work.ridge
    latest = work
    for number in range(rounds):
        assert place is not None
        moved = target.moved(place, work.gathered, work.kept, new)
        if moved is None:
            break
        # Only the last fit's errors are looked at.
        last = number == rounds - 1
        latest = replace(work, gathered=moved, ridge=chosen, measured=last)
        new = [dict(tensors) for tensors in models]
        figures = fit.apply(latest, new)
        chosen = figures.ridge
    if not latest.measured:  # the target has moved for the last time before
        new = [dict(tensors) for tensors in models]
        figures = fit.apply(replace(latest, measured=True), new)
    if latest is not work:
        stages = [*stages[:2], (MOVED, figures.left)]
    return new, replace(figures, stages=tuple(stages))


def _refined(
    tour: Tour,
    visit: Visit,
    kept: tuple[int, ...],
    recipe: Recipe,
    unfitted: Sequence[Tensors],
    ridge: tuple[float, ...],
) -> tuple[Figures | None, int]:
    """Steps on the layers that make the units, with the readers fitted again after each.

    unfitted: the model and its versions before the readers were fitted; ridge: the strengths that
    were chosen for them, which stay. Figures of the last fit, None if no step stayed; and how many
    did.
    """
    group, place = visit.group, visit.place
    assert place is not None
    if not recipe.target.needs_metric:
        place = replace(place, metric=None)
    layers = makers(tour.setting.calibration.structure, group)
    if not layers or len(kept) == group.n_units:
        return None, 0
    start, wide = tour.current.fork(), switched_off(group, kept, unfitted)
    small = narrow(start, group, kept)
    base, stay = [small.tensors(tensors) for tensors in wide], small.numbers(kept)
    start.tensors = small.tensors(start.tensors)
    place = replace(
        place,
        group=small.group,
        current=_at_readers(start, start.tensors, group),
        removed=small.removed(place.removed),
        aims=visit.gathered.aims,
    )
    changing = {n for m in layers for n in (m.use.weight, constant_of(m)) if n is not None}
    fitted = [small.tensors(tensors) for tensors in tour.models]
    latest: list[tuple[list[Tensors], Figures]] = []

    def solve(tensors: Tensors) -> Tensors:
        # Versions go the same way from where each of them is.
        changes = {n: tensors[n] - base[0][n] for n in changing}
        models = [{**m, **{n: m[n] + change for n, change in changes.items()}} for m in base]
        models[0].update({n: tensors[n] for n in changing})
        here = replace(place, current=_at_readers(start, models[0], group))
        gathered = recipe.target.gather(here)
        work = Work(group=small.group, kept=stay, gathered=gathered, changed=True, ridge=ridge)
        # With a small step of the makers, the readers change little: targets start from theirs.
        last = latest[-1][0] if latest else fitted
        given = [
            {**old, **{n: moved[n] for n in changing}}
            for old, moved in zip(last, models, strict=True)
        ]
        new, figures = _in_rounds(work, recipe.fit, recipe.target, here, models, given)
        latest.append((switched_off(small.group, stay, new), figures))
        return latest[-1][0][0]

    steps = refine(place, start, place.aims, start.tensors, layers, stay, solve, recipe.refine)
    if not latest:
        return None, steps
    models, figures = latest[-1]
    tour.take_over([small.widened(*three) for three in zip(models, base, wide, strict=True)])
    return figures, steps


def _at_readers(start: Run, tensors: Tensors, group: Group) -> Run:
    """A run of a model with these tensors, just before the first layer that reads the group."""
    run = start.fork()
    run.tensors = tensors
    run.advance(min(c.use.op for c in group.consumers))
    return run
