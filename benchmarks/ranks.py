"""One pruning of ResNet56 by one process, and by the ranks of a torch.distributed job.

    python benchmarks/ranks.py --data-dir DATA --models-dir MODELS [--ranks 1 2] [--images 512]

The default method, half the parameters, images of CIFAR-10; every rank has one thread. Rows go to
benchmarks/results/ranks.csv: wall clock, CPU seconds of each rank, what a rank sent by its own count
and what the loopback device carried meanwhile (with all else that ran), and how far the weights are
from those of one process. On a machine that others use, CPU seconds say more than the clock.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from machine import describe, write_rows
from workloads import Place

import subprune

RESULTS = Path(__file__).parent / "results" / "ranks.csv"


def one_rank(options: argparse.Namespace) -> None:
    """What each process does; the model and the figures go to files."""
    torch.set_num_threads(1)
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if dist.is_initialized() else 0
    place = Place(options.data_dir, options.models_dir)
    model, data = place.network("resnet56"), place.images("cifar10", "train", options.images)
    subprune.prune(model, data[:8], keep=0.9, distributed=False, progress=False, time_calls=False)
    if dist.is_initialized():
        dist.barrier()
    wall, cpu = time.perf_counter(), time.process_time()
    result = subprune.prune(model, data, compression=2, progress=False, time_calls=False)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    note = next((str(n) for n in result.report.notes if "shared the work" in n), "sent 0 MB in 0 ")
    sent, exchanges = re.findall(r"sent ([\d,.]+) MB in ([\d,]+) ", note)[0]
    found = {"wall": wall, "cpu": cpu, "sent": sent, "exchanges": exchanges}
    torch.save((found, dict(result.model.state_dict())), options.here / f"{rank}.pt")
    if dist.is_initialized():
        dist.destroy_process_group()


def loopback() -> int:
    """Bytes that the loopback device has carried so far; 0 where that cannot be read."""
    try:
        lines = Path("/proc/net/dev").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.strip().startswith("lo:")), 0)


def measured(count: int, words: list[str]) -> tuple[list[dict[str, Any]], dict[str, Any], int]:
    """Figures by rank, the weights, and the bytes on the loopback device."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable]
        if count > 1:
            command += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        before = loopback()
        subprocess.run([*command, __file__, *words, "--here", folder], check=True, env=environment)
        carried = loopback() - before
        saved = [torch.load(Path(folder, f"{r}.pt"), weights_only=True) for r in range(count)]
    return [figures for figures, _ in saved], saved[0][1], carried


def apart(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """The largest difference of a weight, relative to the largest weight of its tensor."""
    pairs = [(x.double(), other[name].double()) for name, x in one.items() if x.numel()]
    return max(float((a - b).abs().max() / a.abs().max().clamp_min(1e-30)) for a, b in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--models-dir", type=Path)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--here", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here is not None:
        one_rank(options)
        return
    words = ["--images", str(options.images)]
    for name in ("data_dir", "models_dir"):
        if getattr(options, name) is not None:
            words += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
    rows, first = [], None
    machine = f"{describe()['processor']}, {describe()['cores']} cores"
    for count in options.ranks:
        figures, weights, carried = measured(count, words)
        first = weights if first is None else first
        row = {
            "workload": f"ResNet56, default, {options.images} images, half the parameters",
            "ranks": count,
            "wall seconds": round(max(f["wall"] for f in figures), 1),
            "CPU seconds of each rank": " ".join(f"{f['cpu']:.1f}" for f in figures),
            "MB sent by each rank": " ".join(f["sent"] for f in figures),
            "exchanges": figures[0]["exchanges"],
            "MB on the loopback device": round(carried / 1e6, 1),
            "weights apart from the first row's": f"{apart(first, weights):.1e}",
            "load before": round(os.getloadavg()[0], 1),
            "machine": machine,
        }
        rows.append(row)
        print(row, flush=True)
    write_rows(RESULTS, rows)


if __name__ == "__main__":
    main()
