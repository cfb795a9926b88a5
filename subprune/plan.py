"""A plan: what was kept where, as data."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["GroupPlan", "Plan"]


@dataclass(frozen=True)
class GroupPlan:
    """One group: what is kept of it, and what was measured."""

    name: str
    kind: str
    units: int
    kept: tuple[int, ...]
    consumers: tuple[str, ...]
    order: tuple[int, ...] = ()
    errors: tuple[float, ...] = ()  # error curve over k = 0 … units
    error: float = float("nan")  # relative input change left, on the calibration data
    dependent: tuple[int, ...] = ()
    rank: int = 0  # independent columns in the last solve, and
    columns: int = 0  # all columns of it
    seconds: float = 0.0


@dataclass(frozen=True)
class Plan:
    """All groups of one pruning, and how it was asked for."""

    method: str
    options: dict[str, Any]
    groups: tuple[GroupPlan, ...] = field(default_factory=tuple)
    inputs: dict[str, Any] = field(default_factory=dict)  # shapes of the inputs the model was recorded with

    @property
    def kept(self) -> dict[str, tuple[int, ...]]:
        """Kept unit numbers by group."""
        return {g.name: g.kept for g in self.groups}

    @property
    def counts(self) -> dict[str, int]:
        """Numbers of kept units by group."""
        return {g.name: len(g.kept) for g in self.groups}

    def to_stored(self) -> dict[str, Any]:
        """What a file needs to be loaded again, and what was measured."""
        return {"kept": self.kept, "inputs": self.inputs, "method": self.method, "options": self.options,
                "errors": {g.name: g.error if math.isfinite(g.error) else None for g in self.groups}}  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return asdict(self)
