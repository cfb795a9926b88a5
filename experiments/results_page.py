"""Rows, report and page of one grid, from its store, or from its committed rows, to what is committed.

    subprune experiment run experiments/NAME.toml --models-dir MODELS --data-dir DATA --output OUT
    python experiments/results_page.py experiments/NAME.toml OUT --page docs/results-MODEL.md
    python experiments/results_page.py experiments/NAME.toml experiments/results/NAME/cells.csv

Writes experiments/results/NAME/ (all rows, the summary, the report, figures) and, with --page, the tables into that
page; what follows the mark "written by hand" in it stays.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from subprune.experiments.config import Config, read_config
from subprune.experiments.grid import cells_of
from subprune.experiments.page import write_report
from subprune.experiments.store import Row, Store
from subprune.experiments.tables import LABELS, OURS, Group, Point, dense_top1, points, read_rows, write_rows

HERE = Path(__file__).resolve().parent
Found = dict[Group, list[Point]]
ANEW = {"recalibrate": "BatchNorm taken anew at the end", "sequential": "BatchNorm taken anew on the way"}


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
            lines.append(f"| {LABELS[method]} | " + " | ".join(cell(own.get(v)) for v in values) + " |")
    if not lines:
        return []
    words = ["With reweighting" if reweight else "Without reweighting"]
    words += [ANEW[batchnorm]] if batchnorm != "keep" else []
    words += [{"none": "no fine-tuning", "limited": "fine-tuned on the same images", "full": "fine-tuned"}[finetune]]
    head = ["| method | " + " | ".join(f"c = {v:g}" for v in values) + " |", "|---" * (len(values) + 1) + "|"]
    return ["", f"## {', '.join(words)}", "", *head, *lines]


def shortfalls(found: Found) -> list[str]:
    """Cells of the three variants that keep less than the paper's share, with what BatchNorm taken anew gives."""
    lines = []
    for method in OURS:
        for reweight in (True, False):
            anew = [{p.value: p for p in found.get((method, reweight, kind, "none"), [])} for kind in ANEW]
            for point in found.get((method, reweight, "keep", "none"), []):
                if point.difference is not None and point.difference < 0:
                    others = " | ".join(cell(own.get(point.value)) for own in anew)
                    head = f"{LABELS[method]} | {'yes' if reweight else 'no'} | {point.value:g}"
                    lines.append(f"| {head} | {cell(point)} | {others} |")
    if not lines:
        return ["", "Every cell of the three variants keeps at least the paper's share of the dense accuracy."]
    kinds = ["BatchNorm kept", *ANEW.values()]
    head = ["| variant | reweighted | c | " + " | ".join(kinds) + " |", "|---" * (3 + len(kinds)) + "|"]
    return ["", "## Where the three variants keep less than in the paper", "", *head, *lines]


def page(config: Config, rows: list[Row], notes: str) -> str:
    """The whole page as markdown."""
    found = points(config, rows)
    pruned = [r for r in rows if r["value"] != 1]
    seeds = sorted({r["seed"] for r in pruned})
    lines = [
        f"# {config.title}",
        "",
        f"Made by `experiments/results_page.py` from the committed rows; seeds {', '.join(map(str, seeds))} (a cell "
        f"without ± has one), 10,000 test images. Dense top-1 {dense_top1(rows):.2f} here, {config.paper_dense} in the "
        "paper. 512 augmented training images without labels (the gradient methods use labels); layerwise methods "
        "share the target out by knapsack on their error curves, where the paper measures accuracy on 10,000 labelled "
        "images. In brackets: the paper's top-1, and the share of the dense accuracy that is left, ours less the "
        "paper's, in points. In the authors' code every reweighted or sequential run has BatchNorm taken anew on the "
        "way, because the network is left in training mode; here it is a switch. A dash: not run.",
    ]
    for finetune in config.finetune:
        for reweight in config.reweight:
            for batchnorm in config.batchnorm:
                lines += table(config, found, reweight, batchnorm, finetune)
    lines += shortfalls(found)
    return "\n".join(lines) + "\n" + notes


MARK = "\n<!-- written by hand from here on -->\n"


def rows_of(config: Config, source: Path) -> list[Row]:
    """The grid's rows, from a file of rows or a folder with a store."""
    keys = [cell.key for cell in cells_of(config)]
    if source.suffix == ".csv":
        return [row for row in read_rows(source) if row["key"] in set(keys)]
    if not (source / "results.sqlite").is_file():
        raise SystemExit(f"{source} is neither a .csv file of rows nor a folder with results.sqlite.")
    with Store(source / "results.sqlite") as store:
        return store.rows(keys)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("grid", help="TOML file, or the name of a shipped grid")
    parser.add_argument("source", type=Path, help="folder of the run, or a .csv file of its rows")
    parser.add_argument("--page", type=Path, help="markdown page to write; what was written by hand there stays")
    options = parser.parse_args()
    config = read_config(options.grid)
    rows, folder, file = rows_of(config, options.source), HERE / "results" / config.name, options.page
    folder.mkdir(parents=True, exist_ok=True)
    write_rows(rows, folder / "cells.csv")
    write_report(config, rows, folder)
    print(f"wrote {folder.name}/ from {len(rows)} rows")
    if file is not None:
        _, mark, notes = file.read_text(encoding="utf-8").partition(MARK) if file.exists() else ("", "", "")
        file.write_text(page(config, rows, mark + notes), encoding="utf-8")
        print(f"wrote {file.name}")


if __name__ == "__main__":
    main()
