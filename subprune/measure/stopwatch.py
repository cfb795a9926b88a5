"""Where the time went."""

from __future__ import annotations

import time

__all__ = ["Stopwatch"]


class Stopwatch:
    """Seconds since it was made, in named parts: every moment belongs to one of them."""

    def __init__(self) -> None:
        self._started = self._last = time.perf_counter()
        self.parts: dict[str, float] = {}

    def lap(self, part: str) -> None:
        """The time since the last lap was spent on this part."""
        now = time.perf_counter()
        self.parts[part] = self.parts.get(part, 0.0) + now - self._last
        self._last = now

    @property
    def seconds(self) -> float:
        """From the start to the last lap."""
        return self._last - self._started
