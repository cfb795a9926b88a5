"""Every cell of the paper's tables that keeps less of the dense accuracy here than there, each with
what was measured about it; for docs/results-claims.md.
"""

from __future__ import annotations

import csv
import itertools
import math
from collections import Counter, defaultdict
from pathlib import Path
from statistics import mean

from subprune_paper.tables import LABELS

RESULTS = Path(__file__).resolve().parent / "results"
NAMES = {"lenet": "LeNet", "resnet56": "ResNet56", "vgg11": "VGG11"}
GRIDS = {  # the first is the main one; the others are controls
    "lenet": ("lenet-mnist", "lenet-equal-fractions"),
    "resnet56": ("resnet56-label-free", "resnet56-equal-accuracy", "resnet56-equal-fractions"),
    "vgg11": ("vgg11-label-free", "vgg11-equal-accuracy", "vgg11-equal-fractions"),
}
CHANCE = 12.5  # per cent of ten classes below which a network says nothing
TESTED = 10_000  # images

Row = dict[str, str]
Key = tuple[str, str, str, float]  # method, reweighted, fine-tuning, ratio


def key(row: Row) -> Key:
    return row["method"], row["reweight"], row["finetune"], float(row["value"])


def gap(row: Row) -> float:
    return float(row["share_difference_points"])


def words(grid: str, row: Row) -> str:
    """How a control differs from the main grid."""
    said = {
        "equal-fractions": ["equal fractions"],
        "equal-accuracy": ["the paper's budgets"],
    }.get(grid.partition("-")[2], [])
    treated = {
        "recalibrate": "BatchNorm re-estimated at the end",
        "sequential": "BatchNorm re-estimated on the way",
    }
    if row["batchnorm"] in treated:
        said = [*said, treated[row["batchnorm"]]]
    return ", ".join(said)


def deviation(row: Row) -> float:
    """Over seeds, or of a count of test images if that is larger; in points of the share."""
    share = float(row["top1"]) / 100
    counted = 100 * math.sqrt(max(share * (1 - share), 0) / TESTED)
    return max(float(row["std"]), counted)


def papers_widths() -> dict[Key, float]:
    """Top-1 of LeNet with the convolutions that the paper's speedups allow."""
    found = defaultdict(list)
    with (RESULTS / "lenet-controls.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if row["control"] == "the paper's convolutions":
                ratio = 8.0 if int(row["parameters"]) > 5000 else 16.0
                found[row["method"], row["reweight"], row["finetune"], ratio].append(
                    float(row["top1"])
                )
    return {k: mean(values) for k, values in found.items()}


def networks() -> dict[tuple[str, float], tuple[float, float]]:
    """The lowest and highest share of the dense accuracy that four LeNets of about the same keep at
    the widths that the paper's speedups tell, by method's label and ratio.
    """
    lines = (RESULTS / "lenet-gaps.md").read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("| network | dense |"))
    heads = [head.strip() for head in lines[start].split("|")[3:-1]]
    body = itertools.takewhile(lambda line: line.startswith("|"), lines[start + 2 :])
    shares = [
        [float(cell.split("±")[0]) for cell in line.split("|")[3:-1]]
        for line in body
        if "the paper's" not in line
    ]
    found = {}
    for head, values in zip(heads, zip(*shares, strict=True), strict=True):
        label, _, ratio = head.partition("<br>")[0].partition(", c = ")
        found[label, float(ratio)] = (min(values), max(values))
    return found


def reason(model: str, row: Row, others: list[tuple[str, Row]], widths: dict[Key, float]) -> str:
    """What was measured about a shortfall, or that nothing explains it."""
    ours, papers = float(row["top1"]), float(row["paper_top1"])
    if model != "lenet" and max(ours, papers) < CHANCE:
        return "chance: both below 12.5%"
    if -gap(row) <= deviation(row):
        return f"within the deviation ({deviation(row):.1f})"
    reached = [(gap(r), words(grid, r)) for grid, r in others if gap(r) >= 0]
    if reached:
        most, how = max(reached)
        return f"the setting: {how}, {most:+.1f}"
    if model == "lenet" and key(row) in widths:
        share, papers_share = (
            widths[key(row)] / float(row["top1"]) * 100 * float(row["share_of_dense"]),
            100 * float(row["paper_share"]),
        )
        if share >= papers_share:
            return f"the budgets: with the paper's widths {share - papers_share:+.1f}"
    span = networks().get((LABELS[row["method"]], float(row["value"])))
    plain = model == "lenet" and row["reweight"] == "1" and row["finetune"] == "none"
    if plain and span and span[0] <= 100 * float(row["paper_share"]) <= span[1]:
        return f"the network: {span[0]} to {span[1]}% of dense on four LeNets"
    close = [(gap(r), words(grid, r)) for grid, r in others if -gap(r) <= deviation(r)]
    if close:
        most, how = max(close)
        return f"the setting: {how}, {most:+.1f}, within the deviation"
    if model == "vgg11":
        return "not explained by test; likely the network, which has less to spare"
    return "not explained"


def below() -> list[str]:
    """The list as lines of Markdown, with a tally before it."""
    widths, lines, tally, counted = papers_widths(), [], Counter[tuple[str, str]](), Counter[str]()
    for model, grids in GRIDS.items():
        rows: dict[Key, list[tuple[str, Row]]] = defaultdict(list)
        for grid in grids:
            with (RESULTS / grid / "summary.csv").open(newline="") as file:
                for row in csv.DictReader(file):
                    if row["share_difference_points"]:
                        rows[key(row)].append((grid, row))
        for cell, every in rows.items():
            main = [r for g, r in every if g == grids[0] and r["batchnorm"] == "keep"]
            if not main:
                continue
            counted[model] += 1
            row = main[0]
            if gap(row) >= 0:
                continue
            why = reason(model, row, [x for x in every if x[1] is not row], widths)
            tally[model, why.partition(":")[0].partition(" (")[0].partition(";")[0]] += 1
            method, reweighted, tuned, ratio = cell
            setting = ("" if reweighted == "1" else "not ") + "reweighted"
            setting += {"none": "", "limited": ", few images", "full": ", all images"}[tuned]
            spread = f" ± {float(row['std']):.1f}" if int(row["runs"]) > 1 else ""
            lines.append(
                f"| {NAMES[model]} | {LABELS.get(method, method)} | {setting} | {ratio:g} | "
                f"{float(row['top1']):.1f}{spread} ({float(row['paper_top1']):.1f}) | "
                f"{gap(row):+.2f} | {why} |"
            )
    kinds = list(dict.fromkeys(kind for _, kind in tally))
    summary = [f"| | cells | {' | '.join(kinds)} |", "|---" * (len(kinds) + 2) + "|"]
    for model in GRIDS:
        cells = " | ".join(str(tally[model, kind] or "") for kind in kinds)
        summary.append(f"| {NAMES[model]} | {counted[model]} | {cells} |")
    return [
        "## Every cell below the paper",
        "",
        "A cell is below if it keeps a smaller share of the dense top-1 than in the paper, with "
        "BatchNorm's statistics kept and",
        "the grid's own budgets. What was measured about it stands beside it: whether both are at "
        "chance, the deviation over",
        "seeds (or of a count on 10,000 images), a control in another setting that reaches the "
        "paper's share, the paper's widths,",
        "other networks.",
        "",
        *summary,
        "",
        "| network | method | | c | top-1 (paper) | share, points | reason |",
        "|---|---|---|---|---|---|---|",
        *lines,
    ]
