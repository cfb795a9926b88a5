"""From an experiment to its cells, and from cells to jobs: cells that share work are run one after
another.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from subprune.budget.sampling import SampleSize
from subprune.errors import OptionError, closest
from subprune.select.sensitivity import DELTA
from subprune_paper.config import Config

__all__ = ["CURVES_OF", "DENSE", "Cell", "Job", "cells_of", "jobs_of", "parse_filters", "select"]

DENSE = "dense"
"""Method of the cell with nothing pruned: one per experiment, never fine-tuned."""

CURVES_OF = {"seq-in-change": "layer-in-change", "asym-in-change": "layer-in-change"}
"""Whose curves a method's budgets are taken from, where it is not the method itself."""

EQUAL = ("equal-accuracy", "equal-agreement")
WITH_CURVES = (*EQUAL, "balanced", "error", "knapsack")
"""Rules that look at one curve per layer, measured on the dense network."""


@dataclass(frozen=True)
class Cell:
    """One run, with everything its result depends on; what does not matter for it has a fixed
    value.
    """

    model: str
    dataset: str
    method: str
    reweight: bool
    batchnorm: str
    target: str
    value: float
    finetune: str
    seed: int
    rule: str
    curves: str
    weights: str
    weights_sha256: str
    only: tuple[str, ...]
    ignore: tuple[str, ...]
    batches: int
    batch_size: int
    augmented: bool
    verification: int
    test: int
    finetune_epochs: int
    delta: float = DELTA  # of budgets by sampling

    @property
    def key(self) -> str:
        """A name that depends on all settings, the same in every process and version."""
        text = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:24]

    def to_dict(self) -> dict[str, Any]:
        """Plain data, without a delta that is the library's: keys are older than that setting."""
        plain = dataclasses.asdict(self)
        return plain if self.delta != DELTA else {k: v for k, v in plain.items() if k != "delta"}

    @property
    def label(self) -> str:
        """A few words for progress and messages."""
        if self.method == DENSE:
            return DENSE
        extras = [
            "" if self.reweight else "no rw",
            "" if self.batchnorm == "keep" else f"BN {self.batchnorm}",
            "" if self.finetune == "none" else f"ft {self.finetune}",
        ]
        words = [
            self.method,
            f"{self.target[0]} = {self.value:g}",
            *filter(None, extras),
            f"seed {self.seed}",
        ]
        return ", ".join(words)

    @property
    def pruning(self) -> Cell:
        """The same without what comes after pruning: cells that agree in it share the pruned
        network.
        """
        # the one that is part of pruning
        batchnorm = "sequential" if self.batchnorm == "sequential" else "keep"
        return dataclasses.replace(
            self, batchnorm=batchnorm, finetune="none", finetune_epochs=0, test=0
        )

    @property
    def family(self) -> tuple[Any, ...]:
        """Cells that agree in this use the same data and the same accuracy curves."""
        same: tuple[str, ...] = (
            "model",
            "weights",
            "weights_sha256",
            "dataset",
            "only",
            "ignore",
            "batches",
        )
        same += ("batch_size", "augmented", "verification", "curves", "rule", "reweight", "seed")
        same += ("delta",)
        return tuple(getattr(self, name) for name in same)


@dataclass(frozen=True)
class Job:
    """Cells for one worker."""

    cells: tuple[Cell, ...]
    sources: tuple[tuple[str, str], ...] = ()

    @property
    def keys(self) -> list[str]:
        return [cell.key for cell in self.cells]


def cells_of(config: Config) -> list[Cell]:
    """All cells of the grid, each once: no fine-tuning, seeds or methods for the dense network.

    The dense network is always among them, since everything is compared with it.
    """
    cells: dict[str, Cell] = {}
    for value in config.values if 1 in config.values else (1, *config.values):
        for method in config.methods if value != 1 else (DENSE,):
            for cell in _cells(config, method, value):
                cells.setdefault(cell.key, cell)
    return list(cells.values())


def _cells(config: Config, method: str, value: float) -> Iterable[Cell]:
    if method == DENSE:
        yield _cell(config, DENSE, value, False, "keep", "none", 0)
        return
    for seed in config.seeds:
        for reweight in config.reweight:
            for batchnorm in config.batchnorm:
                for finetune in config.finetune:
                    yield _cell(config, method, value, reweight, batchnorm, finetune, seed)


def _cell(
    config: Config,
    method: str,
    value: float,
    reweight: bool,
    batchnorm: str,
    finetune: str,
    seed: int,
) -> Cell:
    dense = method == DENSE
    rule = "" if dense else config.rule(method)
    return Cell(
        model=config.model,
        dataset=config.dataset,
        method=method,
        reweight=reweight,
        batchnorm=batchnorm,
        target=config.goal,
        value=float(value),
        finetune=finetune,
        seed=seed,
        rule=rule,
        curves={**CURVES_OF, **config.curves}.get(method, method) if rule in WITH_CURVES else "",
        weights=config.weights,
        weights_sha256=config.weights_sha256,
        only=() if dense else config.only,
        ignore=() if dense else config.ignore,
        batches=0 if dense else config.batches,
        batch_size=0 if dense else config.batch_size,
        augmented=not dense and config.augmented,
        verification=config.verify_samples if rule in EQUAL else 0,
        test=config.test,
        finetune_epochs=config.finetune_epochs if finetune != "none" else 0,
        delta=config.delta if rule == SampleSize.name else DELTA,
    )


def jobs_of(cells: Sequence[Cell], sources: tuple[tuple[str, str], ...] = ()) -> list[Job]:
    """Cells of one family together; in a job, cells that share the pruned network follow one
    another.
    """
    families: dict[tuple[Any, ...], list[Cell]] = {}
    for cell in cells:
        families.setdefault(cell.family, []).append(cell)
    order = ("none", "limited", "full")
    jobs = [
        Job(
            tuple(
                sorted(
                    family, key=lambda c: (c.method, c.value, c.batchnorm, order.index(c.finetune))
                )
            ),
            sources,
        )
        for family in families.values()
    ]
    # all of one seed first, so that there is soon a picture
    return sorted(jobs, key=lambda job: job.cells[0].seed)


def parse_filters(texts: Sequence[str]) -> dict[str, set[str]]:
    """``["method=a,b", "seed=42"]`` → ``{"method": {"a", "b"}, "seed": {"42"}}``."""
    names = [field.name for field in dataclasses.fields(Cell)]
    filters: dict[str, set[str]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals or name not in names:
            raise OptionError(
                f"--only {text!r}: {closest(name, names)}write NAME=VALUE[,VALUE…] with one of "
                f"{', '.join(names)}."
            )
        filters.setdefault(name, set()).update(values.split(","))
    return filters


def select(cells: Sequence[Cell], filters: dict[str, set[str]]) -> list[Cell]:
    """The cells that match all filters, and the dense one, which reports need; filters that match
    nothing are refused.
    """
    matching = [
        cell
        for cell in cells
        if all(_text(getattr(cell, n)) in values for n, values in filters.items())
    ]
    if cells and not matching:
        asked = ", ".join(f"{n}={','.join(sorted(v))}" for n, v in filters.items())
        raise OptionError(
            f"--only {asked} leaves no cell of the grid; look at `subprune experiment status`."
        )
    wanted = {cell.key for cell in matching}
    return [cell for cell in cells if cell.key in wanted or cell.method == DENSE]


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)
