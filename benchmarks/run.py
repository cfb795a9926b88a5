"""All benchmarks: one table, one picture, and a record with the machine that made them.

    make bench DATA=... MODELS=...
    python benchmarks/run.py [--data-dir DATA] [--models-dir MODELS] [--only PART]
    [--output benchmarks/results] [--cpu]

Every workload runs in a process of its own. The limit of a workload is the work that cannot be
avoided (see docs/speed.md), divided by this machine's rate of matrix products, measured in the same
process just before and after. On a machine that is busy all the time, --cpu counts CPU seconds of
one thread, in the rates as well.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
DOCS = HERE.parent / "docs"
FAR = 2.5  # times the limit above which a row says where its time goes
# lowest and highest seconds of the authors' public code on 2 cores, for a layer of the same shape
AUTHORS = {
    "resnet56 layer1.4.conv1": (318, 318),
    "resnet56 layer2.4.conv1": (750, 800),
    "resnet56 layer3.4.conv1": (800, 1250),
    "vgg11 features.15": (46 * 3600, 55 * 3600),
}


def child(part: str, data: str | None, models: str | None) -> dict[str, Any]:
    """Measure one part here."""
    import torch
    from machine import as_dict, describe, measure_rates
    from workloads import WORKLOADS, Place

    place = Place(Path(data) if data else None, Path(models) if models else None)
    torch.manual_seed(0)
    if part == "scaling":
        from scaling import measure_all

        return {"machine": describe(), "scaling": measure_all(place)}
    if part == "busy":
        from busy import compare as compare_threads

        return {"machine": describe(), "busy": compare_threads(place)}
    if part == "others":
        from others import compare

        return {"machine": describe(), "others": compare(place)}
    rates = measure_rates()
    found = WORKLOADS[part](place, rates)
    rates = rates.better(measure_rates())
    limit = found.limit(rates)
    return {
        "machine": describe(),
        "rates": as_dict(rates),
        "seconds": found.seconds,
        "limit": limit,
        "ratio": found.seconds / limit,
        "peak": found.peak,
        "allowance": found.allowance,
        "profile": found.profile.shares() if found.profile else {},
        **found.notes,
    }


def parts() -> list[str]:
    from workloads import WORKLOADS

    return [*WORKLOADS, "busy", "scaling", "others"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-dir")
    parser.add_argument("--models-dir")
    parser.add_argument(
        "--only", action="append", help="parts whose names begin so; the others keep what they have"
    )
    parser.add_argument("--cpu", action="store_true", help="CPU seconds of one thread")
    parser.add_argument("--output", type=Path, default=HERE / "results")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        if options.cpu:
            time.perf_counter = time.process_time
        print(json.dumps(child(options.child, options.data_dir, options.models_dir)))
        return
    names = parts()
    wanted = [n for n in names if not options.only or any(n.startswith(o) for o in options.only)]
    if not wanted:
        parser.error(f"--only {options.only} fits none of {', '.join(names)}")
    options.output.mkdir(parents=True, exist_ok=True)
    record = options.output / "results.json"
    found: dict[str, Any] = json.loads(record.read_text()) if record.is_file() else {}
    for name in wanted:
        print(f"{name} …", file=sys.stderr, flush=True)
        found[name] = _in_a_child(name, options)
        found[name]["date"] = time.strftime("%Y-%m-%d")
        found[name]["clock"] = "CPU, 1 thread" if options.cpu else "wall"
        record.write_text(json.dumps({n: found[n] for n in names if n in found}, indent=1) + "\n")
    report({n: found[n] for n in names if n in found}, options.output)


def _in_a_child(name: str, options: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, str(HERE / "run.py"), "--child", name]
    for flag, value in (("--data-dir", options.data_dir), ("--models-dir", options.models_dir)):
        command += [flag, str(value)] if value else []
    environment = dict(os.environ)
    if options.cpu:
        command.append("--cpu")
        environment["OMP_NUM_THREADS"] = "1"
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment)
    if done.returncode:
        raise SystemExit(
            f"the benchmark {name!r} failed with code {done.returncode}; its message is above"
        )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def report(found: dict[str, Any], output: Path) -> None:
    """The tables as text and Markdown, and the picture."""
    text = [
        f"# Measured speed\n\n{_machine(found)}\n",
        _main_table(found),
        _plain_table(found),
        _left(found),
        _busy_table(found),
        _others_table(found),
    ]
    (output / "table.md").write_text("\n".join(t for t in text if t))
    print("\n".join(t for t in text if t))
    if output == HERE / "results":
        _into_docs("\n".join(t for t in text[1:] if t), _machine(found))
    if "scaling" in found:
        from scaling import plot

        plot(found["scaling"]["scaling"], output / "scaling.png")
        if output == HERE / "results":
            plot(found["scaling"]["scaling"], DOCS / "speed-scaling.png")
        for name, series in found["scaling"]["scaling"].items():
            print(
                f"{name}: slope {series['slope']:.2f} (larger half {series['slope_of_large']:.2f})"
            )


def _into_docs(tables: str, machine: str) -> None:
    """Replace what stands between the marks in docs/speed.md."""
    page = DOCS / "speed.md"
    before, rest = page.read_text().split("<!-- measured -->\n")
    after = rest.split("<!-- /measured -->")[1]
    page.write_text(f"{before}<!-- measured -->\n{machine}\n\n{tables}<!-- /measured -->{after}")


def _machine(found: dict[str, Any]) -> str:
    first = next(iter(found.values()))["machine"]
    return (
        f"{first['processor']}, {first['cores']} cores, {first['vector']}, "
        f"{first['memory_gb']} GB; PyTorch {first['torch']}, Python {first['python']}. Each row was measured in its "
        "own process; the limit is the unavoidable work at the matrix product rate measured in that process."
    )


def _clock(row: dict[str, Any]) -> str:
    """What a row was measured by, and when."""
    return f"{row.get('clock', 'wall')}; {row['date']}"


def _main_table(found: dict[str, Any]) -> str:
    lines = [
        "| workload | clock | seconds | limit | ratio | peak memory beyond the start | allowed | float32 / float64 GFLOP/s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, row in found.items():
        if "ratio" not in row or "plain_seconds" in row:
            continue
        allowed = f"{row['allowance'] / 1e9:.2f} GB" if row["allowance"] else "–"
        rates = f"{row['rates']['single'] / 1e9:.0f} / {row['rates']['double'] / 1e9:.0f}"
        peak = f"{row['peak'] / 1e9:.2f} GB"
        lines.append(
            f"| {name} | {_clock(row)} | {row['seconds']:.1f} | {row['limit']:.1f} | {row['ratio']:.2f} "
            f"| {peak} | {allowed} | {rates} |"
        )
    return "\n".join(lines) + "\n" if len(lines) > 2 else ""


def _plain_table(found: dict[str, Any]) -> str:
    lines = [
        "\nOne layer, statistics and whole keep order, against the plain formulas of the paper (`benchmarks/plain.py`)",
        "in the same process, and against the authors' public code (seconds for a layer of the same shape, measured",
        "apart from this run on 2 cores; all but 318 s extrapolated from part of the steps; the lower end counts):\n",
        "| layer | rows × columns | clock | seconds | limit | ratio | plain | faster | same units | authors' code | faster |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, row in found.items():
        if "plain_seconds" not in row:
            continue
        steps = (
            ""
            if row["plain_steps"] == row["units"]
            else f" (from {row['plain_steps']} of {row['units']} steps)"
        )
        same = (
            f"first {row['plain_steps']}"
            if row["same_units"]
            else f"no, gains differ by {row['first_difference']:.1e}"
        )
        low, high = AUTHORS[name]
        theirs = f"{low}–{high} s" if low != high else f"{low} s"
        lines.append(
            f"| {name} | {row['rows']} × {row['columns']} | {_clock(row)} | {row['seconds']:.2f} | {row['limit']:.2f} | "
            f"{row['ratio']:.2f} | {row['plain_whole']:.0f} s{steps} | {row['faster']:,.0f}× | {same} | {theirs} | "
            f"{low / row['seconds']:,.0f}× |"
        )
    return "\n".join(lines) + "\n" if len(lines) > 4 else ""


def _left(found: dict[str, Any]) -> str:
    """Where the time of rows goes that are far above their limit."""
    rows = {n: r for n, r in found.items() if r.get("ratio", 0) > FAR and r.get("profile")}
    if not rows:
        return ""
    lines = [
        f"\nWhere the time goes in rows above {FAR} times their limit: functions of the library that were at work, by",
        "looking at all threads every 5 ms (`benchmarks/sampling.py`):\n",
        "| workload | ratio | at work |",
        "|---|---|---|",
    ]
    for name, row in rows.items():
        shares = ", ".join(f"`{f}` {share:.0%}" for f, share in row["profile"].items())
        lines.append(f"| {name} | {row['ratio']:.2f} | {shares} |")
    return "\n".join(lines) + "\n"


def _busy_table(found: dict[str, Any]) -> str:
    if "busy" not in found:
        return ""
    lines = [
        "\nResNet56, 128 images, equal fractions, whole calls (lowest of two), alone and beside a process that takes all",
        "of a core that it can get:\n",
        "| machine | 1 thread | 2 threads | two of one |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {r['machine']} | {r['one']:.1f} s | {r['two']:.1f} s | {r['ratio']:.2f} |"
        for r in found["busy"]["busy"]
    ]
    return "\n".join(lines) + "\n"


def _others_table(found: dict[str, Any]) -> str:
    rows = found.get("others", {}).get("others", [])
    if not rows:
        return ""
    lines = [
        "\nResNet56 on CIFAR-10, layers inside residual branches, at the same number of parameters, before fine-tuning",
        "(10,000 test images):\n",
        "| method | seconds | top-1 | compression |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {r['method']} | {r['seconds']:.1f} | {r['top1']:.2f} | {r['compression']:.3f} |"
        for r in rows
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
