"""Means over seeds next to the paper's numbers, as data and as CSV."""

from __future__ import annotations

import csv
import functools
import io
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, pstdev
from typing import Any

from subprune.errors import DataError, OptionError
from subprune.files import write_atomic
from subprune_paper.config import Config
from subprune_paper.grid import DENSE
from subprune_paper.store import COLUMNS, SETTINGS, Row

__all__ = [
    "LABELS",
    "OURS",
    "Group",
    "Point",
    "dense_top1",
    "paper_rows",
    "points",
    "read_rows",
    "summary_rows",
    "write_rows",
]

OURS = ("asym-in-change", "seq-in-change", "layer-in-change")
LABELS = {
    "asym-in-change": "AsymInChange",
    "seq-in-change": "SeqInChange",
    "layer-in-change": "LayerInChange",
    "act-grad": "ActGrad",
    "layer-act-grad": "LayerActGrad",
    "layer-weight-norm": "LayerWeightNorm",
    "weight-norm": "WeightNorm",
    "layer-sampling": "LayerSampling",
    "layer-greedy-fs": "LayerGreedyFS",
    "layer-greedy-fs-fd": "LayerGreedyFS-fd",
    "random": "Random",
    "layer-random": "LayerRandom",
}
"""The paper's names."""

Group = tuple[str, bool, str, str]  # method, reweight, batchnorm, finetune


@dataclass(frozen=True)
class Point:
    """One method at one value: mean and standard deviation over seeds, and the paper's numbers if
    it has them.
    """

    value: float
    runs: int
    top1: float
    std: float
    speedup: float
    seconds: float  # of pruning, without the choice of budgets
    budget_seconds: float
    share: float  # of the dense accuracy
    paper_top1: float | None = None
    paper_share: float | None = None
    paper_speedup: float | None = None
    paper_seconds: float | None = None

    @property
    def text(self) -> str:
        """Top-1, with its deviation if there is more than one run."""
        return f"{self.top1:.1f} ± {self.std:.1f}" if self.runs > 1 else f"{self.top1:.1f}"

    @property
    def difference(self) -> float | None:
        """Share of the dense accuracy kept, ours less the paper's, in points."""
        return None if self.paper_share is None else 100 * (self.share - self.paper_share)


@functools.cache
def paper_rows() -> dict[tuple[str, str, bool, bool, float], dict[str, float]]:
    """The paper's tables, by (model, method, reweighted, fine-tuned, compression)."""
    names = {label: name for name, label in LABELS.items()}
    rows = {}
    with (Path(__file__).resolve().parent / "paper_tables.csv").open(
        newline="", encoding="utf-8"
    ) as file:
        for row in csv.DictReader(file):
            key = (
                row["model"],
                names[row["method"]],
                row["reweighted"] == "1",
                row["finetuned"] == "1",
            )
            numbers = ("top1", "flops_speedup", "pruning_seconds")
            whole = (*key, float(row["compression"]))
            rows[whole] = {n: float(row[n]) for n in numbers}
    return rows


def dense_top1(rows: Sequence[Row]) -> float:
    """Top-1 of the network with nothing pruned; nan if that cell was not run."""
    return next(
        (r["top1"] for r in rows if r["method"] == DENSE and r["status"] == "done"), float("nan")
    )


def points(config: Config, rows: Sequence[Row]) -> dict[Group, list[Point]]:
    """Finished rows by method, reweighting, BatchNorm and fine-tuning; values ascending, the dense
    one left out.
    """
    dense, cells = dense_top1(rows), defaultdict(list)
    for row in rows:
        if row["status"] == "done" and row["method"] != DENSE:
            group = (row["method"], bool(row["reweight"]), row["batchnorm"], row["finetune"])
            cells[group, row["value"]].append(row)
    curves: dict[Group, list[Point]] = defaultdict(list)
    for (group, value), runs in sorted(cells.items(), key=lambda item: (item[0][0], item[0][1])):
        curves[group].append(_point(config, group, value, runs, dense))
    return dict(curves)


def _point(config: Config, group: Group, value: float, runs: Sequence[Row], dense: float) -> Point:
    top1 = [row["top1"] for row in runs]
    point: dict[str, Any] = {
        "value": value,
        "runs": len(runs),
        "top1": mean(top1),
        "std": pstdev(top1),
    }
    point["speedup"] = mean(row["speedup"] for row in runs)
    point["seconds"] = mean(row["prune_seconds"] for row in runs)
    point["budget_seconds"] = mean(row["budget_seconds"] for row in runs)
    point["share"] = mean(top1) / dense
    method, reweight, _, finetune = group
    paper = paper_rows().get((config.paper_model, method, reweight, finetune == "full", value))
    if paper is not None and finetune != "limited" and config.goal == "compression":
        point["paper_top1"], point["paper_share"] = (
            paper["top1"],
            paper["top1"] / config.paper_dense,
        )
        point["paper_speedup"], point["paper_seconds"] = (
            paper["flops_speedup"],
            paper["pruning_seconds"],
        )
    return Point(**point)


def summary_rows(curves: dict[Group, list[Point]]) -> list[dict[str, Any]]:
    """One row per method and value, for a CSV file."""
    rows = []
    for (method, reweight, batchnorm, finetune), curve in curves.items():
        for p in curve:
            rows.append(
                {
                    "method": method,
                    "reweight": int(reweight),
                    "batchnorm": batchnorm,
                    "finetune": finetune,
                    "value": f"{p.value:g}",
                    "runs": p.runs,
                    "top1": round(p.top1, 3),
                    "std": round(p.std, 3),
                    "share_of_dense": round(p.share, 5),
                    "speedup": round(p.speedup, 3),
                    "prune_seconds": round(p.seconds, 2),
                    "budget_seconds": round(p.budget_seconds, 2),
                    "paper_top1": _plain(p.paper_top1),
                    "paper_share": _plain(p.paper_share),
                    "share_difference_points": _plain(p.difference),
                    "paper_speedup": _plain(p.paper_speedup),
                    "paper_seconds": _plain(p.paper_seconds),
                }
            )
    return rows


def _plain(value: float | None) -> float | str:
    return "" if value is None else round(value, 4)


def write_csv(rows: Sequence[dict[str, Any]], path: Path) -> Path:
    """Rows of plain values, all or nothing."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return write_atomic(path, text.getvalue().encode())


def read_rows(path: Path) -> list[Row]:
    """Rows that `write_rows` wrote as CSV, numbers as numbers and results that are not there as
    None.
    """
    kinds = {"INTEGER": int, "REAL": float}

    def value(name: str, kind: str, text: str) -> Any:
        return kinds.get(kind, str)(text) if text or name in SETTINGS else None

    try:
        with path.open(newline="", encoding="utf-8") as file:
            lines = list(csv.DictReader(file))
        return [
            {name: value(name, kind, line[name]) for name, kind in COLUMNS.items()}
            for line in lines
        ]
    except (OSError, UnicodeDecodeError, KeyError, ValueError, csv.Error) as error:
        raise DataError(
            f"{path} cannot be read as rows ({type(error).__name__}: {error}); give a file that "
            "`subprune experiment export GRID FILE.csv` wrote."
        ) from error


def write_rows(rows: Sequence[Row], path: Path) -> Path:
    """All columns of all cells, as CSV or, where pyarrow is installed, as Parquet."""
    if not rows:
        raise DataError(
            "there is nothing to export: no cell of this grid has a row; run the experiment first."
        )
    ordered = sorted(
        rows,
        key=lambda r: (
            r["method"],
            r["value"],
            -r["reweight"],
            r["batchnorm"],
            r["finetune"],
            r["seed"],
        ),
    )
    if path.suffix == ".csv":
        return write_csv([{name: row[name] for name in COLUMNS} for row in ordered], path)
    if path.suffix != ".parquet":
        raise OptionError(f"the file {path.name} must end in .csv or .parquet.")
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise OptionError(
            "Parquet needs pyarrow, which is not installed; export to .csv or install it."
        ) from error
    sink = pyarrow.BufferOutputStream()
    table = pyarrow.table({name: [row[name] for row in ordered] for name in COLUMNS})
    pyarrow.parquet.write_table(table, sink)
    return write_atomic(path, sink.getvalue().to_pybytes())
