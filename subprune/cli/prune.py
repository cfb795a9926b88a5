"""``subprune prune``"""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from subprune.api import prune as run
from subprune.cli import options as o
from subprune.cli.console import out, print_json, say
from subprune.cli.data import DataChoice, load_data, load_verification
from subprune.cli.flags import in_flags
from subprune.cli.models import load_model
from subprune.errors import OptionError, SubpruneError
from subprune.forecast import Forecast
from subprune.io.files import write_atomic
from subprune.io.storage import save
from subprune.measure.stopwatch import Stopwatch
from subprune.plan import unprovable
from subprune.progress import progress_bar
from subprune.result import Result
from subprune.select.presets import find_method

__all__ = ["register"]

TARGETS = "Target (exactly one)"
_QUICK = 30.0  # seconds: bounds take about as long as the pruning
EXAMPLES = """Examples:

* `subprune prune --model lenet-mnist --data mnist-sample --compression 4 --output small`
* `subprune prune --model my.nets:resnet18 --weights resnet18.pt --data images/ --resize 224 --speedup 2 --output small`
* `subprune prune --model net.py:build --data inputs.npz --params 50% --dry-run`
"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog=EXAMPLES)(prune)


def _target(text: str) -> Any:
    return typer.Option(help=text, rich_help_panel=TARGETS)


def prune(
    model: o.Model,
    data: o.Data,
    weights: o.Weights = None,
    compression: Annotated[float | None, _target("Parameters before / after.")] = None,
    speedup: Annotated[float | None, _target("FLOPs before / after.")] = None,
    params: Annotated[
        str | None, _target("Parameters left: a number, or a share such as 50%.")
    ] = None,
    flops: Annotated[
        str | None, _target("FLOPs left for one input: a number, or a share such as 50%.")
    ] = None,
    latency: Annotated[
        str | None, _target("Milliseconds a call may take, or a share such as 60%; measured.")
    ] = None,
    keep: Annotated[float | None, _target("Fraction of the units of every group.")] = None,
    budget: Annotated[list[str] | None, _target("GROUP=UNITS, as often as needed.")] = None,
    method: Annotated[str, typer.Option(help="See `subprune methods`.")] = "asym-in-change",
    allocate: Annotated[
        str | None, typer.Option(help="Budget rule; see `subprune methods`.")
    ] = None,
    output: Annotated[Path, typer.Option(help="Folder for the model and the reports.")] = Path(
        "pruned"
    ),
    verify: Annotated[
        str | None,
        typer.Option(
            metavar="DATA",
            help="Labelled data, as --data but all of it, for accuracy. Of a built-in set its test images; with "
            "--allocate equal-accuracy or equal-agreement, which measure on it, training images not calibrated on.",
        ),
    ] = None,
    train_data: Annotated[
        str | None,
        typer.Option(
            metavar="DATA", help="Labelled data, as --data but all of it, for layer-greedy-fs-fd."
        ),
    ] = None,
    n_samples: o.Samples = 512,
    seed: o.Seed = 0,
    round_to: Annotated[
        int | None,
        typer.Option(help="Numbers of units are multiples of this [default: 1; 8 with --latency]."),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Prune only these groups or modules; wildcards and re:PATTERN work."),
    ] = None,
    ignore: Annotated[
        list[str] | None, typer.Option(help="Leave these groups or modules alone, likewise.")
    ] = None,
    reweight: Annotated[
        bool, typer.Option(help="Rewrite the next layers' weights by least squares.")
    ] = True,
    ridge: Annotated[
        float | None,
        typer.Option(
            help="Strength that draws the new weights toward the old, relative to the inputs' mean energy; 0 is "
            "the paper's plain fit [default: chosen on held-out inputs]."
        ),
    ] = None,
    folds: Annotated[
        int | None,
        typer.Option(
            help="Parts of the data, each judged by a fit to the others [default: 4; 1 with --ridge 0]."
        ),
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(help="Between 0 and 1: stochastic greedy, for the in-change methods."),
    ] = None,
    patches: Annotated[str, typer.Option(help="all, or random patches of each image.")] = "all",
    batchnorm: Annotated[
        str, typer.Option(help="keep, recalibrate (at the end), or sequential (on the way).")
    ] = "keep",
    time: Annotated[
        bool | None,
        typer.Option(
            "--time/--no-time",
            help="Time calls with a whole batch, or none [default: with one input].",
        ),
    ] = None,
    guarantees: Annotated[
        bool | None,
        typer.Option(
            "--guarantees/--no-guarantees",
            help="Proven bounds in the report [default: where pruning was quick].",
        ),
    ] = None,
    data_dir: o.DataDir = None,
    resize: o.Resize = None,
    mean: o.Mean = "",
    std: o.Std = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would go, and what it costs.")
    ] = False,
    json: o.Json = False,
) -> None:
    """Prune a model: OUTPUT gets model.safetensors, report.html and report.json."""
    watch, shown = Stopwatch(), False if json else None
    choice = DataChoice(data, n_samples, seed, data_dir, resize, mean, std)
    with progress_bar({"loading": 1}, shown) as tick:
        tick("loading the model")
        net = load_model(model, weights)
    watch.lap("loading the model")
    options: dict[str, Any] = {
        "compression": compression,
        "speedup": speedup,
        "params": _amount(params),
        "flops": _amount(flops),
        "latency": _amount(latency),
        "keep": keep,
        "budgets": _budgets(budget),
        "method": method,
        "allocate": allocate,
        "seed": seed,
        "round_to": round_to,
        "reweight": reweight,
        "batchnorm": batchnorm,
        "n_samples": n_samples,
        "only": only or None,
        "ignore": ignore or None,
        "epsilon": epsilon,
        "patches": patches,
        "ridge": ridge,
        "folds": folds,
    }
    by_accuracy = (allocate or find_method(method).allocate or "").startswith("equal-")
    if by_accuracy:
        options["cache"] = output / "cache"
    remarks: dict[str, None] = {}
    choice = replace(choice, model=net, remark=remarks.setdefault)
    with progress_bar({"loading": 1}, shown) as tick:
        tick("loading the data")
        more, verified_on = _more_data(choice, verify, train_data, by_accuracy)
        inputs = load_data(choice)
    options.update(more)
    watch.lap("loading the data")
    if dry_run:
        for text in remarks:
            say(text)
        _show_forecast(run(net, inputs, dry_run=True, progress=shown, **options), json)
        return
    why = unprovable(method, options)
    if guarantees and why:
        raise OptionError(f"--guarantees: {why}")
    _check_output(output)
    result = run(net, inputs, time_calls=time, progress=shown, **options)
    if guarantees or (guarantees is None and not why and result.report.seconds < _QUICK):
        result = _guaranteed(result, net, choice, shown)
    result = _waited(result, {**watch.parts, **result.report.parts})
    result = replace(result, report=replace(result.report, notes=(*remarks, *result.report.notes)))
    _write(result, output, json, verified_on)


def _more_data(
    choice: DataChoice, verify: str | None, train_data: str | None, by_accuracy: bool
) -> tuple[dict[str, Any], str]:
    """The other data of `subprune.prune`, and in words which images accuracy is measured on."""
    found: dict[str, Any] = {}
    words = ""
    if verify is not None:
        found["verify_data"], words = load_verification(choice, verify, by_accuracy)
    if train_data is not None:
        found["train_data"] = load_data(
            replace(choice, spec=train_data, n_samples=None, option="--train-data")
        )
    return found, words


def _amount(text: str | None) -> str | float | None:
    if text is None or text.strip().endswith("%"):
        return text
    try:
        return float(text)
    except ValueError:
        return text  # refused, with an explanation, where targets are checked


def _budgets(given: list[str] | None) -> dict[str, int] | None:
    found: dict[str, int] = {}
    for text in given or []:
        name, equals, number = text.rpartition("=")
        if not equals or not name or not number.isdigit() or len(number) > 12:
            raise OptionError(f"--budget {text!r} must look like GROUP=UNITS, e.g. conv1=3")
        found[name] = int(number)
    return found or None


def _check_output(output: Path) -> None:
    """Refuse an unusable folder before the work, not after it."""
    if output.exists() and not output.is_dir():
        raise OptionError(f"--output {str(output)!r} is a file; give a folder")
    write_atomic(output / ".subprune", b"")
    (output / ".subprune").unlink()


def _waited(result: Result, parts: dict[str, float]) -> Result:
    """The result with all parts of the time that the user waited."""
    report = replace(result.report, seconds=sum(parts.values()), parts=parts)
    return replace(result, report=report)


def _guaranteed(result: Result, net: Any, choice: DataChoice, progress: bool | None) -> Result:
    """The result with bounds for what was selected, as it was selected; their time counts too."""
    from subprune.guarantees import guarantees

    watch = Stopwatch()
    plan = result.plan
    same = {name: plan.options[name] for name in ("patches", "seed", "n_samples", "ridge", "folds")}
    try:
        proven = guarantees(
            net,
            load_data(choice),
            form=find_method(plan.method).form,
            budgets=plan.counts,
            progress=progress,
            **same,
        )
        result = result.with_guarantees(proven)
    except SubpruneError as error:  # the pruned model is not to be lost
        say(f"no bounds in the report: {error}")
    watch.lap("guarantees")
    return _waited(result, {**result.report.parts, **watch.parts})


def _show_forecast(seen: Forecast, json: bool) -> None:
    if json:
        print_json(seen.to_dict())
    else:
        out.print(seen.table())
        for name, why in seen.refused.items():
            say(f"not pruned: {name}: {why}")
    if not seen.feasible:
        raise OptionError(seen.problem)


def _write(result: Result, output: Path, json: bool, verified_on: str) -> None:
    report = replace(
        result.report,
        command=shlex.join(["subprune", *sys.argv[1:]]),
        notes=tuple(in_flags(note) for note in result.report.notes),
        accuracy_on=verified_on or result.report.accuracy_on,
    )
    result = replace(result, report=report)
    save(result, output / "model.safetensors")
    write_atomic(output / "report.json", result.report.to_json().encode())
    result.report.save_html(output / "report.html")
    if json:
        print_json(result.report.to_dict())
        return
    out.print(str(result.report), highlight=False, markup=False)
    say(f"{output / 'model.safetensors'}, {output / 'report.html'} and report.json were written.")
