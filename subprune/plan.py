"""A plan: what was kept where, as data."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = [
    "FITTED",
    "HISTORY",
    "MOVED",
    "REFINED",
    "UNFITTED",
    "GroupPlan",
    "Plan",
    "history_of",
]

UNFITTED, FITTED = "weights as they were", "weights fitted"
MOVED, REFINED = "targets moved, fitted again", "refined"
"""Stages of the layers that read a group."""

HISTORY = "subprune_history"
"""Attribute of a pruned model with the stored plans of all its prunings; it survives copying and
fine-tuning.
"""


@dataclass(frozen=True, kw_only=True)
class GroupPlan:
    """One group: what is kept of it, and what was measured."""

    name: str
    kind: str
    units: int
    kept: tuple[int, ...]
    consumers: tuple[str, ...]
    order: tuple[int, ...] = ()
    errors: tuple[float, ...] = ()  # error curve over k = 0 … units
    error: float = float("nan")  # relative input change left, on the inputs that were fitted
    # the same on inputs that were not fitted; nan if there were none
    held_out: float = float("nan")
    ridge: tuple[float, ...] = ()  # relative strength of the ridge of every fit
    growth: float = float("nan")  # the largest ‖new weights‖ / ‖old weights‖ among the fits
    rows: int = 0  # the fewest rows that a fit had
    dependent: tuple[int, ...] = ()
    rank: int = 0  # independent columns in the last solve, and
    columns: int = 0  # all columns of it
    steps: int = 0  # on the layers that make the units, that stayed
    # what was done, one after another, and the error left after each, on inputs not fitted if any
    stages: tuple[tuple[str, float], ...] = ()
    seconds: float = 0.0
    # tensors that are cut, before the cut
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All groups of one pruning, and how it was asked for."""

    method: str
    options: dict[str, Any]
    target: str = ""  # what layers were to give
    # the other parts by role, whether they were given or are the method's own
    used: dict[str, str] = field(default_factory=dict)
    groups: tuple[GroupPlan, ...] = ()
    # layers that lost no input and were refitted all the same, with stages as those of groups
    refitted: dict[str, tuple[tuple[str, float], ...]] = field(default_factory=dict)
    # shapes of the inputs the model was recorded with
    inputs: dict[str, Any] = field(default_factory=dict)
    # whether widths that hand-written modules keep about themselves were changed too
    eager: bool = False
    data: str = ""  # fingerprint of the calibration inputs
    selection: str = ""  # the target, and where it looks at pruned layers the fit, with their knobs
    unbounded: str = ""  # why the paper's bounds do not apply to it; empty if they do

    @property
    def kept(self) -> dict[str, tuple[int, ...]]:
        """Kept unit numbers by group."""
        return {g.name: g.kept for g in self.groups}

    @property
    def counts(self) -> dict[str, int]:
        """Numbers of kept units by group."""
        return {g.name: len(g.kept) for g in self.groups}

    def to_stored(self) -> dict[str, Any]:
        """What it takes to make the same cut in a fresh model."""
        groups = {
            g.name: {"kind": g.kind, "units": g.units, "kept": list(g.kept),
                     "shapes": {n: list(s) for n, s in g.shapes.items()}}
            for g in self.groups
        }  # fmt: skip
        return {
            "method": self.method,
            "groups": groups,
            "inputs": self.inputs,
            "eager": self.eager,
            "data": self.data,
        }

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return asdict(self)


def history_of(model: object) -> tuple[dict[str, Any], ...]:
    """The stored plans of everything `prune` and `load` did to this model, first to last."""
    return tuple(getattr(model, HISTORY, ()))
