"""What `prune` gives back, and the measurements that go into it."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from subprune.budget.explicit import missed
from subprune.budget.latency import LatencyGoal
from subprune.data.batch import Batch, fingerprint, first_samples
from subprune.errors import OptionError
from subprune.io.pretrained import save_pretrained
from subprune.measure import measurements as measure
from subprune.measure.causality import predicts_next
from subprune.measure.compare import Comparison, Tally, compare
from subprune.measure.language import token_count
from subprune.messages import Message
from subprune.plan import HISTORY, Plan, history_of
from subprune.program import parallel
from subprune.program.shapes import describe_inputs
from subprune.report.figures import GuaranteeLine, LayerWidth, Report
from subprune.report.remarks import fit_remarks
from subprune.report.versions import library_versions
from subprune.statistics.batchnorm import stored_norms
from subprune.structure.cost import CostModel

if TYPE_CHECKING:
    from subprune.guarantees import Guarantees
    from subprune.loop.walk import Walk
    from subprune.measure.stopwatch import Stopwatch
    from subprune.options.options import Options
    from subprune.report.recovery import Recovery
    from subprune.statistics.calibration import Calibration
    from subprune.structure.groups import Group

__all__ = ["Result", "make_result"]


@dataclass(frozen=True)
class Result:
    """The smaller model, the plan that made it, and what was measured."""

    model: nn.Module
    plan: Plan
    report: Report
    dense: nn.Module | None = None  # the model that was pruned, itself and not a copy
    recovery: Recovery | None = None  # what `subprune.recover` brought

    def __repr__(self) -> str:
        return str(self.report)

    def _repr_html_(self) -> str:
        return self.report._repr_html_()

    def save_pretrained(self, folder: str | Path) -> Path:
        """Write the model, a card and the report to a folder, all or nothing; a folder that is
        another's is left alone.

        ``from_pretrained`` of transformers loads it, without this library, wherever the model's
        config can say what its layers have become; with ``uniform=True`` it can.
        """
        return save_pretrained(self, folder)

    def with_guarantees(self, guarantees: Guarantees) -> Result:
        """The same result with `subprune.guarantees.guarantees` of its budgets in the report."""
        if self.plan.unbounded:
            raise OptionError(self.plan.unbounded)
        self._check_same(guarantees)
        lines = []
        for g in guarantees.groups:
            words = (
                g.assumptions
                if guarantees.patches == "all"
                else (*g.assumptions, "at random patches of each image")
            )
            lines += [
                GuaranteeLine(
                    name=g.name,
                    k=b.k,
                    error=b.error,
                    bound=b.bound,
                    gamma=b.gamma,
                    assumptions=words,
                )
                for b in g.budgets
            ]
        return replace(self, report=replace(self.report, guarantees=tuple(lines)))

    def _check_same(self, guarantees: Guarantees) -> None:
        """Refuse bounds of another selection."""
        plan = self.plan
        expected = {"target": plan.target, "data": plan.data, "selection": plan.selection}
        if guarantees.patches == "random":
            expected["seed"] = plan.options.get("seed", 0)
        differing = [
            f"{name}={getattr(guarantees, name)!r} there, {x!r} here"
            for name, x in expected.items()
            if getattr(guarantees, name) != x
        ]
        # of other targets, every group depends on what the groups before have kept
        if guarantees.target != "layer":
            counts = {g.name: g.budgets[0].k for g in guarantees.groups}
            differing += (
                [f"budgets={counts} there, {plan.counts} here"] if counts != plan.counts else []
            )
        if differing:
            raise OptionError(
                f"the guarantees are about another selection ({'; '.join(differing)}): compute "
                "them with the same data, n_samples, patches, fit, ridge, folds, drift, seed and "
                "target, and with budgets=result.plan.counts"
            )


def make_result(
    calibration: Calibration,
    small: nn.Module,
    groups: Sequence[Group],
    done: Walk,
    options: Options,
    *,
    watch: Stopwatch,
    eager: bool,
    verify: Calibration | None,
    tick: Callable[[str], None] = lambda text: None,
) -> Result:
    """Plan and report of a finished pruning."""
    tick("comparing outputs")
    dense, first = calibration.model, calibration.given[0]
    plan = _plan(calibration, groups, done, options, eager)
    setattr(small, HISTORY, (*history_of(dense), plan.to_stored()))
    program = calibration.structure.program
    samples = sum(b.size for b in calibration.given)
    causal = predicts_next(dense, calibration.batches[0], program)
    fitted, held_out = _compared(calibration, small, done, options, causal)
    verified: Comparison | None = None
    if verify:
        tick("accuracy on the verification data")
        both = (measure.outputs(dense, verify.batches), measure.outputs(small, verify.batches))
        verified = compare(*both, verify.batches, program, causal)
    accuracy = (verified or held_out or fitted).accuracy
    tick("counting and timing")
    timing = _Timing()
    if calibration.ranks.rank == 0:  # with the others, it would time how they share the cores
        timing = _timing(dense, small, first, options)
    parameters = (measure.count_parameters(dense), measure.count_parameters(small))
    flops = (measure.flops_per_input(dense, first), measure.flops_per_input(small, first))
    shown = layers(calibration, small)
    cost, inputs = CostModel(dense, calibration.structure), max(1, calibration.batches[0].size)
    savings = {
        name: (saved, operations // inputs)
        for name, (saved, operations) in cost.savings(plan.kept).items()
    }
    watch.lap("measuring")
    report = Report(
        plan=plan,
        parameters=parameters,
        flops=flops,
        samples=samples,
        seconds=watch.seconds,
        fitted=fitted,
        held_out=held_out,
        refused=_skipped(calibration, groups),
        notes=(
            *done.notes,
            *_remarks(plan, groups, options, verified),
            *([] if accuracy or verified or causal else _odd_labels(calibration.given)),
            *fit_remarks(plan, samples),
            *timing.notes,
        ),
        accuracy=accuracy,
        accuracy_on="the verification data"
        if verify
        else "held-out inputs"
        if held_out
        else "the calibration data",
        verified=verified,
        **timing.figures(),
        model=type(dense).__name__,
        layers=shown,
        savings=savings,
        costs=cost.formula(tuple(plan.kept), inputs),
        command=options.call(dense),
        versions=library_versions(),
        parts=dict(watch.parts),
    )
    return Result(small, plan, report, dense)


def _plan(
    calibration: Calibration, groups: Sequence[Group], done: Walk, options: Options, eager: bool
) -> Plan:
    """What was decided, as data."""
    return Plan(
        method=options.recipe.name,
        target=options.recipe.target.name,
        used={
            "selector": options.recipe.selector.name,
            "fit": options.recipe.fit.name,
            "budgets": options.allocator.name,
        },
        options=options.to_dict(),
        groups=tuple(done.groups[g.name] for g in groups),
        refitted={name: figures.stages for name, figures in done.refitted.items()},
        inputs=describe_inputs(calibration.given[0].inputs),
        eager=eager,
        data=fingerprint(calibration.given),
        selection=options.recipe.selection,
        unbounded=options.unbounded,
    )


def _compared(
    calibration: Calibration, small: nn.Module, done: Walk, options: Options, causal: bool
) -> tuple[Comparison, Comparison | None]:
    """Outputs on the inputs that were fitted; and on inputs that were not, fold by fold, if there
    are folds.

    For the second, every fold runs through the masked model that was fitted without it; a fold that
    other things were fitted to does not count. Of a large model, only folds that have such a version
    are looked at, for either.
    """
    program = calibration.structure.program
    # Three runs over the same batches, one batch at a time: the dense run, which the walk left past
    # the last group; the masked versions, from the start; and the smaller model itself.
    folds = range(calibration.judged) if calibration.judged else range(1)
    own = [calibration.batches[i] for i in calibration.own]  # other ranks look at theirs
    looked = [not calibration.folds or calibration.folds[i] in folds for i in calibration.own]
    batches = list(itertools.compress(own, looked))
    fitted, held_out = Tally(program, causal), Tally(program, causal)
    unseen: Iterable[Tensor | None] = itertools.repeat(None, len(looked))
    if done.versions:
        run = calibration.start()
        run.versions, run.override, run.tensors = done.versions, done.override, done.tensors
        if options.batchnorm == "recalibrate":
            run.renew = stored_norms(program)
            run.advance(len(program.ops))
        unseen = run.finish(done.unseen)
    both_runs = zip(done.dense.finish(folds), unseen, strict=True)
    others = itertools.compress(both_runs, looked)
    pruned = measure.outputs(small, batches)
    for batch in batches:
        # The others run while the smaller model does.
        both = parallel.later(functools.partial(next, others), done.dense.on_cpu)
        with parallel.one_thread(not both.done()):
            after = next(pruned)
        before, apart = both.result()
        assert before is not None
        known: dict[str, Any] = {}  # about the dense model, for both
        fitted.add(before, after, batch, known)
        if apart is not None:
            held_out.add(before, apart, batch, known)
    for generator in (others, pruned):  # past their last output: none is left half-way
        next(generator, None)
    ranks = calibration.ranks
    return fitted.over(ranks).result(), held_out.over(ranks).result() if done.versions else None


def _remarks(
    plan: Plan, groups: Sequence[Group], options: Options, verified: Comparison | None
) -> Iterator[str]:
    """What differs from what was asked for, or was measured on data that one would not expect."""
    keep = options.goal.keep
    if keep is not None:
        together = options.allocator.pools_units
        remark = missed(keep, groups, plan.counts, together)
        yield from [remark] if remark else []
    if verified is None and options.allocator.needs_verification:
        yield Message(
            "budgets by equal accuracy were measured on the calibration data, which flatters; give "
            "{verify_data:name} with labelled inputs that are not calibrated on"
        )
    if verified is not None and not verified.judged:
        yield Message(
            "no accuracy was measured: {verify_data:name} has no labels, or none that are class "
            "numbers of the outputs; give (inputs, labels)"
        )


def _odd_labels(batches: Sequence[Batch]) -> Iterator[str]:
    """One whole number for every input, or a row with a single one in it, from which no accuracy
    could be made.
    """
    labels = [b.labels for b in batches if b.labels is not None]
    if labels and all(_one_hot(x) for x in labels):
        yield "no accuracy was measured: the labels are one-hot; give class numbers, labels.argmax(1)"
    elif labels and all(x.ndim == 1 and not x.is_floating_point() for x in labels):
        pairs = [(b.size, len(b.labels)) for b in batches if b.labels is not None]
        uneven = next(((inputs, count) for inputs, count in pairs if inputs != count), None)
        if uneven is not None:
            inputs, count = uneven
            yield (
                f"no accuracy was measured: a batch of {inputs} inputs has {count} labels; give one "
                "label for each input"
            )
            return
        low, high = min(int(x.min()) for x in labels), max(int(x.max()) for x in labels)
        yield (
            f"no accuracy was measured: the labels of the data, {low} to {high}, are not class "
            "numbers of the outputs"
        )


def _one_hot(labels: Tensor) -> bool:
    """Rows of zeros with a single one."""
    if labels.ndim != 2 or labels.shape[1] < 2:
        return False
    return bool(((labels == 0) | (labels == 1)).all() and (labels.sum(1) == 1).all())


def _skipped(calibration: Calibration, pruned: Sequence[Group]) -> dict[str, str]:
    """Everything with units that was left whole, and why."""
    return calibration.structure.left_whole({g.name for g in pruned})


def layers(calibration: Calibration, small: nn.Module) -> tuple[LayerWidth, ...]:
    """Layers with a weight matrix in the order they run, with their widths before and after."""
    program = calibration.structure.program
    before = dict(calibration.model.named_parameters())
    after = dict(small.named_parameters())
    names = {vid: name for name, vid in program.tensors.items()}
    order = dict.fromkeys(names[v] for op in program.ops for v in op.inputs if v in names)
    made = {c.use.weight: c.use.out_dim for g in calibration.structure.groups for c in g.consumers}
    for g in calibration.structure.groups:
        made.update({s.tensor: s.dim for s in g.slots if s.role == "producer"})
    rows: list[LayerWidth] = []
    for name in order:
        if name not in before or before[name].ndim < 2:
            continue
        owner = name.rpartition(".")[0]
        kind = type(calibration.model.get_submodule(owner)).__name__
        dim = made.get(name, 1 if kind in ("Embedding", "EmbeddingBag") else 0)
        rows.append(
            LayerWidth(owner or name, kind, before[name].shape[dim], after[name].shape[dim])
        )
    return tuple(rows)


@dataclass(frozen=True)
class _Timing:
    """Calls of both models, before and after; how many inputs and tokens a call had, and remarks."""

    latencies: tuple[measure.Latency, ...] = ()
    inputs: int = 0
    tokens: int = 0
    notes: tuple[str, ...] = ()

    def figures(self) -> dict[str, Any]:
        """The report's fields."""
        if not self.latencies:
            return {}
        a, b = self.latencies
        return {
            "latency": (a.median, b.median),
            "latency_spread": (a.spread, b.spread),
            "latency_inputs": self.inputs,
            "latency_tokens": self.tokens,
            "latency_calls": a.repeats,
            "latency_threads": torch.get_num_threads(),
        }


_CALLS, _MANY_CALLS, _SECONDS = 20, 40, 2.0


def _timing(dense: nn.Module, small: nn.Module, batch: Batch, options: Options) -> _Timing:
    """Time both models: on the first batch where that was asked for, else on its first input.

    What a call is does not depend on how fast the machine is. After two seconds fewer calls are
    enough.
    """
    if options.time_calls is False:
        return _Timing()
    models, asked = (dense, small), options.latency
    if options.time_calls or asked is not None:
        a, b = measure.side_by_side(
            models, batch.inputs, repeats=_CALLS if asked is None else _MANY_CALLS
        )
        notes = () if asked is None else (LatencyGoal(asked).verdict(a, b),)
        return _Timing((a, b), batch.size, token_count(batch), notes)
    try:
        one = first_samples(batch, 1)
        latencies = measure.side_by_side(models, one.inputs, repeats=_CALLS, seconds=_SECONDS)
    except Exception as error:  # a model that takes whole batches only
        words = (
            "latency was not measured, a call with one input failed ({kind}); {time_calls=} times "
            "the first batch"
        )
        return _Timing(notes=(Message(words, kind=type(error).__name__, time_calls=True),))
    return _Timing(latencies, 1, token_count(one))
