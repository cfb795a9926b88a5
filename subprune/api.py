"""`prune`, the whole way on one screen; `forecast`, its first half, and `calibrate`, before a goal."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.utils._pytree import tree_flatten

from subprune.budget.cache import fingerprint
from subprune.budget.latency import by_latency
from subprune.cutting.check import blame, few_inputs
from subprune.cutting.model_config import check_promise, find_fields, sync_config
from subprune.cutting.surgery import attempt, broken, duplicate, set_tensors
from subprune.errors import BudgetError, OptionError, StructureError
from subprune.io.checkpoint import kept_steps
from subprune.keywords import takes
from subprune.loop.walk import Walk, walk
from subprune.measure.stopwatch import Stopwatch
from subprune.messages import Message, listed
from subprune.options.checks import GOALS
from subprune.options.options import Options
from subprune.options.several import several_goals
from subprune.options.table import OPTIONS
from subprune.program.accept import check_model
from subprune.program.borrow import given_back
from subprune.program.cores import use_threads
from subprune.program.ranks import sharing
from subprune.progress import Progress, progress_bar
from subprune.reading.reader import from_path
from subprune.ready import Calibrated, Ready, Same, make_ready
from subprune.report.forecast import Forecast, make_forecast
from subprune.result import Result, make_result
from subprune.statistics.batchnorm import recalibrate

if TYPE_CHECKING:
    from subprune.budget.demand import Demand
    from subprune.data.batches import Taken
    from subprune.loop.journal import Journal
    from subprune.program.ranks import Ranks
    from subprune.progress import Step
    from subprune.statistics.calibration import Calibration
    from subprune.structure.groups import Group

__all__ = ["calibrate", "forecast", "prune"]


def calibrate(model: nn.Module, data: Any, **options: Any) -> Calibrated:
    """Everything that goals for the same model and data have in common, done once: inputs are read,
    the model is recorded, cuts are tried, and what budgets are divided by is measured.

    What comes back goes where data goes, as often as there are goals:

        ready = subprune.calibrate(model, images)
        half = subprune.prune(model, ready, compression=2)
        quarter = subprune.prune(model, ready, compression=4)

    Each of them is what it would be by itself. A goal in other options (another method, other
    layers) shares what does not depend on them.

    Args:
        model: as for `prune`. It must not change before it is pruned.
        data: as for `prune`. An iterator is read once; tensors are not copied, and must not change.
        **options: as for `prune`, but for the goal.

    Returns:
        A `Calibrated`, which keeps the inputs in memory.
    """
    goals = [name for name in GOALS if options.get(name) is not None]
    if goals:
        words = (
            "calibrate comes before the goal: give {given} to prune, with what calibrate returns"
        )
        raise OptionError(Message(words, given=listed(goals, " and ")))
    if isinstance(data, Calibrated):
        raise OptionError("these inputs are calibrated already: give them to prune, with a goal")
    return _calibrated(model, data, **{**options, GOALS[0]: 1.0})


@takes(Options)
@given_back
def _held(model: nn.Module, data: Any, options: Options) -> Calibrated:
    """The inputs alone, for several goals, of which this is the first."""
    with _begun(model, options, {"setup": 1}) as (ranks, tick):
        tick("reading data")
        held = _read(model, data, options, keep=True)
        ranks.share(None)  # nobody goes on to the first goal if one could not read
        return held


@several_goals(GOALS, Options, _held, Calibrated)
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

    One of them may be a list, compression=[2, 4, 8]: then the result is a list too, and what does
    not depend on the goal is done once. For goals that are not known yet, `calibrate` does that.

    Args:
        model: any trained `torch.nn.Module` in float32, float64, bfloat16 or float16; the smaller
            one has the same types.
        data: a few hundred inputs like those the model will see, in any floating precision; or what
            `calibrate` made of them.

    Returns:
        A `Result` with the smaller model, the plan and the report.
    """
    watch = Stopwatch()
    options = _fitting(model, data, options)
    with _begun(model, options, _stages(options)) as (ranks, tick):
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
    options = _fitting(model, data, options)
    with _begun(model, options, _stages(options)) as (ranks, tick):
        demand = _ready(model, data, options, tick, Stopwatch(), ranks).demand
        steps = demand.steps()
        tick.plan(budgets=steps, pruning=0, check=0, measuring=0)
        tick.enter("budgets")
        return make_forecast(demand)


@takes(Options)
@given_back
def _calibrated(model: nn.Module, data: Any, options: Options) -> Calibrated:
    """As if for a goal that every model meets: budgets are divided by what is measured here."""
    with _begun(model, options, _stages(options)) as (ranks, tick):
        tick("reading data")
        held = _read(model, data, options, keep=True)
        demand = _ready(model, held, options, tick, Stopwatch(), ranks).demand
        tick.plan(budgets=demand.steps(), pruning=0, check=0, measuring=0)
        tick.enter("budgets")
        demand.counts()
        ranks.share(None)  # what has ended the call of one rank ends that of all
        return held


@contextlib.contextmanager
def _begun(
    model: nn.Module, options: Options, stages: Mapping[str, int]
) -> Iterator[tuple[Ranks, Progress]]:
    """Who shares a call, and whom it tells of its progress; the model is looked at first."""
    use_threads(options.threads)
    check_model(model)
    with (
        sharing(options.distributed) as ranks,
        progress_bar(stages, _shown(options, ranks)) as tick,
    ):
        yield ranks, tick


def _fitting(model: nn.Module, data: Any, options: Options) -> Options:
    """The options with those that were settled when the inputs were calibrated, if they were."""
    if not isinstance(data, Calibrated):
        return options
    if data.model is not model:
        raise OptionError(
            f"these inputs were calibrated for another {type(data.model).__name__}: call "
            "subprune.calibrate with this model"
        )
    for what, now, then in zip(
        ("model or its weights", "inputs"), _state(model, data), data.state, strict=True
    ):
        if now != then:
            raise OptionError(
                f"the {what} have changed since the inputs were calibrated: call "
                "subprune.calibrate again"
            )
    settled: dict[str, Any] = {
        "n_samples": data.n_samples,
        "forward": data.forward,
        "seed": data.seed,
    }
    for name, value in settled.items():
        given = getattr(options, name)
        if given != OPTIONS[name].default and given != value:
            words = f"{{{name}:name}} was settled by calibrate, {{was!r}}; got {{got!r}}"
            raise OptionError(Message(words, was=value, got=given))
    return replace(options, **settled)


STAGES = {"setup": 3, "budgets": 1, "pruning": 1, "check": 1, "measuring": 2}
"""The stages of the work, and their steps before the groups are known."""


def _ready(
    model: nn.Module,
    data: Any,
    options: Options,
    tick: Progress,
    watch: Stopwatch,
    ranks: Ranks,
) -> Ready:
    """Read the data, record the model, find the groups and try to cut them."""
    tick("reading data")
    held = data if isinstance(data, Calibrated) else _read(model, data, options)
    others = [
        held.once(("path", Same(x)), functools.partial(from_path, x, model))
        for x in (options.train_data, options.verify_data)
    ]
    watch.lap("reading data")
    return make_ready(held, others, options, tick, watch, ranks)


def _read(model: nn.Module, data: Any, options: Options, *, keep: bool = False) -> Calibrated:
    """keep: for later calls, before which somebody may change the model or the inputs."""
    remarks: list[str] = []
    read = from_path(data, model, options.n_samples, options.seed, remarks.append)
    held = Calibrated.of(model, read, options)
    held = replace(held, remarks=(*remarks, *held.remarks))
    return replace(held, state=_state(model, held)) if keep else held


def _state(model: nn.Module, held: Taken) -> tuple[str, str]:
    """Hashes of the model and of the inputs: of all that what is made of them depends on."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    parts = [x for b in held.batches for x in tree_flatten((b.inputs, b.labels))[0]]
    return fingerprint(repr(model), *(x for pair in tensors for x in pair)), fingerprint(*parts)


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
    inputs_here = sum(batches[i].size for i in calibration.own)
    return [
        f"{ranks.count} ranks shared the work: rank {ranks.rank} ran {inputs_here:,} of "
        f"{sum(b.size for b in batches):,} inputs and sent {ranks.bytes / 1e6:,.1f} MB in "
        f"{ranks.exchanges:,} exchanges; all ranks have the same model"
    ]


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


def _realise(
    calibration: Calibration, done: Walk
) -> tuple[nn.Module, bool, list[str] | dict[str, str]]:
    """Write the new weights into a copy, cut it, and compare it with the masked twin: the smaller
    model, whether modules' own widths changed, and remarks; or the groups to blame, each with what
    goes wrong.
    """
    full = duplicate(calibration.model, share=True)  # tensors are replaced, never written into
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
