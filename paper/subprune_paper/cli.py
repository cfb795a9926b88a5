"""``subprune experiment run | status | report | export``."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from subprune.cli.switches import App
from subprune.errors import OptionError, SubpruneError
from subprune_paper import cells as running
from subprune_paper.config import Config, read_config, shipped_names
from subprune_paper.download import OFFICIAL, download
from subprune_paper.engine import (
    Engine,
    Notify,
    Summary,
    plan_workers,
    run_cells,
    worker_context,
)
from subprune_paper.grid import Cell, cells_of, parse_filters, select
from subprune_paper.local_engine import LocalEngine
from subprune_paper.store import Store

__all__ = ["app"]

_EXAMPLES = """Examples:

  subprune experiment run smoke
  subprune experiment status smoke
  subprune experiment report smoke
"""
app = App(
    epilog=_EXAMPLES,
    help=f"Grids of pruning runs: start, stop, resume, report. Shipped: {', '.join(shipped_names())}.",
    no_args_is_help=True,
    add_completion=False,
)
out, err = Console(), Console(stderr=True)

ConfigArgument = Annotated[
    str, typer.Argument(metavar="CONFIG.toml", help="A TOML file, or a shipped one's name.")
]
OutputOption = Annotated[
    Path | None, typer.Option(help="Folder of the results (default: results/NAME).")
]
OnlyOption = Annotated[
    list[str] | None, typer.Option(help="Part of the grid, e.g. method=random,act-grad or seed=42.")
]


def _load(
    config: str, only: list[str] | None, output: Path | None
) -> tuple[Config, list[Cell], Path]:
    read = read_config(config)
    running.load_sources(read.sources)
    return (
        read,
        select(cells_of(read), parse_filters(only or [])),
        output or Path("results") / read.name,
    )


@app.command(epilog="Example: subprune experiment run smoke --workers 1")
def run(
    config: ConfigArgument,
    output: OutputOption = None,
    only: OnlyOption = None,
    engine: Annotated[str, typer.Option(help="local (processes here) or ray.")] = "local",
    address: Annotated[
        str | None, typer.Option(help="Of a Ray cluster; without it, Ray on this machine.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Cells at once (default: as fits cores and memory).")
    ] = None,
    retries: Annotated[int, typer.Option(help="More tries for a cell that failed.")] = 2,
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder of the data sets (default: $SUBPRUNE_DATA).")
    ] = None,
    models_dir: Annotated[
        Path | None, typer.Option(help="Folder of weights (default: $SUBPRUNE_MODELS).")
    ] = None,
    fetch: Annotated[
        bool, typer.Option("--download", help="Get a missing data set from its official place.")
    ] = False,
) -> None:
    """Run all cells that are not finished; stop it at any moment and start it again to go on."""
    read, wanted, folder = _load(config, only, output)
    count, threads = plan_workers(read, workers)
    context = worker_context(_text(data_dir), _text(models_dir), folder / "cache", threads)
    with Store(folder / "results.sqlite") as store:
        unfinished = len({cell.key for cell in wanted} - store.finished())
        if unfinished and fetch and read.dataset in OFFICIAL and context.data_dir:
            download(read.dataset, context.data_dir)
        if unfinished:
            running.check(wanted, context)
        with _progress(len(wanted), len(wanted) - unfinished) as notify:
            chosen = _engine(engine, count, context, address)
            summary = run_cells(read, wanted, store, chosen, retries=retries, notify=notify)
    _tell(summary, folder)


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _engine(name: str, workers: int, context: running.Context, address: str | None) -> Engine:
    if name == "local":
        return LocalEngine(workers, context)
    if name == "ray":
        from subprune_paper.ray_engine import RayEngine

        return RayEngine(workers, context, address)
    raise OptionError(f"--engine is {name!r}; allowed are local and ray.")


@contextlib.contextmanager
def _progress(total: int, done: int) -> Iterator[Notify]:
    """An overall bar with the time left and a line per worker in a terminal; nothing elsewhere."""
    if not err.is_terminal:
        yield lambda kind, number, text: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, TimeRemainingColumn(elapsed_when_finished=True), console=err) as bar:
        overall = bar.add_task("cells", total=total, completed=done)
        lines: dict[int, TaskID] = {}

        def notify(kind: str, number: int, text: str) -> None:
            if kind == "cell":
                bar.advance(overall)
                bar.update(overall, description=text)
            elif text:
                if number not in lines:
                    lines[number] = bar.add_task("", total=None)
                bar.update(lines[number], description=f"  {text}")
            elif number in lines:
                bar.remove_task(lines.pop(number))

        yield notify


def _tell(summary: Summary, folder: Path) -> None:
    parts = [f"{summary.done} cells run", f"{summary.skipped} finished before"]
    parts += [f"{summary.infeasible} not feasible"] if summary.infeasible else []
    parts += [f"{summary.elsewhere} left to another run"] if summary.elsewhere else []
    out.print(f"{', '.join(parts)}; results are in {folder}.", highlight=False, soft_wrap=True)
    if summary.failed:
        for label, why in summary.failed.items():
            err.print(f"failed: {label}: {why}", highlight=False, markup=False)
        raise typer.Exit(1)


@app.command(epilog="Example: subprune experiment status lenet-mnist --output results/lenet-mnist")
def status(config: ConfigArgument, output: OutputOption = None, only: OnlyOption = None) -> None:
    """What is finished, what is left, what failed and why."""
    read, wanted, folder = _load(config, only, output)
    finished = {}
    if (folder / "results.sqlite").is_file():
        with Store(folder / "results.sqlite") as store:
            finished = {row["key"]: row for row in store.rows(cell.key for cell in wanted)}
    counts: dict[str, Counter[str]] = {}
    for cell in wanted:
        state = finished[cell.key]["status"] if cell.key in finished else "left"
        counts.setdefault(cell.method, Counter())[state] += 1
    table = Table(
        "method",
        "done",
        "not feasible",
        "failed",
        "left",
        title=f"{read.name}: {len(wanted)} cells",
    )
    for method, states in counts.items():
        table.add_row(
            method, *(str(states[state]) for state in ("done", "infeasible", "failed", "left"))
        )
    out.print(table)
    for cell in wanted:
        if cell.key in finished and finished[cell.key]["status"] == "failed":
            out.print(
                f"failed: {cell.label}: {finished[cell.key]['note']}", highlight=False, markup=False
            )


@app.command(epilog="Example: subprune experiment report lenet-mnist --output results/lenet-mnist")
def report(config: ConfigArgument, output: OutputOption = None, only: OnlyOption = None) -> None:
    """Tables and figures next to the paper's: report.html, figures as PNG, tables as CSV."""
    from subprune_paper.figures import can_draw
    from subprune_paper.page import write_report

    read, wanted, folder = _load(config, only, output)
    with _existing(folder) as store:
        written = write_report(read, store.rows(cell.key for cell in wanted), folder)
    out.print(
        "written: " + ", ".join(str(path) for path in written), soft_wrap=True, highlight=False
    )
    if not can_draw():
        out.print(
            "no figures: they need matplotlib; pip install 'subprune-paper[full]'", markup=False
        )


@app.command(epilog="Example: subprune experiment export lenet-mnist lenet.csv")
def export(
    config: ConfigArgument,
    file: Annotated[Path, typer.Argument(help="Ends in .csv or .parquet.")],
    output: OutputOption = None,
    only: OnlyOption = None,
) -> None:
    """All rows of the grid as CSV or Parquet."""
    from subprune_paper.tables import write_rows

    _, wanted, folder = _load(config, only, output)
    with _existing(folder) as store:
        write_rows(store.rows(cell.key for cell in wanted), file)
    out.print(f"written: {file}", soft_wrap=True, highlight=False)


def _existing(folder: Path) -> Store:
    if not (folder / "results.sqlite").is_file():
        raise OptionError(
            f"{folder} holds no results.sqlite; run the experiment first, or give its --output."
        )
    return Store(folder / "results.sqlite")


def main() -> None:
    """Entry point of ``python -m subprune_paper.cli``: errors of ours are one line."""
    try:
        app()
    except SubpruneError as error:
        err.print(f"error: {error}", highlight=False, markup=False)
        sys.exit(2)


if __name__ == "__main__":
    main()
