"""What a pruning did, as an object that prints as a table."""

from __future__ import annotations

import io
import json
import math
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from subprune.plan import Plan

__all__ = ["Report"]


@dataclass(frozen=True)
class Report:
    """Figures before and after; everything measured, nothing estimated."""

    plan: Plan
    parameters: tuple[int, int]
    flops: tuple[int, int]  # of one call on the first calibration batch
    samples: int
    seconds: float
    agreement: float  # share of calibration samples with the dense model's prediction, nan if not asked for
    refused: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def compression(self) -> float:
        return self.parameters[0] / self.parameters[1]

    @property
    def speedup(self) -> float:
        """Ratio of FLOPs, the paper's SR."""
        return self.flops[0] / self.flops[1] if self.flops[1] else float("nan")

    def table(self) -> Table:
        """Kept units, layer by layer."""
        table = Table(title=self.summary(), title_justify="left")
        for name, justify in (("group", "left"), ("kind", "left"), ("units", "right"), ("kept", "right"),
                              ("error left", "right"), ("read by", "left")):  # fmt: skip
            table.add_column(name, justify=justify)  # type: ignore[arg-type]
        for g in self.plan.groups:
            error = "–" if math.isnan(g.error) else f"{g.error:.2%}"
            table.add_row(g.name, g.kind, str(g.units), str(len(g.kept)), error, ", ".join(g.consumers))
        return table

    def summary(self) -> str:
        """One line."""
        return (
            f"{self.plan.method}: {self.parameters[0]:,} → {self.parameters[1]:,} parameters "
            f"({self.compression:.2f}×), {self.speedup:.2f}× fewer FLOPs, {self.seconds:.1f} s on {self.samples} inputs"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return asdict(self)

    def to_json(self) -> str:
        return json.dumps(_finite(self.to_dict()), indent=1)

    def __str__(self) -> str:
        stream = io.StringIO()
        console = Console(file=stream, width=110)
        console.print(self.table())
        for note in self.notes:
            console.print(f"note: {note}")
        return stream.getvalue()


def _finite(x: Any) -> Any:
    """JSON has no NaN: absent figures become null."""
    if isinstance(x, dict):
        return {k: _finite(v) for k, v in x.items()}
    if isinstance(x, list | tuple):
        return [_finite(v) for v in x]
    return None if isinstance(x, float) and not math.isfinite(x) else x
