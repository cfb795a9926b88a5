"""Progress of long work: a bar in a terminal or notebook, silence elsewhere, or a callback."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from subprune.errors import OptionError

__all__ = ["Step", "progress_bar"]


@dataclass(frozen=True)
class Step:
    """One step of the work: how many are done, of how many, and what comes now."""

    done: int
    total: int
    text: str


Report = Callable[[str], None]


def _interactive() -> bool:
    return sys.stderr.isatty() or "ipykernel" in sys.modules


@contextlib.contextmanager
def progress_bar(total: int, progress: bool | Callable[[Step], None] | None) -> Iterator[Report]:
    """Yield a function to be called with a text before each of `total` steps.

    `progress` is None (a bar where somebody looks), True, False, or a function that gets every `Step`.
    """
    if progress is not None and not isinstance(progress, bool) and not callable(progress):
        raise OptionError(f"progress must be True, False, None or a function, got {progress!r}")
    done = 0
    if callable(progress):

        def call(text: str) -> None:
            nonlocal done
            progress(Step(done, total, text))
            done += 1

        yield call
        return
    if progress is False or (progress is None and not _interactive()):
        yield lambda text: None
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)

        def show(text: str) -> None:
            nonlocal done
            bar.update(task, description=text, completed=done)
            done += 1

        yield show
