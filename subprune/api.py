"""`prune`: the whole way on one screen."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from subprune import budget, measure
from subprune.batchnorm import recalibrate
from subprune.budget import Demand, Rounding
from subprune.calibrate import Calibration
from subprune.data import Batch, batches
from subprune.errors import BudgetError, DataError, OptionError
from subprune.methods import find_method
from subprune.options import Options
from subprune.plan import GroupPlan, Plan
from subprune.progress import Step, progress_bar
from subprune.report import Report
from subprune.storage import describe_inputs
from subprune.structure import Group
from subprune.surgery import prove, set_tensor
from subprune.walk import Decision, Walk, in_order, walk

__all__ = ["Result", "prune"]


@dataclass(frozen=True)
class Result:
    """The smaller model, the plan that made it, and what was measured."""

    model: nn.Module
    plan: Plan
    report: Report

    def __repr__(self) -> str:
        return str(self.report)


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
    verify_data: Any = None,
    cache: str | Path | None = None,
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
    `allocate` is the budget rule: "error", "uniform", "equal-accuracy" (labelled `verify_data`),
    "equal-agreement", "score" or "sampling"; the method's own, or "error", unless given. Accuracy curves are
    kept in the folder `cache` and used again for other targets. ``batchnorm="recalibrate"`` takes BatchNorm
    statistics anew on `data`, at the end. `train_data` is the labelled pool of ``layer-greedy-fs-fd``.
    """
    chosen = find_method(method)
    rule = allocate or chosen.allocate or "error"
    options = Options(
        method, rule, budgets, keep, compression, speedup, reweight, epsilon, patches, batchnorm, round_to,
        n_samples, seed,
    )  # fmt: skip
    started = time.perf_counter()
    check_model(model)
    taken = batches(data, model, n_samples, forward=forward)
    calibration = Calibration.of(model, taken)
    pool = None if train_data is None else calibration.on(batches(train_data, model, None, forward=forward))
    verify = None if verify_data is None else calibration.on(batches(verify_data, model, None, forward=forward))
    choices = {"seed": seed, "epsilon": epsilon, "patches": patches, "train_data": pool}
    groups = in_order(calibration.structure.inner())
    if not groups:
        raise BudgetError(f"nothing in the model can be pruned: {_reasons(calibration)}")
    with progress_bar(2 * len(groups), progress) as tick:
        demand = Demand(
            calibration, groups, chosen, Rounding(round_to), reweight, budgets, keep, compression, speedup, choices,
            verify, None if cache is None else Path(cache), lambda _, g: tick(f"curve of {g.name}"),
        )  # fmt: skip
        counts = budget.allocate(demand, rule)
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
    plan = Plan(options.method, options.to_dict(), parts, describe_inputs(first))
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
