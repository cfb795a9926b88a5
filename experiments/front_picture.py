"""docs/front.png and the README's words about it: subprune beside measured rivals, from committed
rows alone.

    python experiments/front_picture.py

Rows come from experiments/results and benchmarks/results; what is not there is not drawn, and new
rows are drawn when the script runs again. Of a rival that was measured with BatchNorm handled in
several ways, the best of them is shown at every ratio.
"""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "experiments" / "results"
TARGET = ROOT / "docs" / "front.png"
RATIOS = (2, 4, 8, 16, 32)
OURS, REFINED, RECOVERED, PLAIN = "#1f6f78", "#104a50", "#2c9a4b", "#c2571a"
GREYS = ("#4a5560", "#7b8791", "#a3adb5", "#c3cad0")

Line = dict[int, float]
README = ROOT / "README.md"
BEGIN, END = "<!-- measured -->\n", "<!-- /measured -->"
# What is drawn as ours: the first variant that has rows enough.
DEFAULTS = {
    "default": "subprune, default",
    "budgets by felt errors alone": "subprune, earlier default",
}
# Networks of the arena that are drawn as bars, and what its goals are called.
NETWORKS = {"resnet50": "ResNet50, ImageNet", "efficientnet-lite0": "EfficientNet-Lite0, ImageNet"}
WORDS = {"speedup": "FLOPs", "compression": "parameters"}
EARLIER = "felt errors alone"  # what the default was before; not drawn beside it
REFINES = {
    "refine": "subprune, refine=4",
    "refine, mirror images": "subprune, refine=4, mirror images",
}
# Training without labels, for what is left of ten minutes.
RECOVERS = {"refine, mirror images, recover": "the same and recover, 10 minutes in all"}


def rows(path: Path) -> list[dict[str, str]]:
    """Rows of a CSV file; none if it is not there."""
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


# ---- ResNet56: accuracy over the ratio -----------------------------------------------------------


def own(variant: str) -> Line:
    """Mean over seeds."""
    found: dict[int, list[float]] = defaultdict(list)
    for row in rows(RESULTS / "accuracy" / "table.csv"):
        if row["variant"] == variant:
            found[round(float(row["compression"]))].append(float(row["top1"]))
    return {c: mean(values) for c, values in sorted(found.items())}


def ours(variants: dict[str, str]) -> tuple[str, Line]:
    """The label and the line of the first variant that was measured at c = 2 and 4."""
    for variant, label in variants.items():
        line = own(variant)
        if line.keys() >= {2, 4}:
            return label, line
    return "", {}


def caption() -> str:
    """What the picture says, in a sentence."""
    _, dense = torch_pruning()
    (_, line), paper = ours(DEFAULTS), rival("asym-in-change", True)
    norm, (_, recovered) = rival("layer-weight-norm", False), ours(RECOVERS)
    return (
        f"*With half its parameters, ResNet56 keeps {line[2]:.1f}% top-1 of {dense:.1f}%; with a "
        f"quarter, {line[4]:.1f}%, where the paper's method keeps {paper[4]:.1f}%\n"
        "([one of several figures](docs/alternatives.md#one-method-several-figures)) and the weight "
        f"norm {norm[4]:.1f}%, all without a step of\n"
        f"training; ten minutes with `recover`, without labels, make it {recovered[4]:.1f}%. Every "
        "point is a committed row, rivals in\n"
        "their best setting ([rows and protocol](docs/alternatives.md)); where one is ahead, the "
        "picture shows it.*\n"
    )


def rival(method: str, reweighted: bool) -> Line:
    """The best of all ways to treat BatchNorm, at every ratio."""
    found: Line = {}
    for row in rows(RESULTS / "resnet56-label-free" / "summary.csv"):
        fits = row["method"] == method and row["reweight"] == str(int(reweighted))
        if fits and row["finetune"] == "none":
            c = round(float(row["value"]))
            found[c] = max(found.get(c, 0.0), float(row["top1"]))
    return dict(sorted(found.items()))


def published() -> Line:
    """The paper's best variant at every ratio, as published."""
    found: Line = {}
    for row in rows(ROOT / "paper" / "subprune_paper" / "paper_tables.csv"):
        ours = row["method"] in ("AsymInChange", "SeqInChange", "LayerInChange")
        if row["model"] == "resnet56" and ours and row["finetuned"] == "0":
            c = round(float(row["compression"]))
            found[c] = max(found.get(c, 0.0), float(row["top1"]))
    return dict(sorted(found.items()))


def torch_pruning() -> tuple[Line, float]:
    """Its best at the ratio that was measured, BatchNorm re-estimated or not; and the dense one."""
    path = ROOT / "benchmarks" / "results" / "results.json"
    others = json.loads(path.read_text())["others"]["others"]
    dense = next(x["top1"] for x in others if x["method"] == "dense")
    found: Line = {}
    for row in others:
        if row["method"].startswith("Torch-Pruning"):
            c = round(row["compression"])
            found[c] = max(found.get(c, 0.0), row["top1"])
    return found, dense


def resnet56(axes: Any) -> None:
    """Top-1 without fine-tuning, by how much smaller the network is."""
    points, dense = torch_pruning()
    lines = [
        (*ours(DEFAULTS), OURS, "-o"),
        (*ours(REFINES), REFINED, "-o"),
        (*ours(RECOVERS), RECOVERED, "-D"),
        ("the paper's method, our code", rival("asym-in-change", True), PLAIN, "-s"),
        ("the paper, as published", published(), PLAIN, ":s"),
        ("activation × gradient, labels", rival("act-grad", False), GREYS[0], "--^"),
        ("ℓ1 norm (Li et al.)", rival("layer-weight-norm", False), GREYS[1], "--v"),
        ("Torch-Pruning 1.6, best of 3", points, "#000000", "*"),
    ]
    axes.axhline(dense, color=GREYS[2], linewidth=1)
    axes.text(
        33, dense + 0.8, f"dense {dense:.1f}", ha="right", va="bottom", color=GREYS[0], fontsize=8.5
    )
    for name, line, colour, style in lines:
        if line:
            size = 11 if style == "*" else 4.5
            axes.plot(
                list(line), list(line.values()), style, color=colour, label=name, markersize=size
            )
    axes.set_xscale("log", base=2)
    axes.set_xticks(RATIOS, [f"{c}×" for c in RATIOS])
    axes.set_ylim(0, 101)
    axes.set_xlabel("fewer parameters")
    axes.set_ylabel("top-1 on the test images, %")
    axes.set_title(
        "ResNet56, CIFAR-10: 512 images,\nno fine-tuning with labels", fontsize=10.5, loc="left"
    )
    axes.legend(fontsize=8.2, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 0.97))


# ---- bars: one network, one goal -----------------------------------------------------------------


def bars(axes: Any, values: dict[str, list[float]], title: str, label: str) -> None:
    """For each name a bar, or several, the strong ones first; the best name on top, ours in
    colour.
    """
    order = sorted(values, key=lambda name: sum(values[name]))
    most = max(len(x) for x in values.values())
    high = 0.74 / most
    for i, name in enumerate(order):
        colour = OURS if name.startswith("subprune") else PLAIN if "paper" in name else GREYS[1]
        for j, value in enumerate(values[name]):
            y = i + (0.5 * (most - 1) - j) * high
            axes.barh(y, value, color=colour, alpha=1 - 0.45 * j, height=0.92 * high)
            axes.text(value, y, f" {value:#.3g}", va="center", fontsize=8)
    axes.set_yticks(range(len(order)), order, fontsize=8.5)
    axes.set_xlim(0, 1.13 * max(max(x) for x in values.values()))
    axes.set_xlabel(label)
    axes.set_title(title, fontsize=10.5, loc="left")


def minilm() -> tuple[dict[str, list[float]], str, str]:
    """Cosine with the dense embeddings, by the share of the block parameters that was removed."""
    names = {
        "default": "subprune, default",
        "refine": "subprune, refine=4",
        "paper's method": "the paper's method",
    }
    found: dict[str, dict[float, float]] = defaultdict(dict)
    for path in sorted((RESULTS / "transformers").glob("*.csv")):
        for row in rows(path):
            if row.get("model") == "minilm" and row.get("cosine"):
                name = names.get(row["variant"], row["variant"])
                found[name][float(row["removed"])] = float(row["cosine"])
    known = sorted(share for line in found.values() for share in line)
    shares = [x for x in dict.fromkeys(known) if known.count(x) > len(found) / 2]
    whole = {
        name: [line[share] for share in shares]
        for name, line in found.items()
        if line.keys() >= set(shares) and name != EARLIER
    }
    words = " / ".join(f"{share:.0%}" for share in shares)
    title = f"MiniLM-L6: {words} of the blocks'\nparameters removed, no labels"
    return whole, title, "cosine with the dense embeddings"


def arena() -> Iterator[tuple[dict[str, list[float]], str, str]]:
    """For each network of the arena, the goal at which subprune was measured beside most rivals;
    none where there is nothing to compare, or where lines are drawn already.
    """
    for stem, network in NETWORKS.items():
        by_goal: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        dense: list[float] = []
        for row in rows(RESULTS / "arena" / f"{stem}.csv"):
            if row["entrant"] == "dense":
                dense.append(float(row["top1"]))
            else:
                by_goal[row["goal"]][row["entrant"]].append(float(row["top1"]))
        compared = [g for g in by_goal if "subprune" in by_goal[g] and len(by_goal[g]) > 1]
        if compared:
            goal = max(compared, key=lambda g: len(by_goal[g]))
            what, _, factor = goal.partition("=")
            found = {_short(name): [mean(values)] for name, values in by_goal[goal].items()}
            if dense:
                found["dense"] = [mean(dense)]
            yield found, f"{network}:\n{WORDS[what]} ÷ {factor}, no fine-tuning", "top-1, %"


def _short(entrant: str) -> str:
    """An entrant's name for a narrow picture; the table has the whole one."""
    name = entrant.replace(", BatchNorm re-estimated", "").replace(", ", ",\n", 1)
    return name if name != "subprune" else "subprune,\ndefault"


def main() -> None:
    panels = [x for x in (*arena(), minilm()) if x[0]]
    lines, bar, high = 5.2, 3.7, 3.7  # inches: the lines with their legend, each panel of bars
    width = lines + bar * len(panels) + 0.4  # titles are wider than bars
    figure = plt.figure(figsize=(width, high))
    resnet56(figure.add_axes((0.6 / width, 0.14, 2.3 / width, 0.7)))
    for i, panel in enumerate(panels):
        left = lines + bar * i + 1.25  # what is written beside the bars
        bars(figure.add_axes((left / width, 0.14, 2.3 / width, 0.7)), *panel)
    for place in figure.axes:
        place.spines[["top", "right"]].set_visible(False)
    figure.savefig(TARGET, dpi=110, metadata={"Software": None})
    before, rest = README.read_text(encoding="utf-8").split(BEGIN)
    README.write_text(before + BEGIN + caption() + END + rest.split(END)[1], encoding="utf-8")
    print(f"{TARGET.relative_to(ROOT)} was written from {len(panels) + 1} sets of rows")


if __name__ == "__main__":
    main()
