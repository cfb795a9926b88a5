"""Runs cells: the part every engine shares, and worker processes on this machine.

An engine takes jobs and reports outcomes cell by cell. Only the process that started it writes to
the store, so a worker that dies takes nothing with it but the cell it was at.
"""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Protocol

import torch

from subprune import __version__
from subprune.errors import OptionError
from subprune_paper.cells import Context
from subprune_paper.config import Config
from subprune_paper.grid import Cell, Job, jobs_of
from subprune_paper.store import Outcome, Store

__all__ = [
    "Engine",
    "Event",
    "Summary",
    "free_memory",
    "plan_workers",
    "run_cells",
    "versions",
    "worker_context",
]


@dataclass(frozen=True)
class Event:
    """What an engine reports: a stage of a worker, an outcome of a cell, or a job that ended (well
    or not).
    """

    kind: str  # "stage", "outcome", "ended" or "lost"
    job: int
    text: str = ""
    cell: Cell | None = None
    outcome: Outcome | None = None


class Engine(Protocol):
    """Something that runs jobs somewhere."""

    workers: int

    def submit(self, number: int, job: Job) -> None:
        """Start a job; called only while fewer than `workers` are running."""

    def events(self) -> Iterator[Event]:
        """What has happened; waits until something has."""

    def close(self) -> None:
        """Stop everything that still runs."""


@dataclass
class Summary:
    """What a run did."""

    total: int = 0
    skipped: int = 0  # finished before
    done: int = 0
    infeasible: int = 0
    failed: dict[str, str] = field(default_factory=dict)  # label: reason
    elsewhere: int = 0  # being run by another process


Notify = Callable[[str, int, str], None]  # kind ("stage" or "cell"), worker's job number, text


def run_cells(
    config: Config,
    cells: Sequence[Cell],
    store: Store,
    engine: Engine,
    *,
    retries: int = 2,
    notify: Notify = lambda kind, number, text: None,
) -> Summary:
    """Run what is not finished; every outcome is in the store before the next is looked at."""
    finished = store.finished()
    unfinished = [cell for cell in cells if cell.key not in finished]
    summary = Summary(total=len(cells), skipped=len(cells) - len(unfinished))
    run = _Run(
        config,
        store,
        engine,
        retries,
        notify,
        summary,
        versions(),
        deque(jobs_of(unfinished, config.sources)),
    )
    try:
        while run.start():
            for event in engine.events():
                run.take(event)
    finally:
        engine.close()
    return summary


@dataclass
class _Run:
    """The state of one run: what waits, what is being run, and how often each cell was tried."""

    config: Config
    store: Store
    engine: Engine
    retries: int
    notify: Notify
    summary: Summary
    versions: dict[str, str]
    waiting: deque[Job]
    running: dict[int, Job] = field(default_factory=dict)
    tries: dict[str, int] = field(default_factory=dict)
    numbers: int = 0

    def start(self) -> bool:
        """Claim and submit until all workers are busy; False when there is nothing left."""
        while self.waiting and len(self.running) < self.engine.workers:
            job = self.waiting.popleft()
            open_ = set(job.keys) - self.store.finished()
            ours = self.store.claim(job.keys)
            self.summary.elsewhere += len(open_ - ours)
            if ours:
                self.numbers += 1
                self.running[self.numbers] = replace(
                    job, cells=tuple(c for c in job.cells if c.key in ours)
                )
                self.engine.submit(self.numbers, self.running[self.numbers])
        return bool(self.running)

    def take(self, event: Event) -> None:
        """Do what an event asks for."""
        if event.kind == "stage":
            self.notify("stage", event.job, event.text)
        elif event.cell is not None and event.outcome is not None:
            self._outcome(event.job, event.cell, event.outcome)
        else:
            self._end(event)

    def _outcome(self, number: int, cell: Cell, outcome: Outcome) -> None:
        """Write a cell's outcome; a failed cell waits for another try first, unless its options
        were refused.
        """
        job = self.running[number]
        self.running[number] = replace(job, cells=tuple(c for c in job.cells if c.key != cell.key))
        tried = self.tries[cell.key] = self.tries.get(cell.key, 0) + 1
        if outcome.status == "failed" and tried <= self.retries:
            self.waiting.append(Job((cell,), job.sources))
            return
        if outcome.status == "refused":
            outcome = Outcome("failed", outcome.values)
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        whole = Outcome(outcome.status, {**outcome.values, "attempts": tried, "finished": now})
        self.store.record(cell, whole, self.config.name, self.versions)
        if outcome.status == "failed":
            self.summary.failed[cell.label] = str(outcome.values.get("note", ""))
        elif outcome.status == "infeasible":
            self.summary.infeasible += 1
        else:
            self.summary.done += 1
        self.notify("cell", number, f"{cell.label}: {outcome.values.get('top1', float('nan')):.2f}")

    def _end(self, event: Event) -> None:
        """A job ended; if its worker was lost, the cell it was at counts as failed and the rest
        starts again.
        """
        job = self.running[event.job]
        if event.kind == "lost" and job.cells:
            self._outcome(event.job, job.cells[0], Outcome("failed", {"note": event.text}))
            if rest := self.running[event.job].cells:
                self.waiting.append(Job(rest, job.sources))
        del self.running[event.job]
        self.notify("stage", event.job, "")


def versions() -> dict[str, str]:
    """What the results were made with."""
    entries = {
        "subprune": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    entries["machine"] = platform.machine()
    folder = Path(__file__).resolve().parent
    with contextlib.suppress(OSError, subprocess.SubprocessError):  # not a working copy
        asked = [
            "git",
            "-C",
            os.fspath(folder),
            "describe",
            "--always",
            "--dirty",
            "--abbrev=12",
            "--exclude=*",
        ]
        entries["commit"] = subprocess.run(
            asked, capture_output=True, text=True, timeout=10, check=True
        ).stdout.strip()
    return entries


def free_memory() -> float:
    """GB that can be used without swapping."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) / 2**20
    except OSError:
        pass
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    except (AttributeError, ValueError, OSError):
        return 8.0


def cores() -> int:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def plan_workers(config: Config, asked: int | None = None) -> tuple[int, int]:
    """How many workers fit into cores and memory, and how many threads each may use."""
    if asked is not None and asked < 1:
        raise OptionError(f"--workers is {asked}; it must be at least 1.")
    workers = asked or max(1, min(cores(), int(free_memory() / config.memory)))
    limit = int(os.environ.get("OMP_NUM_THREADS") or cores())
    return workers, max(1, min(limit, cores() // workers))


def worker_context(
    data_dir: str | None, models_dir: str | None, cache: Path, threads: int
) -> Context:
    """Absolute paths, so that a worker elsewhere finds the same folders."""

    def absolute(path: str | None) -> str | None:
        return None if path is None else os.path.abspath(path)

    data = data_dir or os.environ.get("SUBPRUNE_DATA")
    models = models_dir or os.environ.get("SUBPRUNE_MODELS")
    return Context(absolute(data), absolute(models), os.path.abspath(cache), threads)
