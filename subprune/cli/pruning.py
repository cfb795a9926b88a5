"""The work of ``subprune prune``: load, prune, write."""

from __future__ import annotations

import contextlib
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from subprune.api import forecast as foresee
from subprune.api import prune as run
from subprune.cli import arguments as a
from subprune.cli.console import line_width, print_json, print_text, say
from subprune.cli.data import DataChoice, load_data, load_verification
from subprune.cli.loading import find_callable, is_code, load
from subprune.cli.torchrun import started_job
from subprune.errors import OptionError, SubpruneError
from subprune.files import check_folder, locked, write_atomic
from subprune.io.storage import save
from subprune.measure.stopwatch import Stopwatch
from subprune.messages import FLAGS, Message, spelled
from subprune.options.options import Options
from subprune.progress import progress_bar
from subprune.report.forecast import Forecast
from subprune.report.terminal import not_pruned, report_text
from subprune.result import Result

__all__ = ["Job", "run_job"]

CHECKPOINT = "checkpoint"
"""Folder in the output for what is finished, until the result is written."""

_QUICK = 30.0  # seconds: bounds take about as long as the pruning


@dataclass(frozen=True, kw_only=True)
class Job:
    """What the command says besides the options of the table."""

    model: str
    weights: Path | None
    download: bool
    data: str
    preparation: a.Preparation
    output: Path
    guarantees: bool | None
    dry_run: bool
    json: bool


def run_job(job: Job, words: Mapping[str, Any]) -> None:
    """Load, prune, write; `words` are the flags of the table.

    Of several processes that torchrun started, the first does all that can be seen.
    """
    with started_job() as rank:
        _run(job, words, rank)


def _run(job: Job, words: Mapping[str, Any], rank: int) -> None:
    watch, shown = Stopwatch(), False if job.json or rank else None
    keywords = a.read(words)
    count = keywords.get("n_samples", a.TABLED["n_samples"].default)
    inputs_read = count if isinstance(count, int) else None  # tokens are counted in all of them
    choice = DataChoice(job.data, inputs_read, words["seed"], job.preparation)
    if is_code(job.model):
        find_callable(job.model, "--model")  # its file may register methods and parts
    options = Options(**keywords)  # refused before anything is loaded
    why = options.unbounded
    if job.guarantees and why:
        raise OptionError(Message("{guarantees:name}: {why}", why=why))
    remarks: dict[str, None] = {}
    with _loading("the model", shown, watch):
        loaded = load(job.model, job.weights, download=job.download)
    choice = replace(choice, loaded=loaded, remark=remarks.setdefault)
    with _loading("the data", shown, watch):
        others, verified_on = _other_data(choice, options)
        inputs = load_data(choice)
    keywords |= {**others, "progress": shown}
    if options.allocator.measures_answers:
        keywords.setdefault("cache", job.output / "cache")
    if job.dry_run:
        forecast = foresee(loaded.model, inputs, **keywords)
        if not rank:
            _show_forecast(forecast, remarks, job.json)
        return
    keywords.setdefault("checkpoint", job.output / CHECKPOINT)
    if rank:
        run(loaded.model, inputs, **keywords)
        return
    check_folder(job.output, "--output")
    with locked(job.output, f"--output {str(job.output)!r}"):
        result = run(loaded.model, inputs, **keywords)
        quick = not why and result.report.seconds < _QUICK
        if quick if job.guarantees is None else job.guarantees:
            result = _guaranteed(result, loaded.model, choice, shown)
        result = _waited(result, {**watch.parts, **result.report.parts})
        notes = (*remarks, *result.report.notes)
        result = replace(result, report=replace(result.report, notes=notes))
        _write(result, job.output, job.json, verified_on)
        shutil.rmtree(job.output / CHECKPOINT, ignore_errors=True)


@contextlib.contextmanager
def _loading(what: str, shown: bool | None, watch: Stopwatch) -> Iterator[None]:
    """A line of progress, and the time that it took."""
    with progress_bar({"loading": 1}, shown) as tick:
        tick(f"loading {what}")
        yield
    watch.lap(f"loading {what}")


def _other_data(choice: DataChoice, named: Options) -> tuple[dict[str, Any], str]:
    """The other data of `subprune.prune`, and in words which images accuracy is measured on."""
    loaded: dict[str, Any] = {}
    words = ""
    if named.verify_data is not None:
        verification = load_verification(
            choice, named.verify_data, named.allocator.measures_answers
        )
        loaded["verify_data"], words = verification
    if named.train_data is not None:
        pool = replace(choice, spec=named.train_data, n_samples=None, option="--train-data")
        loaded["train_data"] = load_data(pool)
    return loaded, words


def _waited(result: Result, parts: dict[str, float]) -> Result:
    """The result with all parts of the time that the user waited."""
    report = replace(result.report, seconds=sum(parts.values()), parts=parts)
    return replace(result, report=report)


def _guaranteed(result: Result, net: Any, choice: DataChoice, progress: bool | None) -> Result:
    """The result with bounds for what was selected, as it was selected; their time counts too."""
    from subprune.guarantees.certificates import guarantees

    watch = Stopwatch()
    plan = result.plan
    names = ("patches", "seed", "n_samples", "fit", "ridge", "folds", "drift")
    same: dict[str, Any] = {name: plan.options[name] for name in names}
    same["target"] = plan.target
    try:
        proven = guarantees(
            net,
            load_data(choice),
            budgets=plan.counts,
            progress=progress,
            **same,
        )
        result = result.with_guarantees(proven)
    except SubpruneError as error:  # the pruned model is not to be lost
        say(f"no bounds in the report: {error.spelled(FLAGS)}")
    watch.lap("guarantees")
    return _waited(result, {**result.report.parts, **watch.parts})


def _show_forecast(forecast: Forecast, remarks: Iterable[str], json: bool) -> None:
    for text in remarks:
        say(text)
    if json:
        print_json(forecast.to_dict())
    else:
        print_text(forecast.table(line_width()))
        stays = {name: spelled(why, FLAGS) for name, why in forecast.refused.items()}
        for line in not_pruned(stays):
            say(line)
    if not forecast.feasible:
        raise OptionError(forecast.problem)


def _write(result: Result, output: Path, json: bool, verified_on: str) -> None:
    report = replace(
        result.report,
        command=shlex.join(["subprune", *sys.argv[1:]]),
        notes=tuple(spelled(note, FLAGS) for note in result.report.notes),
        refused={name: spelled(why, FLAGS) for name, why in result.report.refused.items()},
        accuracy_on=verified_on or result.report.accuracy_on,
    )
    result = replace(result, report=report)
    save(result, output / "model.safetensors")
    write_atomic(output / "report.json", result.report.to_json().encode())
    result.report.save_html(output / "report.html")
    if json:
        print_json(result.report.to_dict())
        return
    print_text(report_text(result.report, line_width()))
    say(f"{output / 'model.safetensors'}, {output / 'report.html'} and report.json were written.")
