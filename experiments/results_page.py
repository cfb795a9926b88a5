"""Rows, report and page of one grid, from its store, or from its committed rows, to what is
committed.

    subprune experiment run experiments/NAME.toml --models-dir MODELS --data-dir DATA --output OUT
    python experiments/results_page.py experiments/NAME.toml OUT --page docs/results-MODEL.md
    python experiments/results_page.py experiments/NAME.toml experiments/results/NAME/cells.csv

Writes experiments/results/NAME/ (all rows, the summary, the report, figures) and, with --page, the
tables into that page; what follows the mark "written by hand" in it stays.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

from subprune_paper.config import Config, read_config
from subprune_paper.grid import cells_of
from subprune_paper.page import write_report
from subprune_paper.store import Row, Store
from subprune_paper.tables import (
    LABELS,
    OURS,
    Group,
    Point,
    dense_top1,
    points,
    read_rows,
    write_rows,
)

HERE = Path(__file__).resolve().parent
Found = dict[Group, list[Point]]
ANEW = {
    "recalibrate": "BatchNorm re-estimated at the end",
    "sequential": "BatchNorm re-estimated on the way",
}


def cell(point: Point | None) -> str:
    """Top-1, spread over seeds if there are several, and the paper's."""
    if point is None:
        return "–"
    text = point.text
    if point.paper_top1 is not None:
        text += f" (paper {point.paper_top1:.1f}; {point.difference:+.1f})"
    return text


def table(config: Config, found: Found, reweight: bool, batchnorm: str, finetune: str) -> list[str]:
    """One line per method that has a cell; nothing if none has."""
    values = [v for v in config.values if v != 1]
    lines = []
    for method in config.methods:
        own = {p.value: p for p in found.get((method, reweight, batchnorm, finetune), [])}
        if own:
            lines.append(
                f"| {LABELS[method]} | " + " | ".join(cell(own.get(v)) for v in values) + " |"
            )
    if not lines:
        return []
    words = ["With reweighting" if reweight else "Without reweighting"]
    words += [ANEW[batchnorm]] if batchnorm != "keep" else []
    words += [
        {
            "none": "no fine-tuning",
            "limited": "fine-tuned on the same images",
            "full": "fine-tuned",
        }[finetune]
    ]
    head = [
        "| method | " + " | ".join(f"c = {v:g}" for v in values) + " |",
        "|---" * (len(values) + 1) + "|",
    ]
    return ["", f"## {', '.join(words)}", "", *head, *lines]


def shortfalls(config: Config, found: Found) -> list[str]:
    """Cells of the three variants that keep less than the paper's share with some BatchNorm, and
    all their results.
    """
    lines = []
    for method in OURS:
        for reweight in config.reweight:
            kinds = [
                {p.value: p for p in found.get((method, reweight, kind, "none"), [])}
                for kind in ("keep", *ANEW)
            ]
            for value in config.values:
                own = [points_.get(value) for points_ in kinds]
                if any(
                    p is not None and p.difference is not None and p.difference < 0 for p in own
                ):
                    head = f"{LABELS[method]} | {'yes' if reweight else 'no'} | {value:g}"
                    lines.append(f"| {head} | {' | '.join(map(cell, own))} |")
    if not lines:
        return [
            "",
            "Every cell of the three variants keeps at least the paper's share of the dense accuracy.",
        ]
    titles = ["BatchNorm kept", *ANEW.values()]
    head = [
        "| variant | reweighted | c | " + " | ".join(titles) + " |",
        "|---" * (3 + len(titles)) + "|",
    ]
    return ["", "## Where the three variants keep less than in the paper", "", *head, *lines]


def not_run(config: Config, found: Found) -> list[str]:
    """Which of the paper's tables have no row here at all."""
    run = {(reweight, finetune) for _, reweight, _, finetune in found}
    missing = [
        f"{'with' if reweight else 'without'} reweighting, {words}"
        for finetune, words in (("none", "no fine-tuning"), ("full", "fine-tuned on all data"))
        for reweight in (True, False)
        if (reweight, finetune) not in run
    ]
    return ["", f"Not run of the paper's table: {'; '.join(missing)}."] if missing else []


def delta_changes(config: Config) -> str:
    """What the paper's delta would change, where that was computed."""
    with (HERE / "results" / "sampling-delta.csv").open(newline="") as file:
        found = [row for row in csv.DictReader(file) if row["experiment"] == config.name]
    if not found:
        return ""
    groups = [int(row["groups that differ"]) for row in found]
    most = max(int(row["units apart at most"]) for row in found)
    return (
        f" (which changes {sum(n > 0 for n in groups)} of {len(found)} budgets, in at most {max(groups)} layers "
        f"and by at most {most} unit{'s'[: most > 1]}: `experiments/sampling_delta.py`)"
    )


def page(config: Config, rows: list[Row], notes: str) -> str:
    """The whole page as markdown."""
    found = points(config, rows)
    pruned = [r for r in rows if r["value"] != 1]
    seeds = sorted({r["seed"] for r in pruned})
    several = f"seeds {', '.join(map(str, seeds))}, a cell without ± has one"
    said = several if len(seeds) > 1 else f"seed {seeds[0]}"
    lines = [
        f"# {config.title}",
        "",
        f"Made by `experiments/results_page.py` from the committed rows; {said}; 10,000 test images. Dense top-1 "
        f"{dense_top1(rows):.2f} here, {config.paper_dense} in the paper. 512 augmented training images, without "
        "labels but for the gradient methods and the greedy-fs pair (-fd draws from all training images). Budgets of "
        f"layerwise methods: {config.allocate}, on their own error curves (the greedy-fs pair on LayerInChange's), "
        "where the paper measures accuracy on 10,000 labelled images; LayerSampling and the global methods have rules "
        f"of their own, the first with δ = 1e-12, in the paper 1e-16{delta_changes(config)}. In brackets: the paper's "
        "top-1, and the share of the dense accuracy that is left, ours less the paper's, in points. In the authors' code every reweighted or "
        "sequential run has BatchNorm re-estimated on the way, because the network is left in training mode; here it "
        "is a switch. A dash: not run.",
        *not_run(config, found),
    ]
    for finetune in config.finetune:
        for reweight in config.reweight:
            for batchnorm in config.batchnorm:
                lines += table(config, found, reweight, batchnorm, finetune)
    lines += shortfalls(config, found)
    return "\n".join(lines) + "\n" + notes


MARK = "\n<!-- written by hand from here on -->\n"


def rows_of(config: Config, source: Path) -> list[Row]:
    """The grid's rows, from a file of rows or a folder with a store."""
    keys = [cell.key for cell in cells_of(config)]
    if source.suffix == ".csv":
        return [row for row in read_rows(source) if row["key"] in set(keys)]
    if not (source / "results.sqlite").is_file():
        raise SystemExit(
            f"{source} is neither a .csv file of rows nor a folder with results.sqlite."
        )
    with Store(source / "results.sqlite") as store:
        return store.rows(keys)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("grid", help="TOML file, or the name of a shipped grid")
    parser.add_argument("source", type=Path, help="folder of the run, or a .csv file of its rows")
    parser.add_argument(
        "--page", type=Path, help="markdown page to write; what was written by hand there stays"
    )
    options = parser.parse_args()
    config = read_config(options.grid)
    rows, folder, file = (
        rows_of(config, options.source),
        HERE / "results" / config.name,
        options.page,
    )
    folder.mkdir(parents=True, exist_ok=True)
    write_rows(rows, folder / "cells.csv")
    write_report(config, rows, folder)
    print(f"wrote {folder.name}/ from {len(rows)} rows")
    if file is not None:
        _, mark, notes = (
            file.read_text(encoding="utf-8").partition(MARK) if file.exists() else ("", "", "")
        )
        file.write_text(page(config, rows, mark + notes), encoding="utf-8")
        print(f"wrote {file.name}")


if __name__ == "__main__":
    main()
