"""The work of ``subprune demo``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from json import dumps
from pathlib import Path

from torch import nn

from subprune.api import prune
from subprune.files import write_atomic
from subprune.io.storage import save
from subprune.measure.tables import text_table
from subprune.result import Result
from subprune.zoo.correct import count_correct
from subprune.zoo.datasets import Images, calibration_batches, load
from subprune.zoo.models import shipped_lenet

__all__ = ["Row", "run_demo", "table"]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One compression ratio."""

    asked: float
    accuracy: tuple[float, float]
    parameters: tuple[int, int]
    flops: tuple[int, int]  # per input
    seconds: float
    kept: dict[str, tuple[int, int]]  # group → (kept, units)
    file: str

    @classmethod
    def of(cls, asked: float, result: Result, file: str) -> Row:
        report = result.report
        assert report.accuracy is not None
        kept = {g.name: (len(g.kept), g.units) for g in result.plan.groups}
        return cls(
            asked=asked,
            accuracy=report.accuracy,
            parameters=report.parameters,
            flops=report.flops,
            seconds=report.seconds,
            kept=kept,
            file=file,
        )


def run_demo(
    output: Path,
    ratios: Sequence[float],
    seed: int = 42,
    note: Callable[[str], None] = lambda text: None,
) -> list[Row]:
    """Prune the shipped LeNet at every ratio with 512 unlabelled images; write models and report to
    `output`.
    """
    model, _ = shipped_lenet()
    train, test = load("mnist-sample", "train"), load("mnist-sample", "test")
    data = [x for x, _ in calibration_batches(train, 512, seed)]
    before = count_correct(model, test) / len(test)
    rows = []
    for ratio in ratios:
        note(f"LeNet at {ratio:g}×")
        result = prune(model, data, compression=ratio, seed=seed, progress=False)
        result = _with_accuracy(result, before, test)
        file = f"lenet-{ratio:g}x.safetensors"
        save(result, output / file)
        result.report.save_html((output / file).with_suffix(".html"))
        rows.append(Row.of(ratio, result, file))
    _write_report(output, rows, model)
    return rows


def _with_accuracy(result: Result, before: float, test: Images) -> Result:
    """The result with the accuracy on test images, which pruning has not seen, in its report."""
    after = count_correct(result.model, test) / len(test)
    words = f"{len(test):,} test images"
    report = replace(result.report, accuracy=(before, after), accuracy_on=words)
    return replace(result, report=report)


def table(rows: Sequence[Row], width: int) -> str:
    """For the terminal."""
    header = ("c", "top-1", "parameters", "FLOPs", "seconds", "kept " + " ".join(rows[0].kept))
    cells = [
        (
            f"{r.asked:g}",
            f"{r.accuracy[0]:.2%} → {r.accuracy[1]:.2%}",
            f"{r.parameters[0]:,} → {r.parameters[1]:,}",
            f"÷ {r.flops[0] / r.flops[1]:.1f}",
            f"{r.seconds:.2f}",
            " ".join(f"{k}/{n}" for k, n in r.kept.values()),
        )
        for r in rows
    ]
    title = "LeNet on MNIST, pruned with 512 unlabelled images, no fine-tuning"
    return text_table(header, cells, right=header[:5], title=title, width=width)


def markdown(rows: Sequence[Row]) -> str:
    """The same table for a document."""
    head = ["c", "top-1 before", "top-1 after", "parameters", "FLOPs", "seconds", *rows[0].kept]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for r in rows:
        cells = [
            f"{r.asked:g}",
            f"{r.accuracy[0]:.2%}",
            f"{r.accuracy[1]:.2%}",
            f"{r.parameters[1]:,}",
            f"{r.flops[0] / r.flops[1]:.1f}× fewer",
            f"{r.seconds:.2f}",
        ]
        cells += [f"{k}/{n}" for k, n in r.kept.values()]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _write_report(output: Path, rows: Sequence[Row], model: nn.Module) -> None:
    title = f"# {type(model).__name__}, pruned with 512 unlabelled images, no fine-tuning\n\n"
    write_atomic(output / "report.md", (title + markdown(rows)).encode())
    write_atomic(output / "report.json", dumps([vars(r) for r in rows], indent=1).encode())
