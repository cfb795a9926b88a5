"""The same jobs on Ray: on this machine, or on a cluster by its address. Needs the extra
``subprune-paper[ray]``.

Every cell streams back as soon as it is done; if a worker or a node is lost, only the cell it was
at is run again. Workers elsewhere need the same folders of data, weights and curves (a shared file
system).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

from subprune.errors import OptionError
from subprune_paper.cells import Context, run_job
from subprune_paper.engine import Event
from subprune_paper.grid import Job

__all__ = ["RayEngine"]


def _ray() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import ray
    except ImportError as error:
        raise OptionError(
            "--engine ray needs Ray, which is not installed; run pip install 'subprune-paper[ray]'."
        ) from error
    return ray


class RayEngine:
    """Runs each job as one streaming task."""

    def __init__(
        self, workers: int, context: Context, address: str | None = None, local_cpus: int = 0
    ) -> None:
        self._ray = ray = _ray()
        self._context = context
        self._started = not ray.is_initialized()
        if self._started:
            quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
            here = (
                {}
                if address
                else {
                    "num_cpus": local_cpus or workers * context.threads,
                    "include_dashboard": False,
                }
            )
            ray.init(address=address, **here, **quiet)
        self.workers = (
            workers if not address else max(workers, int(ray.cluster_resources().get("CPU", 1)))
        )
        # A lost worker must show up here, where the rest of its job is known: Ray's own retries
        # start from the top.
        self._task = ray.remote(num_cpus=context.threads, max_retries=0)(_stream)
        self._streams: dict[Any, int] = {}

    def submit(self, number: int, job: Job) -> None:
        """Start a task."""
        self._streams[self._task.options(num_returns="streaming").remote(job, self._context)] = (
            number
        )

    def events(self) -> Iterator[Event]:
        """The next outcome of each stream that has one, after waiting for at least one."""
        ready, _ = self._ray.wait(list(self._streams), num_returns=1)
        for stream in ready:
            yield self._next(stream)

    def _next(self, stream: Any) -> Event:
        number = self._streams[stream]
        try:
            cell, outcome = self._ray.get(next(stream))
        except StopIteration:
            del self._streams[stream]
            return Event("ended", number)
        except self._ray.exceptions.RayError as error:
            del self._streams[stream]
            lines = str(error).strip().splitlines()
            return Event(
                "lost",
                number,
                text=f"{type(error).__name__}: {lines[0] if lines else 'the worker was lost'}",
            )
        return Event("outcome", number, cell=cell, outcome=outcome)

    def close(self) -> None:
        """Stop what still runs, and Ray if it was started here."""
        for stream in self._streams:
            self._ray.cancel(stream, force=True)
        self._streams = {}
        if self._started:
            self._ray.shutdown()


def _stream(job: Job, context: Context) -> Iterator[Any]:
    yield from run_job(job, context)
