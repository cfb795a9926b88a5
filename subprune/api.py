"""`prune`, the whole way on one screen, `forecast`, its first half, and `method`, which adds one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from subprune.budget.allocators import ALLOCATORS
from subprune.budget.cache import fingerprint
from subprune.budget.demand import Demand
from subprune.budget.goal import Rounding
from subprune.budget.latency import by_latency
from subprune.budget.ties import Ties
from subprune.budget.tying import left_whole, tie
from subprune.cutting.check import Check, blame, check_groups, few_inputs
from subprune.cutting.model_config import check_promise, find_fields, sync_config
from subprune.cutting.roles import Roles
from subprune.cutting.surgery import attempt, broken, duplicate, set_tensors
from subprune.cutting.twin import model_outputs
from subprune.data.batches import batches, take
from subprune.errors import BudgetError, DataError, OptionError, StructureError, closest
from subprune.io.checkpoint import kept_steps
from subprune.keywords import takes
from subprune.loop.walk import Walk, walk
from subprune.measure.stopwatch import Stopwatch
from subprune.messages import Message, joined
from subprune.methods import METHODS, of_function
from subprune.options.checks import check_divisible
from subprune.options.options import Options
from subprune.program.accept import check_model
from subprune.program.borrow import given_back
from subprune.program.cores import use_threads
from subprune.program.ranks import sharing
from subprune.program.record import not_taken
from subprune.progress import Progress, progress_bar
from subprune.reading.reader import from_path
from subprune.report.forecast import Forecast, make_forecast
from subprune.result import Result, make_result
from subprune.select.selector import Answer, Setting, View
from subprune.statistics.batchnorm import recalibrate
from subprune.statistics.calibration import Calibration
from subprune.statistics.metric import measure_metric
from subprune.statistics.targets import TARGETS
from subprune.structure.choose import choose_groups, some
from subprune.structure.cost import CostModel
from subprune.structure.groups import in_order

if TYPE_CHECKING:
    from subprune.loop.journal import Journal
    from subprune.program.ranks import Ranks
    from subprune.progress import Step
    from subprune.statistics.target import Target
    from subprune.structure.groups import Group

__all__ = ["Result", "forecast", "method", "prune"]


@takes(Options)
@given_back
def prune(model: nn.Module, data: Any, options: Options) -> Result:
    """A smaller model that does what `model` does on inputs like `data`. The model given is not
    changed.

    `data` needs no labels: a tensor or NumPy array, a tuple ``(inputs, labels)``, a Dataset, a
    DataLoader, an iterable of tensors, tuples or dicts, batches or single samples, or the path of
    something that `read_data` reads. Where an item does not fit, `forward` turns it into the model's
    arguments. Of the options, which are given by name, one or several limits say what the smaller
    model may cost.

    Args:
        model: any trained `torch.nn.Module` in float32, float64, bfloat16 or float16; the smaller
            one has the same types.
        data: a few hundred inputs like those the model will see, in any floating precision.

    Returns:
        A `Result` with the smaller model, the plan and the report.
    """
    watch = Stopwatch()
    use_threads(options.threads)
    check_model(model)
    with (
        sharing(options.distributed) as ranks,
        progress_bar(_stages(options), _shown(options, ranks)) as tick,
    ):
        ready = _ready(model, data, options, tick, watch, ranks)
        demand, verify = ready.demand, ready.demand.verification
        groups = len(options.budgets or demand.groups)
        steps = {"pruning": groups, "measuring": 2 if verify is None else 3}
        tick.plan(budgets=demand.steps(), **steps)
        with kept_steps(demand, options) as journal:
            done, pruned, small, eager = _walk_and_cut(demand, options, journal, tick, watch)
        calibration = demand.calibration
        done.notes[:0] = [*ready.notes, *journal.remarks]
        done.notes += [*ready.remarks, *_finish(small, calibration, done, options)]
        done.notes += demand.remarks({name: g.kept for name, g in done.groups.items()})
        watch.lap("check")
        ranks.agree(lambda: _digest(small), "smaller model")
        done.notes += _shared(calibration)
        tick.enter("measuring")
        return make_result(
            calibration,
            small,
            pruned,
            done,
            options,
            watch=watch,
            eager=eager,
            verify=verify,
            tick=tick,
        )


@takes(Options)
@given_back
def forecast(model: nn.Module, data: Any, options: Options) -> Forecast:
    """What `prune` would do with the same arguments, and what it would cost; nothing is pruned.

    Args:
        model: as for `prune`.
        data: as for `prune`.

    Returns:
        A `Forecast` with the number of units that every group would keep.
    """
    use_threads(options.threads)
    check_model(model)
    with (
        sharing(options.distributed) as ranks,
        progress_bar(_stages(options), _shown(options, ranks)) as tick,
    ):
        demand = _ready(model, data, options, tick, Stopwatch(), ranks).demand
        steps = demand.steps()
        tick.plan(budgets=steps, pruning=0, check=0, measuring=0)
        tick.enter("budgets")
        return make_forecast(demand)


STAGES = {"setup": 3, "budgets": 1, "pruning": 1, "check": 1, "measuring": 2}
"""The stages of the work, and their steps before the groups are known."""


def _stages(options: Options) -> dict[str, int]:
    more = options.train_data is not None or options.verify_data is not None
    return {**STAGES, "setup": STAGES["setup"] + more}


def _shown(options: Options, ranks: Ranks) -> bool | Callable[[Step], None] | None:
    """Who is told of progress: of a job, the first rank's user."""
    return options.progress if ranks.rank == 0 else False


def _digest(model: nn.Module) -> str:
    """A hash of all tensors of a model."""
    return fingerprint(*(x for pair in model.state_dict().items() for x in pair))


def _shared(calibration: Calibration) -> list[str]:
    """For the report, how the ranks of a job have shared the work."""
    ranks, batches = calibration.ranks, calibration.batches
    if ranks.count == 1:
        return []
    own = sum(batches[i].size for i in calibration.own)
    return [
        f"{ranks.count} ranks shared the work: rank {ranks.rank} ran {own:,} of "
        f"{sum(b.size for b in batches):,} inputs and sent {ranks.bytes / 1e6:,.1f} MB in "
        f"{ranks.exchanges:,} exchanges; all ranks have the same model"
    ]


@dataclass(frozen=True)
class _Ready:
    """Everything that is known before the goal is divided among the groups."""

    demand: Demand
    notes: Sequence[str]  # about cuts that were tried
    remarks: Sequence[str]  # about the data


def _ready(
    model: nn.Module,
    data: Any,
    options: Options,
    tick: Progress,
    watch: Stopwatch,
    ranks: Ranks,
) -> _Ready:
    """Read the data, record the model, find the groups and try to cut them."""
    check_divisible(options, ranks.count)
    tick("reading data")
    data = from_path(data, model, options.n_samples, options.seed)
    inputs = take(data, model, options.n_samples, forward=options.forward, seed=options.seed)
    watch.lap("reading data")
    tick("recording the model")
    parts, views = options.recipe.fit.parts, options.augment or ()
    calibration = Calibration.of(model, inputs.batches, parts, views, options.seed, ranks)
    tick("trying the cuts")
    checked = _groups(calibration, options)
    roles = _roles(calibration, checked, options)
    checked = replace(checked, able=tuple(g for g in checked.able if g.name not in roles.whole))
    watch.lap("structure")
    others = (options.train_data, options.verify_data)
    if any(x is not None for x in others):
        tick("reading the other data")
    pool, verify = (_more(calibration, x, options.forward) for x in others)
    watch.lap("reading data")
    ties = Ties(roles.sets, roles.numbers)
    demand = replace(_demand(calibration, checked, options, pool, verify, tick), ties=ties)
    remarks = [*inputs.remarks, *calibration.remarks, *_unfelt(demand)]
    return _Ready(demand, [*checked.notes, *left_whole(roles)], remarks)


def _unfelt(demand: Demand) -> list[str]:
    """Said where errors were to count with what the output feels, and it says nothing."""
    if demand.setting.metric != {}:
        return []
    return ["the model's output has no gradients: errors of all its layers count equally"]


def _more(
    calibration: Calibration, data: Any, forward: Callable[[Any], Any] | None
) -> Calibration | None:
    """Other data for the same model, all of it."""
    if data is None:
        return None
    model = calibration.model
    return calibration.on(batches(from_path(data, model), model, None, forward=forward))


def _demand(
    calibration: Calibration,
    checked: Check,
    options: Options,
    pool: Calibration | None,
    verify: Calibration | None,
    tick: Progress,
) -> Demand:
    """What allocators may look at."""
    metric = None
    if options.recipe.target.needs_metric or options.allocator.needs_metric:
        layers = [*calibration.structure.layers, *(c for g in checked.able for c in g.consumers)]
        metric = measure_metric(calibration, layers)
    return Demand(
        setting=Setting(calibration, checked.able, options.seed, pool, metric),
        recipe=options.recipe,
        goal=options.goal,
        allocator=options.allocator,
        cost=CostModel(calibration.model, calibration.structure),
        rounding=Rounding(options.multiple, checked.multiples),
        verification=verify,
        cache=None if options.cache is None else Path(options.cache),
        tick=lambda group: tick(f"curve of {group.name}"),
        say=tick,
    )


def _walk_and_cut(
    demand: Demand, options: Options, journal: Journal, tick: Progress, watch: Stopwatch
) -> tuple[Walk, list[Group], nn.Module, bool]:
    """Walk, then cut and check.

    Groups that turn out impossible to cut to the chosen widths are left whole, and the walk is
    repeated without them: those after them were fitted to what they gave.
    """
    tick.enter("budgets")
    counts = journal.budgets(lambda: _counts(demand))
    watch.lap("budgets")
    notes: list[str] = []
    while True:
        tick.enter("pruning")
        done, pruned = _walk(demand, counts, options, journal, tick)
        watch.lap("pruning")
        tick.enter("check")
        tick("cutting and checking")
        small, eager, outcome = _realise(demand.calibration, done)
        watch.lap("check")
        if not isinstance(outcome, dict):
            done.notes += [*notes, *outcome]
            return done, pruned, small, eager
        notes += [
            f"left whole: {name} cannot be cut to this width, {why}"
            for name, why in outcome.items()
        ]
        mates = demand.ties.mates(outcome) & counts.keys()
        outcome = {
            **dict.fromkeys(sorted(mates), "must be as wide as another group that is left whole"),
            **outcome,
        }
        counts, demand, missed = _without(demand, counts, outcome)
        notes += [Message("goal missed: {missed}", missed=missed)] if missed else []


def _counts(demand: Demand) -> dict[str, int]:
    """The goal, divided among the groups."""
    return demand.counts() if demand.goal.latency is None else by_latency(demand)


def _without(
    demand: Demand, counts: dict[str, int], failed: Mapping[str, str]
) -> tuple[dict[str, int], Demand, str]:
    """The goal divided among the other groups.

    If they cannot meet it, the widths they had, and why.
    """
    structure = demand.calibration.structure
    demand.calibration.structure = replace(structure, refused={**structure.refused, **failed})
    rest = {name: k for name, k in counts.items() if name not in failed}
    if not rest:
        raise StructureError(broken(structure, failed, next(iter(failed.values()))))
    smaller = demand.without(list(failed))  # with the curves that were computed already
    if demand.goal.budgets is not None:
        return rest, smaller, ""
    try:
        return _counts(smaller), smaller, ""
    except BudgetError as error:
        return rest, smaller, error.message


def _walk(
    demand: Demand,
    counts: Mapping[str, int],
    options: Options,
    journal: Journal,
    tick: Callable[[str], None],
) -> tuple[Walk, list[Group]]:
    """Rank, choose and fit group after group."""
    chosen = tuple(g for g in demand.groups if g.name in counts)
    done = walk(
        replace(demand.setting, groups=chosen),
        demand.recipe,
        counts,
        renew=options.batchnorm == "sequential",
        tick=lambda group: tick(f"pruning {group.name}"),
        tell=options.callback or (lambda group: None),
        log=journal.log([(g.name, counts[g.name]) for g in chosen]),
    )
    return done, list(chosen)


def _finish(small: nn.Module, calibration: Calibration, done: Walk, options: Options) -> list[str]:
    """What else the smaller model needs; remarks for the report."""
    structure, batchnorm = calibration.structure, options.batchnorm
    kept = {name: g.kept for name, g in done.groups.items()}
    notes = sync_config(small, structure, kept, find_fields(calibration.model, structure))
    if options.uniform:
        notes += check_promise(small)
    elif notes:
        words = (
            "from_pretrained cannot load the result, subprune.load can; {uniform=} cuts just what"
        )
        notes.append(Message(f"{words} the config can say", uniform=True))
    if done.refitted:
        layer, were = ("layer", "was") if len(done.refitted) == 1 else ("layers", "were")
        words = f"{len(done.refitted)} {layer} that lost no input {were} refitted too"
        notes = [*notes, words]
    steps = [g.steps for g in done.groups.values() if g.steps]
    if steps:
        text = (
            f"refined: {sum(steps)} steps were kept, in {len(steps)} of {len(done.groups)} groups"
        )
        notes = [*notes, text]
    if batchnorm == "recalibrate":
        layers = recalibrate(small, calibration.given)
        notes = [*notes, f"BatchNorm statistics re-estimated in {len(layers)} layers"]
        if layers and calibration.structure.program.layouts:
            words = "padding counts in them, {batchnorm=} leaves it out"
            notes = [*notes, Message(words, batchnorm="sequential")]
    if batchnorm == "sequential":
        notes = [
            *notes,
            f"BatchNorm statistics re-estimated in {len(done.renewed) // 2} "
            "layers, one after another",
        ]
    return list(notes)


def _groups(calibration: Calibration, options: Options) -> Check:
    """The groups to prune, in forward order, each of them tried out; budgets may name residual
    streams too.
    """
    only, ignore, budgets = options.only, options.ignore, options.budgets
    structure = calibration.structure
    goal = "budgets" if options.keep is None else "keep"
    rest = (_named(options), goal, options.streams)
    chosen = choose_groups(structure, calibration.model, only, ignore, *rest)
    if ignore is not None and not chosen:
        every = choose_groups(structure, calibration.model, only, None, *rest)
        if every:
            both = "{ignore=} leaves" if only is None else "{only=} and {ignore=} leave"
            words = "nothing to prune: {ignore:name} fits all of {names}; omit some of it"
            raise BudgetError(Message(f"{both} {words}", names=some([g.name for g in every])))
    tried = in_order([g for g in chosen if budgets is None or g.name in budgets])
    checked = check_groups(
        calibration.model, structure, tried, calibration.batches[0], options.multiple
    )
    if checked.refused and not checked.able:
        _check_run(calibration)
    for option, named in (("only", only), (goal, _named(options))):
        for name, why in checked.refused.items():
            if named is not None and name in list(named):
                words = f"{{{option}=}} names {{name!r}}, which cannot be cut: {{why}}; omit it"
                raise BudgetError(Message(words, name=name, why=why))
    calibration.structure = replace(structure, refused={**structure.refused, **checked.refused})
    able = in_order([g for g in chosen if g.name not in checked.refused])
    if not able:
        scope = Message(" of what {only=} and {ignore=} leave")
        raise BudgetError(
            Message(
                "nothing in the model{scope} can be pruned: {reasons}",
                scope="" if only is None and ignore is None else scope,
                reasons=_reasons(calibration),
            )
        )
    return replace(checked, able=tuple(able))


def _roles(calibration: Calibration, checked: Check, options: Options) -> Roles:
    """Which groups keep the same number of units, and which stay whole for the config's sake."""
    if not options.uniform:
        return Roles()
    structure = calibration.structure
    roles = tie(calibration.model, structure, checked.able, _named(options))
    calibration.structure = replace(structure, refused={**structure.refused, **roles.whole})
    return roles


def _named(options: Options) -> Collection[str]:
    """What the goal speaks of by name."""
    return options.keep if isinstance(options.keep, Mapping) else options.budgets or ()


def _check_run(calibration: Calibration) -> None:
    """Some models take fake tensors but not real ones (whole numbers in a linear layer), which is
    not the cut's fault.
    """
    inputs = calibration.given[0].inputs
    try:
        model_outputs(calibration.model, inputs)
    except StructureError as error:
        cause = error.__cause__
        raise DataError(
            not_taken(calibration.model, inputs, "the calibration data", cause or error)
        ) from error


def _reasons(calibration: Calibration) -> str:
    refused = calibration.structure.refused
    others = {g.name: g.obstacle for g in calibration.structure.groups if not g.inner}
    stay = list({**others, **refused}.items())[:5]
    shown = [
        Message("{name}: {why}", name=name or "the model itself", why=why) for name, why in stay
    ]
    return joined(shown) or "it has no layers with parameters that feed another"


def _realise(
    calibration: Calibration, done: Walk
) -> tuple[nn.Module, bool, list[str] | dict[str, str]]:
    """Write the new weights into a copy, cut it, and compare it with the masked twin: the smaller
    model, whether modules' own widths changed, and remarks; or the groups to blame, each with what
    goes wrong.
    """
    full = duplicate(calibration.model)
    structure = calibration.structure
    kept = {name: list(g.kept) for name, g in done.groups.items()}
    new = {*done.rewritten, *done.renewed}
    set_tensors(full, {name: done.tensors[name] for name in new})
    first = calibration.batches[0]
    # recorded only where it is needed
    few = functools.cache(lambda: few_inputs(full, structure, first))
    cut = attempt(full, structure, kept, first.inputs, few=few)
    remark = cut.match.remark
    if not cut.match.problem:
        return cut.model, cut.eager, [remark] if remark else []

    def problem(some: Mapping[str, Sequence[int]]) -> str:
        return attempt(
            full, structure, some, few().inputs, program=few().program, share=True
        ).match.problem

    # Where the few inputs show nothing wrong, nobody in particular is to blame: all are.
    return cut.model, cut.eager, blame(kept, problem) or dict.fromkeys(kept, cut.match.problem)


def method(
    name: str,
    *,
    target: str | Target = "sequential",
    allocate: str | None = None,
    labels: bool = False,
    train_data: bool = False,
    runs: bool = True,
) -> Callable[[Callable[[View], Answer]], Callable[[View], Answer]]:
    """Register a ranking function as a method: ``@subprune.method("my-method")``.

    The function gets a `View` of one group and returns its units, best first. `target` says what
    the layers should give, `allocate` how a goal is shared out; `labels` and `train_data` are True
    where it needs labelled inputs or a labelled pool to draw from. With ``runs=False`` it sees
    statistics only, and groups may be ranked side by side.
    """
    if not isinstance(name, str) or not name.strip():
        raise OptionError(
            f'a method needs a name, as in @subprune.method("my-method"); got {name!r:.80}'
        )
    if isinstance(target, str):
        _check_choice(name, "target", target, TARGETS)
        target = TARGETS[target]
    if allocate is not None:
        _check_choice(name, "allocate", allocate, ALLOCATORS)

    def register(function: Callable[[View], Answer]) -> Callable[[View], Answer]:
        if not callable(function):
            raise OptionError(f"method {name!r} must be a function of a View, got {function!r:.80}")
        if name in METHODS:
            raise OptionError(f"there is a method named {name!r} already; choose another name")
        needs = {"labels": labels, "pool": train_data, "runs": runs}
        METHODS[name] = of_function(function, name, target=target, allocate=allocate, **needs)
        return function

    return register


def _check_choice(name: str, option: str, value: object, allowed: Iterable[str]) -> None:
    names = list(allowed)
    if value not in names:
        near = closest(str(value), names)
        raise OptionError(
            f"method {name!r}: {option}={value!r}: {near}allowed are {', '.join(names)}"
        )
