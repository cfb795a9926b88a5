"""What a pruning did, as an object that prints as a table and renders as a page."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from subprune.errors import DataError
from subprune.files import write_atomic
from subprune.measure.compare import Comparison
from subprune.plan import Plan
from subprune.report.decode import decode
from subprune.structure.formula import Formula

__all__ = ["Exported", "GuaranteeLine", "LayerWidth", "Report"]

NOT_COMPARED = Comparison(
    inputs=0, answers=0, kind="", agreement=math.nan, output_change=math.nan
)  # no outputs were compared


@dataclass(frozen=True)
class LayerWidth:
    """One layer with a weight, in the order they run: its width before and after."""

    name: str
    kind: str  # class of the module
    before: int
    after: int


@dataclass(frozen=True, kw_only=True)
class GuaranteeLine:
    """What is proven about one group's selection, next to what was measured;
    see docs/guarantees.md.
    """

    name: str
    k: int
    error: float  # share of the layer's output that is left unexplained
    bound: float  # proven to be no larger than this
    gamma: float  # proven lower bound of the submodularity ratio
    assumptions: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Exported:
    """A verified file that `subprune.export` wrote."""

    path: str
    format: str
    bytes: int
    difference: float  # largest difference to PyTorch's outputs, relative to their largest entry
    batch: str  # "any", or the only number of inputs it takes
    latency: tuple[float, float]  # seconds per call: PyTorch, and the file

    def __str__(self) -> str:
        a, b = self.latency
        return (
            f"{self.path}: {self.format}, {self.bytes / 1e3:,.1f} kB, batch size {self.batch}, differs from PyTorch by "
            f"{self.difference:.1e}, {b * 1e3:.3g} ms per call (PyTorch {a * 1e3:.3g} ms)"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Report:
    """Figures before and after; everything measured, nothing estimated."""

    plan: Plan
    parameters: tuple[int, int]
    # for one input: of a call on the first calibration batch, over its inputs
    flops: tuple[int, int]
    samples: int
    seconds: float  # of the whole call of `prune`
    fitted: Comparison = NOT_COMPARED  # on the calibration inputs, which the weights were fitted to
    held_out: Comparison | None = None  # on inputs that nothing was fitted to
    refused: dict[str, str] = field(default_factory=dict)  # layer → why it was not pruned
    notes: tuple[str, ...] = ()
    accuracy: tuple[float, float] | None = None  # on labelled data, before and after
    accuracy_on: str = ""  # which data
    verified: Comparison | None = None  # on the verification data
    latency: tuple[float, float] | None = None  # seconds per call, median, before and after
    # quartiles, before and after
    latency_spread: tuple[tuple[float, float], tuple[float, float]] | None = None
    latency_inputs: int = 0  # inputs in such a call
    latency_tokens: int = 0  # and tokens, where inputs are tokens
    latency_calls: int = 0  # timed calls of each model
    latency_threads: int = 0  # threads that PyTorch could use
    # what `seconds` were spent on; they add up to it
    parts: dict[str, float] = field(default_factory=dict)
    model: str = ""  # class of the model
    layers: tuple[LayerWidth, ...] = ()
    # parameters and FLOPs per input that each group takes off; they add up to what all do
    savings: dict[str, tuple[int, int]] = field(default_factory=dict)
    costs: Formula | None = None  # what other widths of these groups would cost
    guarantees: tuple[GuaranteeLine, ...] = ()
    exports: tuple[Exported, ...] = ()  # files made with `subprune.export`
    command: str = ""  # what reproduces it
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def compared(self) -> Comparison:
        """On inputs that nothing was fitted to, if there are some,
        else on the calibration inputs.
        """
        return self.fitted if self.held_out is None else self.held_out

    @property
    def agreement(self) -> float:
        """Share of answers with the dense model's class; nan where outputs are not classes."""
        return self.compared.agreement

    @property
    def output_change(self) -> float:
        """‖pruned − dense‖² / ‖dense‖² of the outputs."""
        return self.compared.output_change

    @property
    def perplexity(self) -> tuple[float, float] | None:
        """Of a causal language model, before and after: on the verification data if there are any,
        else on the inputs of `compared`.
        """
        return (self.verified or self.compared).perplexity

    @property
    def cosine(self) -> float | None:
        """Mean cosine between vectors before and after, on the same inputs; None for other
        outputs.
        """
        return (self.verified or self.compared).cosine

    @property
    def tokens_per_second(self) -> tuple[float, float] | None:
        """Whole sequences at once, without generating: before and after."""
        if self.latency is None or not self.latency_tokens or not all(self.latency):
            return None
        before, after = self.latency
        return self.latency_tokens / before, self.latency_tokens / after

    @property
    def compression(self) -> float:
        """Parameters before / after."""
        return self.parameters[0] / max(1, self.parameters[1])

    @property
    def speedup(self) -> float:
        """Ratio of FLOPs, the paper's SR."""
        return self.flops[0] / self.flops[1] if self.flops[1] else math.nan

    def summary(self) -> str:
        """One line."""
        return (
            f"{self.plan.method}: {self.parameters[0]:,} → {self.parameters[1]:,} parameters "
            f"({self.compression:.2f}×), {self.speedup:.2f}× fewer FLOPs per input, "
            f"{self.seconds:.1f} s on {self.samples} inputs"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return _finite(asdict(self))

    def to_json(self) -> str:
        """The report as JSON; figures that are missing are null."""
        return json.dumps(self.to_dict(), indent=1)

    @classmethod
    def from_json(cls, text: str | bytes, where: str = "the report") -> Report:
        """A report from `to_json`; anything else is refused with the place of the first mistake."""
        try:
            content = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise DataError(
                f"{where} is not a report, which is JSON ({str(error)[:200]}); give a report.json "
                "that subprune wrote"
            ) from error
        return decode(cls, content, where)

    def to_html(self) -> str:
        """One self-contained page; nothing in it is fetched from anywhere."""
        from subprune.report.html import page

        return page(self)

    def save_html(self, path: str | Path) -> Path:
        """Write the page, all or nothing."""
        return write_atomic(Path(path), self.to_html().encode())

    def __str__(self) -> str:
        from subprune.report.terminal import report_text

        return report_text(self)

    def _repr_html_(self) -> str:
        from subprune.report.html import fragment

        return fragment(self)


def _finite(x: Any) -> Any:
    """JSON has no NaN: absent figures become null. Figures keep seven digits."""
    if isinstance(x, dict):
        return {k: _finite(v) for k, v in x.items()}
    if isinstance(x, list | tuple):
        return [_finite(v) for v in x]
    if isinstance(x, float):
        return float(f"{x:.7g}") if math.isfinite(x) else None
    return x
