"""Worker processes on this machine: each gets one job at a time and reports every cell as soon as
it is done.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from typing import Any

from subprune_paper.cells import Context, run_job
from subprune_paper.engine import Event
from subprune_paper.grid import Job

__all__ = ["PATIENCE", "LocalEngine"]

_POLL = 0.2

PATIENCE = 3600.0
"""Seconds without a word after which a worker is taken for hanging: stages take minutes."""


class LocalEngine:
    """As many processes as `workers`; one that dies is replaced for the next job.

    patience: seconds after which a worker that says nothing is ended, as if it had died.
    """

    def __init__(
        self, workers: int, context: Context, start: str = "spawn", patience: float = PATIENCE
    ) -> None:
        self.workers, self.patience = workers, patience
        self._context = context
        self._ways = multiprocessing.get_context(start)
        self._idle: list[tuple[Any, Connection]] = []
        self._busy: dict[int, tuple[Any, Connection]] = {}
        self._heard: dict[int, float] = {}  # when each job's worker last said something

    def submit(self, number: int, job: Job) -> None:
        """Give the job to an idle worker, or to a new one."""
        worker = self._idle.pop() if self._idle else self._new()
        self._busy[number] = worker
        self._heard[number] = time.monotonic()
        # it died while idle; `events` will say so
        with contextlib.suppress(BrokenPipeError, OSError):
            worker[1].send((job, self._context))

    def _new(self) -> tuple[Any, Connection]:
        ours, theirs = self._ways.Pipe()
        process = self._ways.Process(target=_work, args=(theirs, os.getpid()), daemon=True)  # type: ignore[attr-defined]
        process.start()
        theirs.close()
        return process, ours

    def events(self) -> Iterator[Event]:
        """What the workers said, after at least one of them has said something, died or hung."""
        by_connection = {connection: number for number, (_, connection) in self._busy.items()}
        first = min(self._heard[number] for number in self._busy) + self.patience
        left = max(0.0, first - time.monotonic())
        for connection in wait(list(by_connection), left):
            number = by_connection[connection]  # type: ignore[index]
            self._heard[number] = time.monotonic()
            yield self._event(number)
        for number in list(self._busy):
            if time.monotonic() - self._heard[number] > self.patience:
                yield self._ended(number)

    def _ended(self, number: int) -> Event:
        """End a worker that hangs."""
        process, connection = self._busy.pop(number)
        process.kill()
        process.join()
        connection.close()
        return Event(
            "lost", number, text=f"the worker said nothing for {self.patience:g} s and was ended"
        )

    def _event(self, number: int) -> Event:
        process, connection = self._busy[number]
        try:
            kind, content = connection.recv()
        except (EOFError, OSError):
            process.join()
            del self._busy[number]
            code = process.exitcode
            why = (
                f"killed by signal {-code}"
                if code is not None and code < 0
                else f"ended with code {code}"
            )
            return Event(
                "lost", number, text=f"the worker process was {why}; memory may have run out"
            )
        if kind == "outcome":
            return Event("outcome", number, cell=content[0], outcome=content[1])
        if kind == "ended":
            self._idle.append(self._busy.pop(number))
            return Event("ended", number)
        return Event("stage", number, text=content)

    def close(self) -> None:
        """End all workers, also those that are at work."""
        for process, connection in [*self._idle, *self._busy.values()]:
            process.terminate()
            process.join()
            connection.close()
        self._idle, self._busy = [], {}


def _work(connection: Connection, parent: int) -> None:
    """The worker's life: a job, its outcomes, the next job; it ends with the process that started
    it.
    """
    threading.Thread(target=_follow, args=(parent,), daemon=True).start()
    while True:
        try:
            job, context = connection.recv()
        except (EOFError, OSError):
            return
        for cell, outcome in run_job(job, context, _Stage(connection)):
            connection.send(("outcome", (cell, outcome)))
        connection.send(("ended", None))


class _Stage:
    """Sends stages, at most a few per second; all are equal,
    so that caches do not tell them apart.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection, self._last = connection, 0.0

    def __call__(self, text: str) -> None:
        if (now := time.monotonic()) - self._last > _POLL:
            self._last = now
            self._connection.send(("stage", text))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Stage)

    def __hash__(self) -> int:
        return 0


def _follow(parent: int) -> None:
    """End this process soon after its parent was killed."""
    while os.getppid() == parent or (
        os.name == "nt" and multiprocessing.parent_process() is not None
    ):
        time.sleep(_POLL)
    os._exit(1)
