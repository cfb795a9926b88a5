"""What `prune` gives back, and the measurements that go into it."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import safetensors
import torch
from torch import Tensor, nn

from subprune import measure
from subprune.budget.latency import LatencyTarget
from subprune.budget.rules import missed
from subprune.calibrate import Calibration
from subprune.data import Batch, fingerprint, first_samples
from subprune.errors import OptionError
from subprune.options import Options
from subprune.plan import HISTORY, GroupPlan, Plan, history_of, unprovable
from subprune.program import flat_tensors
from subprune.record import eval_mode, plain
from subprune.report import GuaranteeLine, Layer, Report
from subprune.storage import describe_inputs
from subprune.structure import Group
from subprune.walk import Decision, Walk

if TYPE_CHECKING:
    from subprune.guarantees import Guarantees

__all__ = ["Result", "library_versions", "make_result"]


@dataclass(frozen=True)
class Result:
    """The smaller model, the plan that made it, and what was measured."""

    model: nn.Module
    plan: Plan
    report: Report

    def __repr__(self) -> str:
        return str(self.report)

    def _repr_html_(self) -> str:
        return self.report._repr_html_()

    def with_guarantees(self, found: Guarantees) -> Result:
        """The same result with `subprune.guarantees.guarantees` of its budgets in the report."""
        why = unprovable(self.plan.method, self.plan.options)
        if why:
            raise OptionError(why)
        lines = []
        for g in found.groups:
            for b in g.budgets:
                lines.append(GuaranteeLine(g.name, b.k, b.error, b.bound, b.gamma, g.assumptions))
        return replace(self, report=replace(self.report, guarantees=tuple(lines)))


def library_versions() -> dict[str, str]:
    """What the result was made with."""
    from subprune import __version__

    return {
        "subprune": __version__,
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "safetensors": str(safetensors.__version__),
        "python": platform.python_version(),
    }


def make_result(
    calibration: Calibration,
    small: nn.Module,
    groups: Sequence[Group],
    done: Walk,
    options: Options,
    *,
    seconds: float,
    eager: bool,
    verify: Calibration | None,
) -> Result:
    """Plan and report of a finished pruning."""
    dense, first = calibration.model, calibration.batches[0]
    tensors = {**dict(dense.named_parameters()), **dict(dense.named_buffers())}
    parts = tuple(_group_plan(g, done.decisions[g.name], tensors) for g in groups)
    data = fingerprint(calibration.batches)
    plan = Plan(options.method, options.to_dict(), parts, describe_inputs(first.inputs), eager, data)
    setattr(small, HISTORY, (*history_of(dense), plan.to_stored()))
    same, change, accuracy = _compare(done.dense.finish(), _outputs(small, calibration.batches), calibration.batches)
    if verify:
        accuracy = _compare(_outputs(dense, verify.batches), _outputs(small, verify.batches), verify.batches)[2]
    timing = _timing(dense, small, first, options)
    report = Report(
        plan,
        (measure.count_parameters(dense), measure.count_parameters(small)),
        (measure.count_flops(dense, first.inputs), measure.count_flops(small, first.inputs)),
        sum(b.size for b in calibration.batches),
        seconds,
        same,
        _skipped(calibration, groups),
        (*done.notes, *_remarks(plan, options, verify, accuracy), *timing.notes),
        output_change=change,
        accuracy=accuracy,
        accuracy_on="the verification data" if verify else "the calibration data",
        latency=timing.latency,
        latency_inputs=timing.inputs,
        latency_calls=timing.calls,
        batch=first.size,
        model=type(dense).__name__,
        layers=layers(calibration, small),
        versions=library_versions(),
    )
    return Result(small, plan, report)


def _remarks(
    plan: Plan, options: Options, verify: Calibration | None, accuracy: tuple[float, float] | None
) -> Iterator[str]:
    """What came out otherwise than asked for, or was measured on other data than one would think."""
    if options.keep is not None:
        units = {g.name: g.units for g in plan.groups}
        if said := missed(options.keep, units, plan.counts, together=options.rule == "score"):
            yield said
    if verify is None and options.rule == "equal-accuracy":
        yield (
            "budgets by equal accuracy were measured on the calibration data, which flatters; give verify_data with "
            "labelled inputs that are not calibrated on"
        )
    if verify is not None and accuracy is None:
        yield (
            "no accuracy was measured: verify_data has no labels, or none that are class numbers of the outputs; give "
            "(inputs, labels)"
        )


def _group_plan(group: Group, decision: Decision, tensors: Mapping[str, Tensor]) -> GroupPlan:
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
        decision.rank,
        decision.columns,
        decision.seconds,
        {slot.tensor: tuple(tensors[slot.tensor].shape) for slot in group.slots},
    )


def _skipped(calibration: Calibration, pruned: Sequence[Group]) -> dict[str, str]:
    """Everything with units that was left whole, and why."""
    return calibration.structure.left_whole({g.name for g in pruned})


def layers(calibration: Calibration, small: nn.Module) -> tuple[Layer, ...]:
    """Layers with a weight matrix in the order they run, with their widths before and after."""
    program = calibration.structure.program
    before = dict(calibration.model.named_parameters())
    after = dict(small.named_parameters())
    names = {vid: name for name, vid in program.tensors.items()}
    order = dict.fromkeys(names[v] for op in program.ops for v in op.inputs if v in names)
    made = {c.use.weight: c.use.out_dim for g in calibration.structure.groups for c in g.consumers}
    for g in calibration.structure.groups:
        made.update({s.tensor: s.dim for s in g.slots if s.role == "producer"})
    found: list[Layer] = []
    for name in order:
        if name not in before or before[name].ndim < 2:
            continue
        owner = name.rpartition(".")[0]
        kind = type(calibration.model.get_submodule(owner)).__name__
        dim = made.get(name, 1 if kind in ("Embedding", "EmbeddingBag") else 0)
        found.append(Layer(owner or name, kind, before[name].shape[dim], after[name].shape[dim]))
    return tuple(found)


def _compare(
    before: Iterable[Tensor], after: Iterable[Tensor], batches: Sequence[Batch]
) -> tuple[float, float, tuple[float, float] | None]:
    """Share of samples with the same largest output (nan if there is but one), the relative change of
    outputs, and top-1 accuracy before and after, where every batch has one label per row of the output."""
    same = total = labelled = 0
    right = [0, 0]
    gap = energy = 0.0
    for a, b, batch in zip(before, after, batches, strict=True):
        if a.shape[-1:] != (1,) and a.ndim:
            same += int((a.argmax(-1) == b.argmax(-1)).sum())
            total += a.argmax(-1).numel()
        gap += float((a.double() - b.double()).square().sum())
        energy += float(a.double().square().sum())
        labels = batch.labels
        if labels is not None and _fits(labels, a):
            labelled += 1
            right = [n + int((x.argmax(-1) == labels).sum()) for n, x in zip(right, (a, b), strict=True)]
    nan = float("nan")
    accuracy = (right[0] / total, right[1] / total) if total and labelled == len(batches) else None
    return (same / total if total else nan), (gap / energy if energy else nan), accuracy


def _fits(labels: Tensor, output: Tensor) -> bool:
    """Whether there is one class number per row of the output."""
    if labels.is_floating_point() or output.shape[:-1] != labels.shape:
        return False
    return labels.numel() > 0 and int(labels.max()) < output.shape[-1]


def _outputs(model: nn.Module, batches: Sequence[Batch]) -> Iterator[Tensor]:
    """The first output tensor, batch by batch."""
    for batch in batches:
        with eval_mode(model), torch.no_grad():
            found = flat_tensors(plain(model(*batch.inputs[0], **batch.inputs[1])))[0]
        yield found  # outside: a generator that is left waiting must not hold the modes


@dataclass(frozen=True)
class _Timing:
    """Seconds per call before and after; what was called, and remarks."""

    latency: tuple[float, float] | None = None
    inputs: int = 0
    calls: int = 0
    notes: tuple[str, ...] = ()


_CALLS, _MANY_CALLS, _SECONDS = 20, 40, 2.0


def _timing(dense: nn.Module, small: nn.Module, batch: Batch, options: Options) -> _Timing:
    """Time both models on the first batch; where that takes long and nobody asked for it, on its first input."""
    if options.time_calls is False:
        return _Timing()
    models, asked = (dense, small), options.latency
    if options.time_calls or asked is not None:
        a, b = measure.side_by_side(models, batch.inputs, repeats=_CALLS if asked is None else _MANY_CALLS)
        notes = () if asked is None else (LatencyTarget(asked).verdict(a.median, b.median),)
        return _Timing((a.median, b.median), batch.size, a.repeats, notes)
    once = measure.latency(dense, batch.inputs, repeats=1, warmup=0).median
    timed = batch if 2 * _CALLS * once < _SECONDS else first_samples(batch, 1)
    try:
        a, b = measure.side_by_side(models, timed.inputs, repeats=_CALLS, seconds=_SECONDS)
    except Exception as error:  # a model that takes whole batches only
        return _Timing(notes=(f"latency was not measured, a call with one input failed ({type(error).__name__})",))
    return _Timing((a.median, b.median), timed.size, a.repeats)
