"""The arena: every rival on the same network, images and goal; one row of a table each.

    python experiments/arena/run.py experiments/arena/resnet56.toml --weights FILE --data FOLDER
    python experiments/arena/run.py experiments/arena/resnet50.toml --weights FILE
        --sample FOLDER --validation FOLDER --cache FOLDER [--rows "subprune @ speedup=2" …]

A file names the network, its data and the rows, most important first. Rows go to
experiments/results/arena/NETWORK.csv with the machine and the seed; a row that is there already is
not made again. Nothing is tuned on test images: where a rival has settings to choose from, images
that neither calibrate nor test decide. `--list` shows the rows and which are there.

Needs the extras bench and images. The networks' weights and images are not part of the project;
the page says where they can be had.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import gc
import hashlib
import math
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from judging import quick
from material import Images, Material, cifar10, image_folders
from networks import load_network
from rivals import ENTRANTS, Goal
from torch import Tensor, nn

from subprune.measure.measurements import count_flops, count_parameters, side_by_side

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

RESULTS = Path(__file__).parents[1] / "results" / "arena"
KEY = ("network", "entrant", "goal", "seed", "calibration", "test")


# ---- what a file says ----------------------------------------------------------------------------


def jobs(settings: dict[str, Any], options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """What makes a row unique, most important first."""
    counts = settings["data"]
    for seed in options.seeds:
        for row in settings["rows"]:
            if row["entrant"] not in ENTRANTS:
                known = ", ".join(ENTRANTS)
                raise SystemExit(f"entrant {row['entrant']!r} is not known; allowed are {known}")
            for text in row["goals"]:
                named = f"{row['entrant']} @ {Goal.of(text)}"
                if options.rows and named not in options.rows:
                    continue
                values = (settings["network"], row["entrant"], str(Goal.of(text)), seed)
                sizes = (counts["calibration"], counts["test"])
                yield dict(zip(KEY, (*values, *sizes), strict=True))


def material(settings: dict[str, Any], options: argparse.Namespace, seed: int) -> Material:
    """The images, by the kind of data that the file names."""
    data = settings["data"]
    if data["kind"] == "cifar10":
        return cifar10(_given(options, "data"), data, seed)
    places = (_given(options, name) for name in ("sample", "validation", "cache"))
    return image_folders(*places, data, seed)


def _given(options: argparse.Namespace, name: str) -> Path:
    path = getattr(options, name)
    if path is None:
        raise SystemExit(f"this network's data needs --{name} FOLDER")
    return Path(path)


# ---- what a row says -----------------------------------------------------------------------------


def answers(model: nn.Module, images: Images) -> tuple[Tensor, Tensor]:
    """[N] the class, and whether it is among the first five."""
    first, among = [], []
    answer = quick(model, images.inputs(slice(0, 4)))
    for x, y in images.batches():
        best = answer(x).topk(5).indices
        first.append(best[:, 0])
        among.append((best == y[:, None]).any(1))
    return torch.cat(first), torch.cat(among)


def share(hits: Tensor, prefix: str) -> dict[str, float]:
    """A share in per cent and its standard error."""
    value = float(hits.double().mean())
    error = math.sqrt(value * (1 - value) / len(hits))
    return {prefix: round(100 * value, 2), f"{prefix}_error": round(100 * error, 2)}


def quality(given: tuple[Tensor, Tensor], labels: Tensor, dense: Tensor) -> dict[str, Any]:
    """Accuracy, and how often the answer is the dense model's."""
    first, among = given
    return {
        **share(first == labels, "top1"),
        "top5": round(100 * float(among.double().mean()), 2),
        **share(first == dense, "agreement"),
    }


def size(dense: nn.Module, small: nn.Module, example: Tensor) -> dict[str, Any]:
    """Parameters, FLOPs and the time of a call on one input, the models' calls alternating."""
    one = ((example[:1],), {})
    times = side_by_side([dense, small], one, repeats=30)
    return {
        "parameters": count_parameters(small),
        "compression": round(count_parameters(dense) / count_parameters(small), 4),
        "flops": count_flops(small, one),
        "speedup": round(count_flops(dense, one) / count_flops(small, one), 4),
        "latency_ms": round(1000 * times[1].median, 3),
        "dense_latency_ms": round(1000 * times[0].median, 3),
    }


def made(
    key: dict[str, Any], model: nn.Module, own: Material, dense: Tensor, limits: dict[str, Any]
) -> dict[str, Any]:
    """One row."""
    before = fresh_peak()
    wall, work = time.perf_counter(), time.process_time()
    entrant, goal = ENTRANTS[key["entrant"]], Goal.of(key["goal"])
    outcome = entrant(model, own, goal, key["seed"], limits)
    spent = outcome.spent or (time.perf_counter() - wall, time.process_time() - work)
    peak = memory("VmHWM")
    small = outcome.model.eval()
    return {
        **key,
        **quality(answers(small, own.test), own.test.labels, dense),
        **size(model, small, own.calibration.inputs(slice(0, 1))),
        "seconds": round(spent[0], 1),
        "cpu_seconds": round(spent[1], 1),
        "peak_mb_beyond": round(peak - before) if peak else "",
        "machine": machine(),
        "version": VERSION,
        "note": outcome.note,
    }


def dense_row(
    settings: dict[str, Any], model: nn.Module, own: Material, given: tuple[Tensor, Tensor]
) -> dict[str, Any]:
    """The model as it came; its answers are what the others are compared with."""
    values = (settings["network"], "dense", "", "", "", len(own.test))
    return {
        **dict(zip(KEY, values, strict=True)),
        **quality(given, own.test.labels, given[0]),
        **size(model, model, own.calibration.inputs(slice(0, 1))),
        "machine": machine(),
        "version": VERSION,
        "note": own.words,
    }


def machine() -> str:
    return f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}"


def version() -> str:
    """The commit, with a star where files differ from it."""
    here = Path(__file__).parent

    def git(*words: str) -> str:
        run = subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, check=False)
        return run.stdout.strip()

    changed = git("status", "--porcelain", "--", "../../subprune", ".")
    return f"{git('rev-parse', '--short', 'HEAD')}{'*' if changed else ''}"


VERSION = version()  # of what is imported now: files may change while rows are made


def memory(name: str) -> float:
    """Megabytes of this process: VmRSS now, VmHWM at its peak; 0 where the system does not say."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.is_file() else []
    return sum(float(line.split()[1]) / 1024 for line in lines if line.startswith(f"{name}:"))


def fresh_peak() -> float:
    """Give back what earlier rows have left, and let the peak begin again: megabytes now."""
    gc.collect()
    if platform.system() == "Linux":
        getattr(ctypes.CDLL(None), "malloc_trim", lambda _: 0)(0)
        Path("/proc/self/clear_refs").write_text("5")
    return memory("VmRSS")


# ---- the table -----------------------------------------------------------------------------------


def table(settings: dict[str, Any], options: argparse.Namespace) -> None:
    """Make the rows that are not there yet, in the file's order."""
    path = options.results / f"{settings['network']}.csv"
    rows = read(path)
    known = {tuple(row[k] for k in KEY) for row in rows}
    wanted = [k for k in jobs(settings, options) if tuple(str(x) for x in k.values()) not in known]
    if options.rows and not wanted and not list(jobs(settings, options)):
        names = sorted({f"{r['entrant']} @ {g}" for r in settings["rows"] for g in r["goals"]})
        raise SystemExit(f"--rows names no row of the file; allowed are {', '.join(names)}")
    if options.list:
        for key in jobs(settings, options):
            there = "      " if key in wanted else "there "
            print(there, key["entrant"], "@", key["goal"], "seed", key["seed"])
        return
    model = load_network(settings["network"], options.weights)
    for seed in options.seeds:
        mine = [key for key in wanted if key["seed"] == seed]
        if not mine:
            continue
        own = material(settings, options, seed)
        first = dense_answers(settings, options, model, own, path)
        for key in mine:
            print(f"{key['entrant']} @ {key['goal']}, seed {seed}", flush=True)
            row = made(key, model, own, first, settings.get("limits", {}))
            print(row, flush=True)
            append(path, row)


def dense_answers(
    settings: dict[str, Any],
    options: argparse.Namespace,
    model: nn.Module,
    own: Material,
    path: Path,
) -> Tensor:
    """The dense model's classes, from the cache if there is one; its row, if it is not there."""
    count = len(own.test)
    kept = None if options.cache is None else _kept(options.cache, settings["network"], own)
    if kept is not None and kept.is_file():
        first, among = torch.load(kept, weights_only=True)
    else:
        first, among = answers(model, own.test)
    if kept is not None and not kept.is_file():
        kept.parent.mkdir(parents=True, exist_ok=True)
        torch.save((first, among), kept)
    if not any(r["entrant"] == "dense" and r["test"] == str(count) for r in read(path)):
        append(path, dense_row(settings, model, own, (first, among)))
    return first


def _kept(cache: Path, network: str, own: Material) -> Path:
    """Where the dense model's answers on these images are kept."""
    named = hashlib.sha256(own.test.pixels[:: max(1, len(own.test) // 20)].tobytes())
    return cache / f"dense-{network}-{len(own.test)}-{named.hexdigest()[:12]}.pt"


def read(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def append(path: Path, row: dict[str, Any]) -> None:
    """Add a row; the file is read again before, since another process may write to it too."""
    rows = [*read(path), row]
    columns = list(dict.fromkeys(name for r in rows for name in r))
    if "note" in columns:  # the longest goes last
        columns = [c for c in columns if c != "note"] + ["note"]
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part")
    with unfinished.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)
    unfinished.rename(path)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, help="TOML that names network, data and rows")
    parser.add_argument("--weights", type=Path, help="the network's weights")
    parser.add_argument("--data", type=Path, help="folder of CIFAR-10")
    parser.add_argument("--sample", type=Path, help="folder of images, one per class")
    parser.add_argument("--validation", type=Path, help="folder of folders of validation images")
    parser.add_argument("--cache", type=Path, help="folder for prepared images and dense answers")
    parser.add_argument("--rows", nargs="+", help='only these, such as "subprune @ speedup=2"')
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--calibration", type=int, help="so many images instead of the file's")
    parser.add_argument("--test", type=int, help="so many images instead of the file's")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--list", action="store_true", help="show the rows and make none")
    options = parser.parse_args(words)
    if not options.file.is_file():
        raise SystemExit(f"{options.file} is not a file")
    settings = tomllib.loads(options.file.read_text())
    for name in ("calibration", "test"):
        if getattr(options, name) is not None:
            settings["data"][name] = getattr(options, name)
    if options.weights is None and not options.list:
        raise SystemExit("--weights FILE is needed")
    table(settings, options)


if __name__ == "__main__":
    main()
