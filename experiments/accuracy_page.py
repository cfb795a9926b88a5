"""docs/results-accuracy.md from the rows of experiments/accuracy.py and experiments/networks.py.

python experiments/accuracy_page.py
"""

from __future__ import annotations

import csv
from collections import defaultdict
from importlib.resources import files
from pathlib import Path
from statistics import mean

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "results-accuracy.md"
RESULTS = HERE / "results"
RATIOS = (2, 4, 8, 16, 32)

PUBLISHED = files("subprune_paper") / "paper_tables.csv"

BEGIN, END = "<!-- measured -->\n", "<!-- /measured -->"


def rows(name: str) -> list[dict[str, str]]:
    path = RESULTS / name
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def published() -> list[str]:
    """The paper's own figures, without fine-tuning: its best variant, and the best at each ratio."""
    with PUBLISHED.open() as file:
        own = [
            r for r in csv.DictReader(file) if r["model"] == "resnet56" and r["finetuned"] == "0"
        ]
    lines = []
    for words, chosen in (
        (
            "the paper's AsymInChange",
            [r for r in own if r["method"] == "AsymInChange" and r["reweighted"] == "1"],
        ),
        ("the best of all the paper's methods", own),
    ):
        best = {
            c: max(float(r["top1"]) for r in chosen if int(r["compression"]) == c) for c in RATIOS
        }
        lines.append(f"| *{words}, as published* | {' | '.join(map(str, best.values()))} | | |")
    return lines


def table() -> list[str]:
    """Test accuracy of every variant, mean over seeds."""
    values: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    seconds: dict[str, list[float]] = defaultdict(list)
    seeds: dict[str, set[str]] = defaultdict(set)
    for row in rows("accuracy/table.csv"):
        values[row["variant"]][float(row["compression"])].append(float(row["top1"]))
        seconds[row["variant"]].append(float(row["cpu_seconds"]))
        seeds[row["variant"]].add(row["seed"])
    head = " | ".join(f"c = {c}" for c in RATIOS)
    lines = [f"| variant | {head} | CPU seconds | seeds |", "|---" * (len(RATIOS) + 3) + "|"]
    lines += published()
    for name, by_ratio in values.items():
        if name == "dense":
            continue
        cells = " | ".join(f"{mean(by_ratio[c]):.1f}" if by_ratio.get(c) else "" for c in RATIOS)
        used = ", ".join(sorted(seeds[name]))
        lines.append(f"| {name} | {cells} | {mean(seconds[name]):.0f} | {used} |")
    return lines


def drops() -> list[str]:
    """Points lost on the test images of other networks, mean over seeds."""
    head = " | ".join(f"c = {c}" for c in RATIOS)
    lines = [f"| network | dense | method | {head} | seeds |", "|---" * (len(RATIOS) + 4) + "|"]
    for name in ("lenet", "vgg11"):
        every = rows(f"accuracy/table-{name}.csv")
        dense = next((float(r["top1"]) for r in every if r["variant"] == "dense"), None)
        for variant in dict.fromkeys(r["variant"] for r in every if r["variant"] != "dense"):
            own = [r for r in every if r["variant"] == variant]
            cells = []
            for c in RATIOS:
                values = [float(r["top1"]) for r in own if float(r["compression"]) == c]
                known = bool(values) and dense is not None
                cells.append(f"{mean(values) - dense:+.2f}" if known else "")
            seeds = ", ".join(sorted({r["seed"] for r in own}))
            lines.append(f"| {name} | {dense} | {variant} | {' | '.join(cells)} | {seeds} |")
    return lines


def ablation() -> list[str]:
    """Every part off in turn, and alone."""
    every = rows("accuracy/ablation.csv")
    ratios = sorted({float(r["compression"]) for r in every})
    values = {(r["variant"], float(r["compression"])): r for r in every}
    head = " | ".join(f"c = {c:g}" for c in ratios)
    lines = [f"| | {head} | CPU seconds |", "|---" * (len(ratios) + 2) + "|"]
    for name in dict.fromkeys(r["variant"] for r in every):
        own = [values.get((name, c)) for c in ratios]
        cells = " | ".join("" if r is None else f"{float(r['top1']):.1f}" for r in own)
        seconds = mean(float(r["cpu_seconds"]) for r in own if r is not None)
        lines.append(f"| {name} | {cells} | {seconds:.0f} |")
    return lines


def images() -> list[str]:
    """Accuracy by the number of calibration images."""
    every = rows("accuracy/images.csv")
    counts = sorted({int(r["images"]) for r in every})
    lines = [
        f"| | {' | '.join(map(str, counts))} |",
        "|---" * (len(counts) + 1) + "|",
    ]
    for name in dict.fromkeys(r["variant"] for r in every):
        own = {int(r["images"]): float(r["top1"]) for r in every if r["variant"] == name}
        lines.append(
            f"| {name} | {' | '.join(f'{own[c]:.1f}' if c in own else '' for c in counts)} |"
        )
    return lines


def networks() -> list[str]:
    """Other networks: the paper's best method and the default side by side."""
    every = rows("networks.csv")
    ratios = sorted({float(r["compression"]) for r in every})
    head = " | ".join(f"c = {c:g}" for c in ratios)
    lines = [f"| network | dense | {head} |", "|---" * (len(ratios) + 2) + "|"]
    for name in dict.fromkeys(r["network"] for r in every):
        own = {(float(r["compression"]), r["method"]): r for r in every if r["network"] == name}
        cells = []
        for c in ratios:
            old = own.get((c, "asym-in-change"))
            new = own.get((c, "auto")) or own.get((c, "auto, felt errors alone"))
            refined = own.get((c, "auto, refine"))
            cell = "" if old is None or new is None else f"{old['pruned']} → {new['pruned']}"
            cells.append(cell if refined is None else f"{cell} ({refined['pruned']})")
        dense = next(iter(own.values()))["dense"]
        lines.append(f"| {name} | {dense} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    before, rest = PAGE.read_text().split(BEGIN)
    after = rest.split(END)[1]
    machines = sorted({r["machine"] for r in rows("accuracy/table.csv")})
    parts = ["## ResNet56, test images\n", *table()]
    if rows("accuracy/ablation.csv"):
        parts += ["\n## What each part brings\n"]
        parts += ["On 10,000 training images that nothing saw, seed 42, 512 images.\n", *ablation()]
    if rows("accuracy/images.csv"):
        parts += ["\n## How many images\n"]
        parts += ["On the same 10,000 training images.\n", *images()]
    if rows("accuracy/table-lenet.csv"):
        parts += ["\n## LeNet and VGG11, points lost on test images\n", *drops()]
    parts += [
        "\n## Other networks\n",
        "The paper's best method → the default (with `refine=4`), in per cent; of the language model, "
        "perplexity.",
        "On inputs that nothing was calibrated on (5,000: the standard error is up to 0.7 points).\n",
        *networks(),
        f"\nMachine: {'; '.join(machines)}. CPU seconds include the 10,000 test images.\n",
    ]
    PAGE.write_text(f"{before}{BEGIN}" + "\n".join(parts) + f"{END}{after}")


if __name__ == "__main__":
    main()
