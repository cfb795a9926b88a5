"""What each part of a pruning brought: the error left in the layers after it, on average."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from subprune.plan import FITTED, MOVED, REFINED, UNFITTED

if TYPE_CHECKING:
    from subprune.plan import Plan

__all__ = ["ROUNDING", "ErrorsByStage", "errors_by_stage", "parts_used"]

ROUNDING = 1e-6  # shares below this are errors of rounding
_STAGES = (UNFITTED, FITTED, MOVED, REFINED)


@dataclass(frozen=True)
class ErrorsByStage:
    """Layers of one kind, and their mean relative error after each stage of the work."""

    what: str  # how many layers, and which
    errors: tuple[tuple[str, float], ...]  # by stage

    def __str__(self) -> str:
        return " → ".join(f"{_percent(error)} {stage}" for stage, error in self.errors)


def errors_by_stage(plan: Plan) -> list[ErrorsByStage]:
    """How the errors went down: of layers that lost inputs, and of those that lost none."""
    cut = [g.stages for g in plan.groups if g.stages]
    kept = [stages for stages in plan.refitted.values() if stages]
    sets = (("that read what was cut", cut), ("that lost no input", kept))
    return [_means(f"{_layers(len(s))} {what}", s) for what, s in sets if s]


def _layers(count: int) -> str:
    return f"{count} layer{'' if count == 1 else 's'}"


def _means(what: str, layers: Sequence[Sequence[tuple[str, float]]]) -> ErrorsByStage:
    """A layer that a stage left alone keeps the error it had."""
    present = [stage for stage in _STAGES if any(stage in dict(s) for s in layers)]
    errors, latest = [], [float("nan")] * len(layers)
    for stage in present:
        latest = [dict(s).get(stage, old) for s, old in zip(layers, latest, strict=True)]
        known = [x for x in latest if not math.isnan(x)]
        errors.append((stage, sum(known) / len(known) if known else float("nan")))
    return ErrorsByStage(what, tuple(errors))


def parts_used(plan: Plan) -> str:
    """The choices the pruning was made of, in words."""
    words = [f"target {plan.target}"] if plan.target else []
    words += [f"{role} {name}" for role, name in plan.used.items() if name]
    refitted = f"{_layers(len(plan.refitted))} refitted that lost no input"
    words += [refitted] if plan.refitted else []
    steps = sum(g.steps for g in plan.groups)
    return ", ".join([*words, *([f"{steps} steps of refining"] if steps else [])])


def _percent(x: float) -> str:
    """Errors of rounding are not shown in digits."""
    if 0 < x < ROUNDING:
        return f"under {ROUNDING:.4%}"
    return "–" if math.isnan(x) else f"{100 * x:.3g}%"
