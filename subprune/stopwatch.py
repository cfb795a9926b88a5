"""Where the time went."""

from __future__ import annotations

import time

__all__ = ["Stopwatch"]


class Stopwatch:
    """Seconds since it was made, in named parts that add up to them: every moment belongs to one part."""

    def __init__(self) -> None:
        self._started = self._last = time.perf_counter()
        self.parts: dict[str, float] = {}

    def lap(self, part: str) -> None:
        """What has passed since the last lap was spent on this part, beside what was spent on it before."""
        now = time.perf_counter()
        self.parts[part] = self.parts.get(part, 0.0) + now - self._last
        self._last = now

    @property
    def seconds(self) -> float:
        """From the start to the last lap."""
        return self._last - self._started
