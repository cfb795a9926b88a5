"""One cell: budgets, pruning, BatchNorm, fine-tuning, honest top-1. Cells of one worker share what
they can.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

import subprune
from subprune.budget.allocators import ALLOCATORS
from subprune.budget.demand import Allocator, Demand
from subprune.budget.goal import Goal, Limit
from subprune.budget.sampling import SampleSize
from subprune.data.batches import batches
from subprune.errors import BudgetError, DataError, OptionError
from subprune.fit.fit import Fit
from subprune.fit.keep import Keep
from subprune.loop.recipe import Recipe
from subprune.measure import measurements as measure
from subprune.methods import find_method
from subprune.select.selector import Setting
from subprune.statistics.batchnorm import BatchNorm, recalibrate
from subprune.statistics.calibration import Calibration
from subprune.structure.analysis import find_groups
from subprune.structure.choose import choose_groups
from subprune.structure.cost import CostModel
from subprune.structure.groups import in_order
from subprune.zoo.correct import count_correct
from subprune.zoo.datasets import Images, calibration_batches, load, split_verification
from subprune.zoo.models import build, shipped_lenet
from subprune.zoo.weights import load_weights
from subprune_paper.augmentation import augment
from subprune_paper.grid import DENSE, EQUAL, Cell, Job
from subprune_paper.store import Outcome
from subprune_paper.training import finetune_recipe, fit

__all__ = ["Context", "check", "load_sources", "run_cell", "run_job"]

MODELS_VARIABLE = "SUBPRUNE_MODELS"
Stage = Callable[[str], None]


@dataclass(frozen=True)
class Context:
    """Where things lie on the machine that runs a cell; no result depends on it."""

    data_dir: str | None = None
    models_dir: str | None = None
    cache: str | None = None  # folder of accuracy curves
    threads: int = 1


def run_job(
    job: Job, context: Context, stage: Stage = lambda text: None
) -> Iterator[tuple[Cell, Outcome]]:
    """The cells of a job one after another; an error in one of them is its outcome, and the next
    follows.

    "infeasible" is final, "failed" may be tried again, "refused" options would be refused again.
    """
    torch.set_num_threads(context.threads)
    load_sources(job.sources)
    for cell in job.cells:
        try:
            yield cell, run_cell(cell, context, stage)
        except BudgetError as error:
            yield cell, Outcome("infeasible", {"note": str(error)})
        except Exception as error:
            status = "refused" if isinstance(error, OptionError) else "failed"
            yield cell, Outcome(status, {"note": f"{type(error).__name__}: {error}"})


def run_cell(cell: Cell, context: Context, stage: Stage = lambda text: None) -> Outcome:
    """Run one cell and measure."""
    if cell.method == DENSE:
        measured: dict[str, Any] = {"budget_seconds": 0.0, "prune_seconds": 0.0, "kept": "{}"}
        model = _model(cell.model, cell.weights, cell.weights_sha256, context.models_dir)
    else:
        small, measured = _pruned(cell.pruning, context, stage)
        model = copy.deepcopy(small)
        if cell.batchnorm == "recalibrate":
            recalibrate(model, batches(_calibration(cell, context), model, None))
    started = time.perf_counter()
    note = None
    if cell.finetune != "none":
        stage("fine-tuning")
        note = f"fine-tuned by the {_finetune(cell, model, context)} loop"
    trained = time.perf_counter()
    stage("measuring top-1")
    test = _images(cell.dataset, "test", context.data_dir)
    test = test.subset(torch.arange(min(cell.test, len(test)))) if cell.test else test
    correct = count_correct(model, test)
    size, flops = _size(cell, model, test)
    dense = _size(
        cell, _model(cell.model, cell.weights, cell.weights_sha256, context.models_dir), test
    )
    return Outcome(
        "done",
        {
            **measured,
            "correct": correct,
            "images": len(test),
            "top1": 100 * correct / len(test),
            "parameters": size,
            "flops": flops,
            "compression": dense[0] / size,
            "speedup": dense[1] / flops,
            "finetune_seconds": trained - started,
            "test_seconds": time.perf_counter() - trained,
            "note": note,
        },
    )


def _size(cell: Cell, model: nn.Module, test: Images) -> tuple[int, int]:
    """Parameters, and FLOPs for one image."""
    one = test.inputs(torch.arange(1))
    return measure.count_parameters(model), measure.count_flops(model, ((one,), {}))


@functools.lru_cache(maxsize=2)
def _model(name: str, weights: str, sha256: str, folder: str | None) -> nn.Module:
    """The dense network in eval mode; the file's checksum is compared if the
    experiment gives one.
    """
    if weights == "shipped":
        if name != "lenet":
            raise OptionError(
                f'weights is "shipped", and for {name!r} none are; name a file in --models-dir.'
            )
        return shipped_lenet()[0]
    root = folder if folder is not None else os.environ.get(MODELS_VARIABLE)
    if not root:
        raise DataError(
            f"the weights {weights!r} need a folder: give --models-dir or set {MODELS_VARIABLE}."
        )
    path = Path(root) / weights
    if not path.is_file():
        raise DataError(
            f"{path} is not a file; give the --models-dir that holds {weights!r}, or train the "
            "network."
        )
    if sha256 and (checksum := hashlib.sha256(path.read_bytes()).hexdigest()) != sha256:
        raise DataError(
            f"{path} has checksum {checksum}, the experiment needs {sha256}; get the right file."
        )
    model = build(name)
    load_weights(model, path)
    return model.eval()


@functools.lru_cache(maxsize=4)
def _images(dataset: str, split: str, data_dir: str | None) -> Images:
    return load(dataset, split, data_dir)


@functools.lru_cache(maxsize=2)
def _drawn(
    dataset: str, data_dir: str | None, n: int, size: int, augmented: bool, seed: int
) -> list[Any]:
    images = _images(dataset, "train", data_dir)
    return calibration_batches(images, n, seed, size, augment if augmented else None)


def _calibration(cell: Cell, context: Context) -> list[tuple[Tensor, Tensor]]:
    """The cell's few batches of (inputs, labels)."""
    n = cell.batches * cell.batch_size
    return _drawn(cell.dataset, context.data_dir, n, cell.batch_size, cell.augmented, cell.seed)


@functools.lru_cache(maxsize=1)
def _pruned(cell: Cell, context: Context, stage: Stage) -> tuple[nn.Module, dict[str, Any]]:
    """The pruned network, shared by cells that differ only in what comes after."""
    model = _model(cell.model, cell.weights, cell.weights_sha256, context.models_dir)
    data = _calibration(cell, context)
    pool = _pool(cell, context)
    started = time.perf_counter()
    stage("budgets")
    demand = _common(cell, context, stage)
    counts = dataclasses.replace(demand, goal=_goal(cell, demand)).shared_out()
    chosen = time.perf_counter()
    stage("pruning")
    result = subprune.prune(
        model,
        data,
        method=cell.method,
        budgets=counts,
        # with what the budgets were made of: the same network and images are not measured twice
        selector=find_method(cell.method).selector.knowing(demand.calibration),
        fit=_fit(cell),
        train_data=pool,
        seed=cell.seed,
        batchnorm=cast(BatchNorm, cell.batchnorm),  # which the configuration checked
        n_samples=None,
        time_calls=False,
        progress=False,
    )
    pruned = time.perf_counter()
    kept = json.dumps({name: len(units) for name, units in result.plan.kept.items()})
    return result.model, {
        "kept": kept,
        "budget_seconds": chosen - started,
        "prune_seconds": pruned - chosen,
    }


def _fit(cell: Cell) -> Fit:
    """The paper's: least squares on all inputs, or none."""
    return find_method(cell.method).fit.plain() if cell.reweight else Keep()


class _UnitLimit(Limit):
    """A limit on the units of all groups together."""

    def size(self, cost: CostModel, counts: Any) -> int:
        return sum(counts.values())

    def check(
        self,
        cost: CostModel,
        smallest: Mapping[str, int],
        round_to: int = 1,
        whole: Callable[[], str] = str,
    ) -> None:
        if sum(smallest.values()) > self.most:
            raise BudgetError(
                f"{self.asked} allows {self.most} units, fewer than one for each of "
                f"{len(smallest)} groups"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _UnitShare(Goal):
    """A share of all units together, divided by the allocator."""

    units: int = 0
    share: float = 1.0

    def limit(self, cost: CostModel, inputs: int) -> Limit:
        return _UnitLimit("units", int(self.share * self.units + 1e-9), f"keep={self.share:g}")


def _common(cell: Cell, context: Context, stage: Stage) -> Demand:
    """What budgets are made of, by the cell's rule and the curves it names."""
    common = dataclasses.replace(
        cell, value=1.0, batchnorm="keep", method=cell.curves or cell.method
    )
    return _demand(common, context, stage)


def _allocator(cell: Cell) -> Allocator:
    """The cell's rule, with its own delta where it has one."""
    allocator = ALLOCATORS[cell.rule]
    if isinstance(allocator, SampleSize):
        return dataclasses.replace(allocator, delta=cell.delta)
    return allocator


def _goal(cell: Cell, demand: Demand) -> Goal:
    """The cell's own; the demand's curves serve the goals of all cells."""
    if cell.target != "keep":
        return Goal(compression=cell.value)
    if cell.rule in ("uniform", "score"):
        return Goal(keep=cell.value)
    return _UnitShare(units=sum(g.n_units for g in demand.groups), share=cell.value)


@functools.lru_cache(maxsize=1)
def _demand(cell: Cell, context: Context, stage: Stage) -> Demand:
    """What the budgets of all values have in common; it remembers its curves."""
    model = _model(cell.model, cell.weights, cell.weights_sha256, context.models_dir)
    calibration = Calibration.of(model, batches(_calibration(cell, context), model, None))
    verify = None
    if cell.rule in EQUAL:
        train = _images(cell.dataset, "train", context.data_dir)
        indices = split_verification(train, cell.verification, cell.seed).verification
        verify = calibration.on(
            batches((train.inputs(indices), train.labels[indices]), model, None)
        )
    pool = _pool(cell, context)
    pool_calibration = None if pool is None else calibration.on(batches(pool, model, None))
    groups = choose_groups(calibration.structure, model, cell.only or None, cell.ignore or None)
    row = find_method(cell.method)
    return Demand(
        setting=Setting(calibration, tuple(in_order(groups)), cell.seed, pool_calibration),
        recipe=Recipe(row.target, row.selector, _fit(cell), name=row.name),
        goal=Goal(compression=1.0),
        allocator=_allocator(cell),
        cost=CostModel(model, calibration.structure),
        verification=verify,
        cache=None if context.cache is None else Path(context.cache),
        tick=lambda group: stage(f"curve of {group.name}"),
    )


def _pool(cell: Cell, context: Context) -> tuple[Tensor, Tensor] | None:
    """All training images, for a method that draws from them."""
    if not find_method(cell.method).selector.needs_pool:
        return None
    train = _images(cell.dataset, "train", context.data_dir)
    return train.inputs(), train.labels


def _finetune(cell: Cell, model: nn.Module, context: Context) -> str:
    """As in the paper, on the same few batches or on all training images; returns the name of the
    loop.
    """
    train = _images(cell.dataset, "train", context.data_dir)
    if cell.finetune == "limited":
        order = torch.randperm(len(train), generator=torch.Generator().manual_seed(cell.seed))
        # those of `calibration_batches`
        train = train.subset(order[: cell.batches * cell.batch_size])
    plan = finetune_recipe(cell.model)
    plan = plan.shortened(cell.finetune_epochs) if cell.finetune_epochs else plan
    return fit(model, train, plan, cell.seed)[-1].loop


_LOADED: set[tuple[str, str]] = set()


def load_sources(sources: Sequence[tuple[str, str]]) -> None:
    """Run the user's modules, once in a process,
    so that their methods and models are registered.
    """
    for name, text in sources:
        if (name, text) not in _LOADED:
            _LOADED.add((name, text))
            exec(compile(text, f"{name}.py", "exec"), {"__name__": name})


def check(cells: Sequence[Cell], context: Context) -> None:
    """Find a missing file, or a wrong `only` or `ignore`, before the first cell is run, not in each
    of them.
    """
    for name, weights, sha256 in sorted({(c.model, c.weights, c.weights_sha256) for c in cells}):
        _model(name, weights, sha256, context.models_dir)
    for dataset in sorted({c.dataset for c in cells}):
        _images(dataset, "test", context.data_dir)
        if any(c.method != DENSE and c.dataset == dataset for c in cells):
            _images(dataset, "train", context.data_dir)
    choices = {
        (c.model, c.weights, c.weights_sha256, c.dataset, c.only, c.ignore): c for c in cells
    }
    for cell in choices.values():
        if cell.only or cell.ignore:
            _check_choice(cell, context)


def _check_choice(cell: Cell, context: Context) -> None:
    model = _model(cell.model, cell.weights, cell.weights_sha256, context.models_dir)
    example = _images(cell.dataset, "test", context.data_dir).inputs(torch.arange(1))
    if not choose_groups(
        find_groups(model, example), model, cell.only or None, cell.ignore or None
    ):
        raise OptionError(
            f"only = {list(cell.only)} and ignore = {list(cell.ignore)} leave nothing to prune; "
            "ignore fewer groups."
        )
