"""`prune`: the whole way on one screen."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from subprune import budget, measure
from subprune.batchnorm import BATCHNORM, recalibrate
from subprune.calibrate import Calibration
from subprune.data import Batch, batches
from subprune.errors import BudgetError, DataError, OptionError, closest
from subprune.methods import Method, find_method
from subprune.plan import GroupPlan, Plan
from subprune.progress import Step, progress_bar
from subprune.registry import PATCHES
from subprune.report import Report
from subprune.storage import describe_inputs
from subprune.structure import Group
from subprune.structure.cost import CostModel
from subprune.surgery import prove, set_tensor
from subprune.walk import Decision, Walk, comparable_scores, curves, in_order, sensitivities, walk

__all__ = ["ALLOCATIONS", "Result", "prune"]

ALLOCATIONS = ("error", "uniform", "score", "sampling")


@dataclass(frozen=True)
class Result:
    """The smaller model, the plan that made it, and what was measured."""

    model: nn.Module
    plan: Plan
    report: Report

    def __repr__(self) -> str:
        return str(self.report)


@dataclass(frozen=True)
class Options:
    """All choices of one call, checked once."""

    method: str
    budgets: Mapping[str, int] | None
    keep: float | None
    compression: float | None
    speedup: float | None
    allocate: str
    reweight: bool
    epsilon: float | None
    patches: str
    batchnorm: str
    round_to: int
    n_samples: int | None
    seed: int

    def __post_init__(self) -> None:
        find_method(self.method)
        targets = {k: getattr(self, k) for k in ("budgets", "keep", "compression", "speedup")}
        given = [k for k, v in targets.items() if v is not None]
        if len(given) != 1:
            said = f"got {' and '.join(given)}" if given else "got none"
            raise OptionError(f"give exactly one target of {', '.join(targets)}; {said}")
        for name in ("compression", "speedup"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not value >= 1):
                raise BudgetError(f"{name} must be a ratio of at least 1 (before / after), got {value!r}")
        choices = {"allocate": ALLOCATIONS, "patches": PATCHES, "batchnorm": BATCHNORM}
        for name, allowed in choices.items():
            value = getattr(self, name)
            if value not in allowed:
                near = closest(str(value), allowed)
                raise OptionError(f"{name}={value!r}: {near}allowed are {', '.join(allowed)}")
        if self.epsilon is not None and not 0 < self.epsilon < 1:
            raise OptionError(f"epsilon of stochastic greedy must lie between 0 and 1, got {self.epsilon!r}")
        if isinstance(self.round_to, bool) or not isinstance(self.round_to, int) or self.round_to < 1:
            raise OptionError(f"round_to must be a positive integer, got {self.round_to!r}")


def prune(
    model: nn.Module,
    data: Any,
    *,
    method: str = "asym-in-change",
    budgets: Mapping[str, int] | None = None,
    keep: float | None = None,
    compression: float | None = None,
    speedup: float | None = None,
    allocate: str | None = None,
    reweight: bool = True,
    epsilon: float | None = None,
    patches: str = "all",
    batchnorm: str = "keep",
    train_data: Any = None,
    round_to: int = 1,
    n_samples: int | None = 512,
    forward: Callable[[Any], Any] | None = None,
    seed: int = 0,
    progress: bool | Callable[[Step], None] | None = None,
) -> Result:
    """A smaller model that does what `model` does on inputs like `data`.

    Give one target: ``compression=2`` (half the parameters), ``speedup=2`` (half the FLOPs), ``keep=0.5``
    (half the units of every group) or ``budgets={"conv1": 3}`` (units by group). `data` needs no labels: a
    tensor, a DataLoader, or an iterable of tensors, tuples or dicts. The model given is not changed.
    `allocate` is the method's own rule, or "error", unless given. ``batchnorm="recalibrate"`` takes BatchNorm
    statistics anew on `data`, at the end. `train_data` is the labelled pool of ``layer-greedy-fs-fd``.
    """
    chosen = find_method(method)
    allocate = allocate or chosen.allocate or "error"
    options = Options(
        method, budgets, keep, compression, speedup, allocate, reweight, epsilon, patches, batchnorm, round_to,
        n_samples, seed,
    )  # fmt: skip
    started = time.perf_counter()
    check_model(model)
    taken = batches(data, model, n_samples, forward=forward)
    calibration = Calibration.of(model, taken)
    pool = None if train_data is None else calibration.on(batches(train_data, model, None, forward=forward))
    choices = {"seed": seed, "epsilon": epsilon, "patches": patches, "train_data": pool}
    groups = in_order(calibration.structure.inner())
    with progress_bar(2 * len(groups), progress) as tick:
        counts = _counts(calibration, groups, chosen, options, choices, lambda _, g: tick(f"curve of {g.name}"))
        left = [g for g in groups if g.name in counts]
        done = walk(
            calibration, left, chosen, counts, reweight=reweight, **choices,
            tick=lambda stage, g: tick(f"pruning {g.name}") if stage == "rank" else None,
        )  # fmt: skip
    small = _realise(calibration, done)
    if batchnorm == "recalibrate":
        layers = recalibrate(small, taken)
        done.notes.append(f"BatchNorm statistics taken anew in {len(layers)} layers")
    return _result(calibration, small, left, done, options, time.perf_counter() - started)


def check_model(model: nn.Module) -> None:
    """Refuse what cannot be pruned faithfully: half precision, NaN or infinite weights, quantised layers."""
    if not isinstance(model, nn.Module):
        raise OptionError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    for name, x in [*model.named_parameters(), *model.named_buffers()]:
        if x.dtype in (torch.float16, torch.bfloat16):
            raise OptionError(
                f"the model is in half precision ({name} is {x.dtype}); call model.float() before pruning and "
                "convert the result back"
            )
        if x.is_floating_point() and x.device.type != "meta" and not bool(torch.isfinite(x).all()):
            raise DataError(f"the weights of layer {name.rpartition('.')[0]!r} ({name}) contain NaN or infinity")


def _counts(
    calibration: Calibration,
    groups: list[Group],
    method: Method,
    options: Options,
    choices: dict[str, Any],
    tick: Callable[[str, Group], None],
) -> dict[str, int]:
    """Units to keep in every group."""
    rounding = budget.Rounding(options.round_to)
    if not groups:
        raise BudgetError(f"nothing in the model can be pruned: {_reasons(calibration)}")
    if options.budgets is not None:
        return budget.explicit(groups, options.budgets)
    if options.keep is not None and options.allocate != "score":
        return budget.fraction(groups, options.keep, rounding)
    if options.allocate == "score":
        scores = comparable_scores(calibration, groups, method, tick=tick, **choices)
        if options.keep is not None:
            return budget.top_fraction(groups, scores, options.keep, rounding)
    cost = CostModel(calibration.model, calibration.structure)
    target = _target(cost, options)
    if options.allocate == "uniform":
        return budget.equal_fractions(groups, cost, target, rounding)
    if options.allocate == "score":
        return budget.by_score(groups, scores, cost, target, rounding)
    if options.allocate == "sampling":
        own = sensitivities(calibration, groups, method, tick=tick, **choices)
        return budget.by_sampling(groups, own, cost, target, rounding)
    found = curves(calibration, groups, method, tick=tick, **{**choices, "epsilon": None})
    return budget.by_error(groups, found, cost, target, rounding)


def _target(cost: CostModel, options: Options) -> budget.Target:
    if options.compression is not None:
        return budget.Target("params", int(cost.params({}) / options.compression), f"compression={options.compression}")
    assert options.speedup is not None
    return budget.Target("flops", int(cost.flops({}) / options.speedup), f"speedup={options.speedup}")


def _reasons(calibration: Calibration) -> str:
    refused = calibration.structure.refused
    others = {g.name: g.obstacle for g in calibration.structure.groups if not g.inner}
    shown = [f"{name}: {why}" for name, why in {**others, **refused}.items()]
    return "; ".join(shown[:5]) or "it has no layers with parameters that feed another"


def _realise(calibration: Calibration, done: Walk) -> nn.Module:
    """Write the new weights into a copy, cut it, and check it against the masked twin."""
    full = copy.deepcopy(calibration.model)
    kept = {name: d.kept for name, d in done.decisions.items()}
    weights = {c.use.weight for g in calibration.structure.groups if g.name in kept for c in g.reweightable}
    for name in weights:
        set_tensor(full, name, done.tensors[name])
    first: Batch = calibration.batches[0]
    return prove(full, calibration.structure, kept, first.inputs)


def _result(
    calibration: Calibration, small: nn.Module, groups: list[Group], done: Walk, options: Options, seconds: float
) -> Result:
    first = calibration.batches[0].inputs
    parts = tuple(_group_plan(g, done.decisions[g.name]) for g in groups)
    plan = Plan(options.method, asdict(options), parts, describe_inputs(first))
    dense = calibration.model
    report = Report(
        plan,
        (measure.count_parameters(dense), measure.count_parameters(small)),
        (measure.count_flops(dense, first), measure.count_flops(small, first)),
        sum(b.size for b in calibration.batches),
        seconds,
        float("nan"),
        dict(calibration.structure.refused),
        tuple(done.notes),
    )
    return Result(small, plan, report)


def _group_plan(group: Group, decision: Decision) -> GroupPlan:
    return GroupPlan(
        group.name,
        group.kind,
        group.n_units,
        decision.kept,
        tuple(c.name for c in group.consumers),
        decision.order,
        decision.errors,
        decision.error,
        decision.dependent,
        sum(s.rank for s in decision.solves),
        sum(s.columns for s in decision.solves),
        decision.seconds,
    )
