"""Kills, full disks, forbidden folders, jumping clocks, hanging workers, many calls, little memory.

    python tests/chaos.py [--kills 100] [--prunes 500] [--cases 3000] [--seed 0]
    [--language FOLDER] [--record FILE] [--only WORDS]

Prints one line a section and ends with code 1 if one of them failed; what this system does not
allow is said to be not tried. Children are forked, so that PyTorch is loaded once. About ten
minutes on one core; no section waits for ever.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import multiprocessing
import os
import platform
import random
import re
import resource
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from landing_nets import Blocks, made
from rank_jobs import Ended, _ended, started
from torch import Tensor, nn

import subprune
from subprune.errors import DataError
from subprune.loop.journal import _read
from subprune.program import ranks
from subprune.zoo.models import build

HERE = Path(__file__).resolve().parent
PAPER = HERE.parent / "paper" / "tests"
LONGEST = 300.0  # seconds that a child may take
LONGEST_MODEL = 1800.0  # the same of one with a real model and little memory


def blocks() -> tuple[nn.Module, Tensor]:
    return made(Blocks).float(), torch.randn(48, 3, 10, 10, generator=torch.manual_seed(3))


def prune(**options: Any) -> subprune.Result:
    model, data = blocks()
    return subprune.prune(model, data, compression=1.5, time_calls=False, progress=False, **options)


def prune_and_save(folder: Path) -> None:
    """What a job of the user does: prune with a checkpoint, then save."""
    result = prune(checkpoint=folder / "checkpoint")
    (folder / "notes.json").write_text(json.dumps(list(result.report.notes)))
    subprune.save(result, folder / "small.safetensors")


def weights(path: Path) -> dict[str, Tensor]:
    """What a saved file holds; raises if it is damaged."""
    return dict(subprune.load(blocks()[0], path).state_dict())


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def child(work: Callable[..., None], *args: Any) -> Any:
    """A forked process that does the work; quiet, since most are killed."""

    def run() -> None:
        torch.set_num_threads(1)
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 2)
        work(*args)

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    return process


def killed_after(process: Any, seconds: float) -> bool:
    """Wait so long, then kill; whether it was still at work."""
    process.join(seconds)
    if process.is_alive():
        os.kill(process.pid, signal.SIGKILL)
    process.join()
    return bool(process.exitcode == -signal.SIGKILL)


# ---- kills -----------------------------------------------------------------------------------


def steps(folder: Path) -> int:
    """How many finished steps lie there; raises if one is damaged."""
    files = sorted((folder / "checkpoint").rglob("*.safetensors"))
    for path in files:
        _read(path)
    return len(files)


def kill_prunes(folder: Path, kills: int, draw: random.Random) -> dict[str, Any]:
    """Kill a prune again and again until it is through; then another."""
    for name in ("first", "calm"):  # the first call of a process takes longer
        (folder / name).mkdir()
        began = time.monotonic()
        prune_and_save(folder / name)
    length = time.monotonic() - began
    calm = weights(folder / "calm" / "small.safetensors")
    hit = jobs = kept = lost = different = 0
    while hit < kills:
        own, before, whole = folder / str(jobs), 0, False
        own.mkdir()
        while not whole:
            process = child(prune_and_save, own)
            seconds = draw.uniform(0.1, 0.6) * length if hit < kills else LONGEST
            killed = killed_after(process, seconds)
            hit += killed
            whole = process.exitcode == 0
            assert killed or whole, f"ended with code {process.exitcode}"
            now = steps(own)
            lost += now < before
            kept, before = kept + max(0, now - before), now
        different += not equal(weights(own / "small.safetensors"), calm)
        jobs += 1
    assert not lost, f"{lost} kills lost finished steps"
    assert not different, f"{different} results differ from the calm one"
    return {"kills": hit, "prunes ended equal": jobs, "steps kept": kept, "lost": lost}


# ---- jobs of two ranks -----------------------------------------------------------------------

# Seconds after which a rank without a sign of life is dead, in these jobs; and after which the
# other must have ended.
SILENCE, NAMED = 3.0, 15.0


def shared_prune(rank: int, folder: Path, last: int = -1) -> None:
    """What a rank of a job does: prune with the others; the first saves. The second rank kills
    itself in one of the exchanges, if `last` says in which.
    """
    ranks.SILENCE = SILENCE
    reduce, number = torch.distributed.all_reduce, 0

    def counted(*args: Any) -> Any:
        nonlocal number
        number += 1
        if rank == 1 and number == last:
            (folder / "died").write_text(str(time.monotonic()))
            os.kill(os.getpid(), signal.SIGKILL)
        return reduce(*args)

    torch.distributed.all_reduce = counted
    (folder / f"ready-{rank}").touch()
    result = prune(checkpoint=folder / "checkpoint")
    if rank == 0:
        subprune.save(result, folder / "small.safetensors")
        (folder / "exchanges").write_text(str(number))


def shared_job(folder: Path, wait: float | None, victim: int, last: int = -1) -> list[Ended]:
    """A job of two ranks; after so many seconds one of them is killed, None: none is.

    The other is given the set time to end by itself.
    """
    folder.mkdir(exist_ok=True)
    for rank in range(2):
        (folder / f"ready-{rank}").unlink(missing_ok=True)
    with started(2, shared_prune, folder, folder, last) as processes:
        while not all((folder / f"ready-{rank}").exists() for rank in range(2)):
            assert all(process.is_alive() for process in processes)
            time.sleep(0.01)
        if wait is not None:
            killed_after(processes[victim], wait)
            (folder / "died").write_text(str(time.monotonic()))
        until = time.monotonic() + (LONGEST if wait is None else 2 * NAMED)
        for process in processes:
            process.join(max(0.0, until - time.monotonic()))
        codes = [process.exitcode for process in processes]
    return [_ended(folder / f"rank-{rank}.pt", code) for rank, code in enumerate(codes)]


def named_after(folder: Path, ended: list[Ended], victim: int) -> float:
    """Seconds after which the other rank has ended with an error that names the dead one."""
    other = ended[1 - victim]
    assert f"RankError: rank {victim} of the job is dead" in other.error, other
    seconds = other.at - float((folder / "died").read_text())
    assert seconds < NAMED, f"{seconds:.1f} seconds"
    return seconds


def kill_jobs(folder: Path, kills: int, draw: random.Random) -> dict[str, Any]:
    """Kill one rank of a job of two again and again until it is through; then another job."""
    alone = folder / "alone"
    alone.mkdir()
    prune_and_save(alone)
    calm = weights(alone / "small.safetensors")
    began = time.monotonic()
    assert all(one.code == 0 for one in shared_job(folder / "calm", None, 0))
    length = time.monotonic() - began
    hit = jobs = kept = lost = 0
    named: list[float] = []
    while hit < kills:
        own, before, whole = folder / str(jobs), 0, False
        while not whole:
            victim = draw.randrange(2)
            wait = draw.uniform(0.0, 0.7) * length if hit < kills else None
            ended = shared_job(own, wait, victim)
            killed = ended[victim].code == -signal.SIGKILL
            whole = all(one.code == 0 for one in ended)
            if killed and ended[1 - victim].code:  # the other had not ended before
                named.append(named_after(own, ended, victim))
            hit += killed
            now = steps(own)
            lost += now < before
            kept, before = kept + max(0, now - before), now
            whole = whole or (own / "small.safetensors").exists()
        assert equal(weights(own / "small.safetensors"), calm), "differs from one process's"
        jobs += 1
    assert not lost, f"{lost} kills lost finished steps"
    told = {"kills": hit, "named by the other rank": len(named), "jobs ended equal": jobs}
    told |= {"slowest, seconds": round(max(named, default=0.0)), "allowed": NAMED}
    return {**told, "steps kept": kept, "lost": lost}


def die_in_exchange(folder: Path) -> dict[str, Any]:
    """A rank dies in the middle of an all-reduce, of five different ones."""
    assert all(one.code == 0 for one in shared_job(folder / "calm", None, 0))
    exchanges = int((folder / "calm" / "exchanges").read_text())
    seconds = []
    for number in range(5):
        last = 1 + number * (exchanges - 1) // 4
        ended = shared_job(folder / str(number), None, 1, last)
        assert ended[1].code == -signal.SIGKILL
        seconds.append(named_after(folder / str(number), ended, 1))
    return {"deaths": 5, "named": 5, "slowest, seconds": round(max(seconds), 1), "allowed": NAMED}


def save_for_ever(folder: Path, results: list[subprune.Result]) -> None:
    path = folder / "small.safetensors"
    (folder / "ready").touch()
    while True:
        for result in results:
            subprune.save(result, path)


def kill_saves(folder: Path, kills: int, draw: random.Random) -> dict[str, Any]:
    """Kill a process that writes two models in turn over each other."""
    wanted = [prune(seed=0), prune(seed=1, selector="random")]
    path, whole = folder / "small.safetensors", 0
    for _ in range(kills):
        process = child(save_for_ever, folder, wanted)
        while not (folder / "ready").exists():
            assert process.is_alive()
            time.sleep(0.02)
        assert killed_after(process, draw.uniform(0.0, 0.3))
        (folder / "ready").unlink()
        assert path.exists() or not whole, "a kill lost a file that had been saved"
        if path.exists():
            found = weights(path)
            assert any(equal(found, dict(r.model.state_dict())) for r in wanted)
            whole += 1
    return {"kills": kills, "files whole": whole, "corrupted": 0}


def kill_experiments(folder: Path, kills: int, draw: random.Random) -> dict[str, Any]:
    """The same of a grid of experiments, whose rows are compared with those of a calm one."""
    command = [sys.executable, str(PAPER / "kill_driver.py"), str(folder), str(kills)]
    ran = subprocess.run(
        [*command, str(draw.randrange(1000))],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-500:]
    told = json.loads(ran.stdout.splitlines()[-1])
    sys.path.insert(0, str(PAPER))
    from test_experiment_kill import contents

    calm = contents(folder / "calm")
    assert all(after == sorted(after) for after in told["after"]), "a kill lost rows"
    grids = sorted(folder.glob("killed-*"))
    assert all(contents(grid) == calm for grid in grids)
    return {"kills": told["hit"], "grids ended equal": len(grids), "rows each": len(calm)}


# ---- places that cannot be written, clocks, workers ------------------------------------------


def in_namespace(folder: Path, mount: str, code: str) -> subprocess.CompletedProcess[str] | None:
    """Run code with a folder mounted as told, for it alone; None where that is not allowed."""
    if not folder.is_dir():
        folder.mkdir()
    shell = f"mount -t tmpfs -o {mount} tmpfs '{folder}' && exec '{sys.executable}' -c \"$CODE\""
    may = subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False)
    if may.returncode:
        return None
    return subprocess.run(
        ["unshare", "-rm", "sh", "-c", shell],
        capture_output=True,
        text=True,
        timeout=LONGEST,
        check=False,
        env={**os.environ, "CODE": code, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])},
        cwd=HERE,
    )


_UNWRITTEN = """
import sys; from pathlib import Path
import chaos, subprune
place = Path({place!r})
result = chaos.prune({options})
print(*result.report.notes, sep="\\n")
try:
    subprune.save(result, place / "small.safetensors")
except subprune.errors.DataError as error:
    print("refused:", error)
print("left:", [p.name for p in place.rglob("*.tmp")])
"""


def mounted(folder: Path, mount: str, options: str, said: str) -> dict[str, Any]:
    """Prune with a checkpoint, and save, where the disk is full or cannot be written."""
    code = _UNWRITTEN.format(place=str(folder), options=options)
    ran = in_namespace(folder, mount, code)
    if ran is None:
        return {"not tried": "no mount namespaces here"}
    assert ran.returncode == 0, ran.stderr[-800:]
    assert "refused:" in ran.stdout, ran.stdout
    assert said in ran.stdout, ran.stdout
    assert "left: []" in ran.stdout, ran.stdout
    return {"refused clearly": 1, "half-written files": 0}


def disk_full(folder: Path) -> dict[str, Any]:
    options = f"checkpoint={str(folder / 'full' / 'checkpoint')!r}"
    told = mounted(folder / "full", "size=32k", options, "No space left")
    return {**told, "the prune itself": "ended well"} if "refused clearly" in told else told


def read_only(folder: Path) -> dict[str, Any]:
    return mounted(folder / "read-only", "ro", "", "Read-only file system")


def without_rights(folder: Path) -> None:
    if os.geteuid() == 0:
        os.setuid(65534)
    try:
        prune(checkpoint=folder / "closed" / "checkpoint")
    except DataError as error:
        sys.exit(7 if "Permission denied" in str(error) else 8)


def permission_denied(folder: Path) -> dict[str, Any]:
    (folder / "closed").mkdir(mode=0o500)
    prune()  # what is imported on the way may be closed to the other user as well
    process = child(without_rights, folder)
    began = time.monotonic()
    process.join(LONGEST)
    assert process.exitcode == 7, process.exitcode
    return {"refused clearly": 1, "seconds": round(time.monotonic() - began, 1)}


def clock_jump(folder: Path) -> dict[str, Any]:
    """The clock of the day goes to and fro by days while a prune is at work, and goes on."""
    draw, true, calls = random.Random(0), time.time, 0

    def jumping() -> float:
        nonlocal calls
        calls += 1
        return true() + draw.uniform(-1e6, 1e6)

    calm = dict(prune().model.state_dict())
    time.time = jumping
    try:
        first = prune(checkpoint=folder / "clock")
        again = prune(checkpoint=folder / "clock")
    finally:
        time.time = true
    assert equal(dict(first.model.state_dict()), calm)
    assert equal(dict(again.model.state_dict()), calm)
    assert all(g.seconds >= 0 for g in first.plan.groups)
    return {"prunes equal": 2, "negative times": 0}


def hanging_worker(folder: Path) -> dict[str, Any]:
    """A worker that stops in its first job is ended; the job is done by another."""
    sys.path.insert(0, str(PAPER))
    from kill_driver import CONFIG

    from subprune_paper import local_engine
    from subprune_paper.cells import Context, run_job
    from subprune_paper.config import parse_config
    from subprune_paper.engine import run_cells
    from subprune_paper.grid import cells_of
    from subprune_paper.store import Store

    def hang(job: Any, context: Any, stage: Any) -> Iterator[Any]:
        with contextlib.suppress(FileExistsError):
            (folder / "hung").touch(exist_ok=False)
            time.sleep(LONGEST)
        yield from run_job(job, context, stage)

    config = parse_config({**CONFIG, "seeds": [1], "values": [4], "finetune": ["none"]})
    engine = local_engine.LocalEngine(1, Context(cache=str(folder / "cache")), "fork", 5.0)
    local_engine.run_job = hang  # type: ignore[assignment]
    began = time.monotonic()
    try:
        with Store(folder / "results.sqlite") as store:
            summary = run_cells(config, cells_of(config), store, engine)
    finally:
        local_engine.run_job = run_job
    seconds = time.monotonic() - began
    assert (folder / "hung").exists()
    assert not summary.failed, summary.failed
    assert summary.done == summary.total
    assert seconds < LONGEST / 2
    return {"workers ended": 1, "cells done": summary.done, "seconds": round(seconds, 1)}


# ---- many calls, little memory ---------------------------------------------------------------


def memory() -> float:
    """Resident megabytes of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def many(folder: Path, prunes: int) -> dict[str, Any]:
    """Small prunes in one process: what is left of them, files in a folder of their own included."""
    tempfile.tempdir = str(folder)
    try:
        return _many(prunes)
    finally:
        tempfile.tempdir = None


def _many(prunes: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 16), nn.ReLU()).append(
        nn.Linear(16, 4)
    )
    data = torch.randn(64, 8)

    def state() -> tuple[int, int, int, int]:
        hooks = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())
        files = len(os.listdir("/proc/self/fd"))
        left = len(os.listdir(tempfile.gettempdir()))
        return threading.active_count(), files, hooks, left

    marks: list[float] = []
    for number in range(prunes):
        subprune.prune(model, data, keep=0.5, time_calls=False, progress=False)
        if number + 1 in (prunes // 5, prunes):
            gc.collect()
            marks.append(memory())
        if number + 1 == prunes // 5:
            before = state()
    growth = marks[1] / marks[0] - 1
    after = state()
    assert abs(growth) <= 0.05, f"memory grew by {growth:.1%}"
    assert after == before, (before, after)
    return {
        "prunes": prunes,
        "MB after a fifth and at the end": [round(m) for m in marks],
        "growth": f"{growth:+.1%}",
        "threads, descriptors, hooks, temporary files more": [
            b - a for a, b in zip(before, after, strict=True)
        ],
    }


def pruned_images() -> None:
    torch.manual_seed(0)
    model, data = build("resnet56").eval(), torch.randn(512, 3, 32, 32)
    size = sum(p.numel() for p in model.parameters())
    result = subprune.prune(model, data, compression=2, time_calls=False, progress=False)
    assert 2 * sum(p.numel() for p in result.model.parameters()) <= size


def pruned_words(place: Path) -> None:
    sys.path.insert(0, str(HERE.parent / "experiments"))
    from transformers_table import load

    model, _ = load(place, "AutoModelForCausalLM", None)
    torch.manual_seed(0)
    ids = torch.randint(0, model.config.vocab_size, (32, 128))
    data = [{"input_ids": part} for part in ids.split(8)]
    size = sum(p.numel() for p in model.parameters())
    result = subprune.prune(model, data, compression=1.2, time_calls=False, progress=False)
    assert 1.2 * sum(p.numel() for p in result.model.parameters()) <= size


def resnet56(folder: Path, gigabytes: float = 2.0) -> dict[str, Any]:
    """ResNet56 on 512 images, in a process that is given no more than so much memory."""
    return limited(pruned_images, folder, gigabytes)


def language_model(folder: Path, place: Path, gigabytes: float = 4.0) -> dict[str, Any]:
    """The same of a causal language model that transformers can load, on 32 × 128 random tokens."""
    return limited(pruned_words, folder, gigabytes, place)


def limited(work: Callable[..., None], folder: Path, gigabytes: float, *args: Any) -> Any:
    """Work in a process that is given no more than so much memory."""

    def run() -> None:
        limit = int(gigabytes * 2**30)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        began = time.process_time()
        work(*args)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        told = {"peak GB": round(peak, 2), "CPU seconds": round(time.process_time() - began)}
        (folder / "told.json").write_text(json.dumps(told))

    process = child(run)
    process.join(LONGEST_MODEL)
    process.kill()
    assert process.exitcode == 0, process.exitcode
    return {"limit GB": gigabytes, **json.loads((folder / "told.json").read_text())}


# ---- the numerical core ----------------------------------------------------------------------


def numerics(cases: int) -> dict[str, Any]:
    """New problems for `test_numerics`: how many held, and what shares of the fits had what."""
    command = [sys.executable, "-m", "pytest", "-q", "--hypothesis-show-statistics"]
    ran = subprocess.run(
        [*command, str(HERE / "test_numerics.py")],
        capture_output=True,
        text=True,
        timeout=LONGEST_MODEL,
        check=False,
        env={**os.environ, "SUBPRUNE_CASES": str(cases)},
    )
    assert ran.returncode == 0, ran.stdout[-3000:]
    held = re.findall(r"(\d+) passing(?: examples)?, (\d+) failing", ran.stdout)
    passing, failing = (sum(int(pair[i]) for pair in held) for i in (0, 1))
    assert passing >= cases
    assert not failing
    kinds = re.findall(r"([\d.]+%), (ridge o\w+, bias o\w+)", ran.stdout)
    shares = {kind: share for share, kind in kinds}
    assert len(shares) == 4, "a kind of fit was not tried"
    return {"problems": passing, "failed": failing, "of the fits": shares}


# ---- all of it -------------------------------------------------------------------------------


def sections(folder: Path, options: argparse.Namespace) -> dict[str, Callable[[], Any]]:
    draw, kills = random.Random(options.seed), options.kills
    parts = {"prune": kills * 4 // 10, "job": kills * 2 // 10, "save": kills * 3 // 10}
    parts["experiment"] = kills - sum(parts.values())
    every = {"prune": kill_prunes, "job": kill_jobs, "save": kill_saves}
    every["experiment"] = kill_experiments
    found: dict[str, Callable[[], Any]] = {}
    for name, work in every.items():
        own = folder / f"kill-{name}"
        own.mkdir()
        found[f"SIGKILL, {name}"] = lambda w=work, o=own, n=parts[name]: w(o, n, draw)
    alone = (disk_full, read_only, permission_denied, clock_jump, hanging_worker)
    for work in (die_in_exchange, *alone):
        own = folder / work.__name__
        own.mkdir(mode=0o755)
        found[work.__name__.replace("_", " ")] = lambda w=work, o=own: w(o)
    for name in ("resnet56", "language", "many"):
        (folder / name).mkdir()
    if options.prunes:
        own = folder / "many"
        found[f"{options.prunes} prunes in one process"] = lambda: many(own, options.prunes)
    if options.cases:
        found[f"numerical core, {options.cases} problems"] = lambda: numerics(options.cases)
    found["ResNet56 within 2 GB"] = lambda: resnet56(folder / "resnet56")
    if options.language is not None:
        place = options.language
        found[f"{place.name} within 4 GB"] = lambda: language_model(folder / "language", place)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--prunes", type=int, default=500)
    parser.add_argument("--cases", type=int, default=3000, help="problems for the numerical core")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="sections whose names have this in them")
    parser.add_argument("--language", type=Path, help="folder of a causal language model")
    parser.add_argument("--record", type=Path, help="JSON file for the tally")
    options = parser.parse_args()
    torch.set_num_threads(1)
    tally: dict[str, Any] = {}
    failed = 0
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        for name, work in sections(Path(place), options).items():
            if options.only not in name:
                continue
            began = time.monotonic()
            try:
                told = work()
                tally[name] = {"ok": None if "not tried" in told else True, **told}
            except Exception as error:
                failed += 1
                tally[name] = {"ok": False, "error": f"{type(error).__name__}: {error}"}
            tally[name]["took"] = round(time.monotonic() - began, 1)
            print(name, json.dumps(tally[name]), flush=True)
    if options.record:
        machine = f"{platform.machine()}, {os.cpu_count()} cores, one thread"
        words = [Path(w).name if os.sep in w else w for w in sys.argv[1:]]
        made_by = f"python tests/chaos.py {shlex.join(words)}"
        versions = {"torch": torch.__version__, "python": platform.python_version()}
        head = {"machine": machine, "command": made_by, "versions": versions}
        written = {**head, "sections": tally}
        if options.only and options.record.is_file():
            # the other sections stay, and these say what made them
            written = json.loads(options.record.read_text())
            written["sections"] |= {name: {**told, **head} for name, told in tally.items()}
        options.record.write_text(json.dumps(written, indent=1) + "\n")
    untried = sum(told["ok"] is None for told in tally.values())
    held = f"{len(tally) - failed - untried} of {len(tally)} sections held"
    print(f"{held}, {untried} not tried" if untried else held)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
