"""Where the time of a piece of work goes: threads looked at every few milliseconds."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import subprune

LIBRARY = str(Path(subprune.__file__).parent)
# Threads whose innermost frame is in one of these wait for others.
WAITING = ("threading.py", "queue.py", "_base.py", "thread.py", "selectors.py")
INTERVAL = 0.005


class Profile:
    """How often a function of the library was the innermost one at work."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    def shares(self, most: int = 8) -> dict[str, float]:
        """The functions seen most, with their shares; the rest is "other"."""
        total = sum(self.seen.values())
        top = {name: count / total for name, count in self.seen.most_common(most)}
        rest = 1 - sum(top.values())
        return {**top, "other": rest} if total and rest > 0.005 else top

    def look(self, own: int) -> None:
        for thread, frame in sys._current_frames().items():
            place = None if thread == own else at_work(frame)
            if place is not None:
                self.seen[place] += 1


def at_work(frame: FrameType | None) -> str | None:
    """The innermost function of the library on a stack; None where the thread waits, or is not in
    the library.
    """
    if frame is None or frame.f_code.co_filename.endswith(WAITING):
        return None
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(LIBRARY):
            name = getattr(code, "co_qualname", code.co_name)  # Python 3.10 has the latter alone
            return f"{Path(code.co_filename).stem}.{name}"
        frame = frame.f_back
    return None


@contextlib.contextmanager
def sampled(interval: float = INTERVAL) -> Iterator[Profile]:
    """Look at all threads while the block runs."""
    profile, done = Profile(), threading.Event()

    def watch() -> None:
        own = threading.get_ident()
        while not done.wait(interval):
            profile.look(own)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield profile
    finally:
        done.set()
        watcher.join()
