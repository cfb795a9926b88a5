"""`prune`: the whole way on one screen."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from torch import nn

from subprune import budget
from subprune.budget import Demand, Rounding
from subprune.cut.check import Check, blame, check_groups, few_inputs
from subprune.cut.model_config import sync_config
from subprune.cut.surgery import attempt, broken, duplicate, set_tensors
from subprune.cut.twin import model_outputs
from subprune.data.batches import batches, take
from subprune.errors import BudgetError, DataError, OptionError, StructureError
from subprune.forecast import Forecast, forecast
from subprune.loop.ranking import in_order
from subprune.loop.walk import Walk, walk
from subprune.measure.stopwatch import Stopwatch
from subprune.options import Options, PruneOptions, named_options
from subprune.program.accept import check_model
from subprune.program.borrow import given_back
from subprune.program.record import not_taken
from subprune.progress import Progress, Step, progress_bar
from subprune.result import Result, make_result
from subprune.select.presets import find_method
from subprune.statistics.batchnorm import recalibrate
from subprune.statistics.calibrate import Calibration
from subprune.structure import Group
from subprune.structure.choose import choose_groups

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["Result", "prune"]


@overload
def prune(
    model: nn.Module, data: Any, *, dry_run: Literal[True], **options: Unpack[PruneOptions]
) -> Forecast: ...


@overload
def prune(
    model: nn.Module, data: Any, *, dry_run: Literal[False] = False, **options: Unpack[PruneOptions]
) -> Result: ...


@named_options
@given_back
def prune(
    model: nn.Module,
    data: Any,
    *,
    compression: float | None = None,
    speedup: float | None = None,
    params: str | float | None = None,
    flops: str | float | None = None,
    latency: str | float | None = None,
    keep: float | None = None,
    budgets: Mapping[str, int] | None = None,
    method: str = "asym-in-change",
    allocate: str | None = None,
    reweight: bool = True,
    ridge: float | None = None,
    folds: int | None = None,
    epsilon: float | None = None,
    patches: str = "all",
    batchnorm: str = "keep",
    train_data: Any = None,
    verify_data: Any = None,
    cache: str | Path | None = None,
    round_to: int | None = None,
    only: Any = None,
    ignore: Any = None,
    n_samples: int | None = 512,
    forward: Callable[[Any], Any] | None = None,
    seed: int = 0,
    time_calls: bool | None = None,
    dry_run: bool = False,
    progress: bool | Callable[[Step], None] | None = None,
) -> Result | Forecast:
    """A smaller model that does what `model` does on inputs like `data`. The model given is not
    changed.

    `data` needs no labels: a tensor or NumPy array, a tuple ``(inputs, labels)``, a Dataset, a
    DataLoader, or an iterable of tensors, tuples or dicts, batches or single samples. `forward`
    turns an item into the model's arguments where that does not fit.

    Args:
        model: any trained `torch.nn.Module` in float32 or float64.
        data: a few hundred inputs like those the model will see, in any floating precision.
        compression: target: parameters before / after. Give exactly one target.
        speedup: target: FLOPs before / after.
        params: target: parameters left, a number or a share such as ``"50%"``.
        flops: target: FLOPs left for one input, a number or a share such as ``"50%"``.
        latency: target: milliseconds a call on the first batch takes, or a share such as ``"60%"``; measured here
            and now, by cutting candidates and timing them. The report says what the result takes.
        keep: target: fraction of the units of every group.
        budgets: target: units to keep, by group; groups that are not named stay whole.
        method: who chooses the units; see ``subprune methods``.
        allocate: how the target is shared out over the groups: "balanced", "knapsack", "error", "uniform",
            "equal-accuracy" (labelled `verify_data`), "equal-agreement", "score" or "sampling"; the
            method's own, or "balanced".
        reweight: rewrite the weights of what reads the units, by least squares.
        ridge: strength that draws new weights toward the old ones, relative to the inputs' mean energy; None chooses it
            on held-out inputs, 0 is the paper's plain fit.
        folds: into how many parts the inputs are divided; each is judged by a model fitted without it. None: 4, or 1
            with ``ridge=0``, where nothing is held out.
        epsilon: between 0 and 1 for stochastic greedy.
        patches: "all", or "random" patches of each image.
        batchnorm: "recalibrate" takes BatchNorm statistics anew on `data` at the end; "sequential" layer after layer
            on the way, so that later layers are chosen and reweighted for what the smaller model
            computes.
        train_data: the labelled pool of ``layer-greedy-fs-fd``.
        verify_data: labelled data for "equal-accuracy", and for the accuracy in the report.
        cache: folder for accuracy curves, which are used again for other targets and after a break.
        round_to: numbers of units are multiples of this (8 or 16 suit most hardware); 8 for `latency`, else 1.
        only: prune these groups and no others: names of groups or modules, with wildcards too (``"layer*.conv1"``),
            ``"re:…"`` patterns, module types, modules, or a list of these. A container stands for
            all layers in it. Residual streams are pruned only if named themselves.
        ignore: leave these alone; given like `only`.
        n_samples: how many inputs are used, drawn at random from all of `data` by `seed`, or the first of a stream;
            if there are no more, all in their own order. None takes all.
        forward: function from an item of `data` to the model's arguments.
        seed: of everything random.
        time_calls: measure both models' latency for the report: on the first batch (True, or with `latency`), on one
            input (None), or not at all (False).
        dry_run: return a `Forecast` of what would go and what it would cost; nothing is pruned.
        progress: None (a bar where somebody looks), True, False, or a function that gets every `Step`.

    Returns:
        A `Result` with the smaller model, the plan and the report; a `Forecast` with
        ``dry_run=True``.
    """
    options = Options(
        method=method,
        allocate=allocate,
        budgets=budgets,
        keep=keep,
        compression=compression,
        speedup=speedup,
        params=params,
        flops=flops,
        latency=latency,
        only=only,
        ignore=ignore,
        reweight=reweight,
        ridge=ridge,
        folds=folds,
        epsilon=epsilon,
        patches=patches,
        batchnorm=batchnorm,
        round_to=round_to,
        n_samples=n_samples,
        seed=seed,
        time_calls=time_calls,
    )
    watch = Stopwatch()
    check_model(model)
    check_call(forward, cache, dry_run)
    more = train_data is not None or verify_data is not None
    with progress_bar({**STAGES, "setup": 3 + more}, progress) as tick:
        tick("reading data")
        given = take(data, model, n_samples, forward=forward, seed=seed)
        watch.lap("reading data")
        tick("recording the model")
        calibration = Calibration.of(model, given.batches, options.parts)
        tick("trying the cuts")
        checked = _groups(calibration, options)
        watch.lap("structure")
        if more:
            tick("reading the other data")
        pool, verify = (_more(calibration, extra, forward) for extra in (train_data, verify_data))
        watch.lap("reading data")
        demand = _demand(calibration, checked, options, pool, verify, cache, tick)
        if dry_run:
            tick.plan(budgets=demand.steps(options.rule, latency), pruning=0, check=0, measuring=0)
            tick.enter("budgets")
            return forecast(demand, options.rule, latency)
        steps = {"pruning": len(budgets or checked.able), "measuring": 2 if verify is None else 3}
        tick.plan(budgets=demand.steps(options.rule, latency), **steps)
        done, left, small, eager = _walk_and_cut(demand, options, tick, watch)
        done.notes[:0] = checked.notes
        done.notes += [*given.remarks, *_finish(small, calibration, done, batchnorm)]
        watch.lap("check")
        tick.enter("measuring")
        return make_result(
            calibration,
            small,
            left,
            done,
            options,
            watch=watch,
            eager=eager,
            verify=verify,
            tick=tick,
        )


STAGES = {"setup": 3, "budgets": 1, "pruning": 1, "check": 1, "measuring": 2}
"""The stages of the work, and their steps before the groups are known."""


def _more(
    calibration: Calibration, data: Any, forward: Callable[[Any], Any] | None
) -> Calibration | None:
    """Other data for the same model, all of it."""
    return (
        None
        if data is None
        else calibration.on(batches(data, calibration.model, None, forward=forward))
    )


def _demand(
    calibration: Calibration,
    checked: Check,
    options: Options,
    pool: Calibration | None,
    verify: Calibration | None,
    cache: str | Path | None,
    tick: Progress,
) -> Demand:
    """What the budget rules may look at."""
    return Demand(
        calibration,
        checked.able,
        find_method(options.method),
        Rounding(options.multiple, checked.multiples),
        options.reweight,
        choices={
            "seed": options.seed,
            "epsilon": options.epsilon,
            "patches": options.patches,
            "train_data": pool,
        },
        verification=verify,
        cache=None if cache is None else Path(cache),
        tick=lambda _, group: tick(f"curve of {group.name}"),
        say=tick,
        **{
            k: getattr(options, k)
            for k in ("budgets", "keep", "compression", "speedup", "params", "flops")
        },
    )


def _walk_and_cut(
    demand: Demand, options: Options, tick: Progress, watch: Stopwatch
) -> tuple[Walk, list[Group], nn.Module, bool]:
    """Walk, then cut and check. Groups that turn out not to be cut to the chosen widths are left
    whole, and the walk is made again without them: those after them were fitted to what they
    gave.
    """
    tick.enter("budgets")
    counts = _counts(demand, options)
    watch.lap("budgets")
    notes: list[str] = []
    while True:
        tick.enter("pruning")
        done, left = _walk(demand, counts, options, tick)
        watch.lap("pruning")
        tick.enter("check")
        tick("cutting and checking")
        small, eager, said = _realise(demand.calibration, done)
        watch.lap("check")
        if not isinstance(said, dict):
            done.notes += [*notes, *said]
            return done, left, small, eager
        notes += [
            f"left whole: {name} cannot be cut to this width, {why}" for name, why in said.items()
        ]
        counts, demand, missed = _without(demand, counts, said, options)
        notes += [f"target missed: {missed}"] if missed else []


def _counts(demand: Demand, options: Options) -> dict[str, int]:
    """The target, shared out over the groups."""
    rule = options.rule
    return (
        demand.counts(rule)
        if options.latency is None
        else budget.by_latency(demand, rule, options.latency)
    )


def _without(
    demand: Demand, counts: dict[str, int], failed: Mapping[str, str], options: Options
) -> tuple[dict[str, int], Demand, str]:
    """The target shared out over the other groups; if they cannot meet it, the widths they had, and
    why.
    """
    structure = demand.calibration.structure
    demand.calibration.structure = replace(structure, refused={**structure.refused, **failed})
    left = {name: k for name, k in counts.items() if name not in failed}
    if not left:
        raise StructureError(broken(structure, failed, next(iter(failed.values()))))
    smaller = copy.copy(demand)  # with the curves that were computed already
    smaller.groups = [g for g in demand.groups if g.name not in failed]
    if options.budgets is not None:
        return left, smaller, ""
    try:
        return _counts(smaller, options), smaller, ""
    except BudgetError as error:
        return left, smaller, str(error)


def _walk(
    demand: Demand, counts: Mapping[str, int], options: Options, tick: Callable[[str], None]
) -> tuple[Walk, list[Group]]:
    """Rank, choose and reweight group after group."""
    left = [g for g in demand.groups if g.name in counts]
    done = walk(
        demand.calibration,
        left,
        demand.method,
        counts,
        reweight=options.reweight,
        ridge=options.ridge,
        renew=options.batchnorm == "sequential",
        **demand.choices,
        tick=lambda stage, g: tick(f"pruning {g.name}") if stage == "rank" else None,
    )
    return done, left


def _finish(small: nn.Module, calibration: Calibration, done: Walk, batchnorm: str) -> list[str]:
    """What else the smaller model needs; remarks for the report."""
    notes = sync_config(
        small, calibration.structure, {name: d.kept for name, d in done.decisions.items()}
    )
    if batchnorm == "recalibrate":
        layers = recalibrate(small, calibration.given)
        notes = [*notes, f"BatchNorm statistics re-estimated in {len(layers)} layers"]
    if batchnorm == "sequential":
        notes = [
            *notes,
            f"BatchNorm statistics re-estimated in {len(done.renewed) // 2} layers, one after another",
        ]
    return list(notes)


def check_call(forward: object, cache: object, dry_run: object) -> None:
    """Refuse wrong types of what is not kept with the plan."""
    if forward is not None and not callable(forward):
        raise OptionError(
            f"forward must be a function from an item of data to the model's arguments, got {forward!r}"
        )
    if cache is not None and not isinstance(cache, str | Path):
        raise OptionError(f"cache must be a folder, got {cache!r}")
    if not isinstance(dry_run, bool):
        raise OptionError(f"dry_run must be True or False, got {dry_run!r}")


def _groups(calibration: Calibration, options: Options) -> Check:
    """The groups to prune, in forward order, each of them tried out; budgets may name residual
    streams too.
    """
    only, ignore, budgets = options.only, options.ignore, options.budgets
    structure = calibration.structure
    chosen = choose_groups(structure, calibration.model, only, ignore, budgets)
    tried = in_order([g for g in chosen if budgets is None or g.name in budgets])
    checked = check_groups(
        calibration.model, structure, tried, calibration.batches[0], options.multiple
    )
    if checked.refused and not checked.able:
        _check_run(calibration)
    for option, named in (("only", only), ("budgets", budgets)):
        for name, why in checked.refused.items():
            if named is not None and name in list(named):
                raise BudgetError(f"{option}= names {name!r}, which cannot be cut: {why}")
    calibration.structure = replace(structure, refused={**structure.refused, **checked.refused})
    able = in_order([g for g in chosen if g.name not in checked.refused])
    if not able:
        left = "" if only is None and ignore is None else " of what only= and ignore= leave"
        raise BudgetError(f"nothing in the model{left} can be pruned: {_reasons(calibration)}")
    return replace(checked, able=tuple(able))


def _check_run(calibration: Calibration) -> None:
    """Fake tensors are taken where real ones are not (whole numbers by a linear layer): not the
    cut's fault.
    """
    inputs = calibration.given[0].inputs
    try:
        model_outputs(calibration.model, inputs)
    except StructureError as error:
        cause = error.__cause__
        raise DataError(not_taken(inputs, "the calibration data", cause or error)) from error


def _reasons(calibration: Calibration) -> str:
    refused = calibration.structure.refused
    others = {g.name: g.obstacle for g in calibration.structure.groups if not g.inner}
    shown = [f"{name}: {why}" for name, why in {**others, **refused}.items()]
    return "; ".join(shown[:5]) or "it has no layers with parameters that feed another"


def _realise(
    calibration: Calibration, done: Walk
) -> tuple[nn.Module, bool, list[str] | dict[str, str]]:
    """Write the new weights into a copy, cut it, and compare it with the masked twin: the smaller
    model, whether modules' own widths changed, and remarks; or the groups to blame, each with what
    goes wrong.
    """
    full = duplicate(calibration.model)
    structure = calibration.structure
    kept = {name: list(d.kept) for name, d in done.decisions.items()}
    weights = {c.use.weight for g in structure.groups if g.name in kept for c in g.reweightable}
    set_tensors(full, {name: done.tensors[name] for name in (*weights, *done.renewed)})
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
