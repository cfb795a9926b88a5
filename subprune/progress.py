"""Progress of long work: a bar in a terminal or notebook, silence elsewhere, or a callback."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from subprune.errors import OptionError

__all__ = ["Progress", "Step", "progress_bar"]


@dataclass(frozen=True)
class Step:
    """One step of the work: how many are done, of how many, and what comes now.

    The last one says that all are done. `total` grows once, when the model's structure is known.
    """

    done: int
    total: int
    text: str


class Progress:
    """Work in stages of known numbers of steps; call it with a text before each step."""

    def __init__(self, show: Callable[[Step], None], stages: Mapping[str, int]) -> None:
        self._show = show
        self._stages = dict(stages)
        self._stage = next(iter(stages), "")
        self._begun = 0  # steps of this stage

    def plan(self, **stages: int) -> None:
        """Now it is known how many steps these stages have; a stage without steps is left out."""
        self._stages.update(stages)

    def enter(self, stage: str) -> None:
        """Go on to a stage, whatever the one before had left."""
        self._stage, self._begun = stage, 0

    def __call__(self, text: str) -> None:
        """A step begins. More steps than planned are shown in the place of the stage's last one."""
        before, room = 0, self._stages[self._stage]
        for name, steps in self._stages.items():
            if name == self._stage:
                break
            before += steps
        done = before + min(self._begun, max(0, room - 1))
        self._show(Step(min(done, self.total), self.total, text))
        self._begun += 1

    def finish(self) -> None:
        """All is done."""
        self._show(Step(self.total, self.total, "done"))

    @property
    def total(self) -> int:
        return sum(self._stages.values())


def _interactive() -> bool:
    return sys.stderr.isatty() or "ipykernel" in sys.modules


@contextlib.contextmanager
def progress_bar(
    stages: Mapping[str, int], progress: bool | Callable[[Step], None] | None
) -> Iterator[Progress]:
    """Progress through stages of several steps; complete when the block ends without an error.

    `progress` is None (a bar in a terminal or notebook), True, False, or a function that gets every
    `Step`.
    """
    if progress is not None and not isinstance(progress, bool) and not callable(progress):
        raise OptionError(f"progress must be True, False, None or a function, got {progress!r}")
    if callable(progress):
        work = Progress(progress, stages)
        yield work
        work.finish()
        return
    if progress is False or (progress is None and not _interactive()):
        yield Progress(lambda step: None, stages)
        return
    with _bar() as show:
        work = Progress(show, stages)
        yield work
        work.finish()


@contextlib.contextmanager
def _bar() -> Iterator[Callable[[Step], None]]:
    """A bar that is gone at the end; one line of text where rich is not installed."""
    try:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            SpinnerColumn,
            TextColumn,
            TimeRemainingColumn,
        )
        from rich.progress import Progress as Bar
    except ImportError:
        try:
            yield _show_line
        finally:
            _show_line(None)
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda step: bar.update(
            task, description=step.text, completed=step.done, total=step.total
        )


_LINE = 78  # characters


def _show_line(step: Step | None) -> None:
    """The step in the place of the one before; None: nothing any more."""
    text = "" if step is None else f"{step.done}/{step.total} {step.text}"
    sys.stderr.write(f"\r{text[:_LINE]:<{_LINE}}" + ("\r" if step is None else ""))
    sys.stderr.flush()
