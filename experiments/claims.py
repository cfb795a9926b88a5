"""docs/results-claims.md: the paper, claim by claim, from committed rows alone.

    python experiments/claims.py

Nothing is run: the rows are those of experiments/results/. Verdicts are counted, not written: a
claim about several cells holds if it does in all of them, does not hold if it does in none, and
else holds under the conditions that the numbers show.
"""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from below_paper import below

from subprune_paper.tables import LABELS, OURS

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
PAGE = HERE.parent / "docs" / "results-claims.md"
RATIOS = (2, 4, 8, 16, 32)
GREEDY_FS = ("layer-greedy-fs", "layer-greedy-fs-fd")
NAMES = {"lenet": "LeNet", "resnet56": "ResNet56", "vgg11": "VGG11"}
MAIN = {"lenet": "lenet-mnist", "resnet56": "resnet56-label-free", "vgg11": "vgg11-label-free"}

Cell = dict[str, float | None]


@dataclass(frozen=True)
class Setting:
    """A block of one of the paper's tables, as it was run here."""

    model: str
    grid: str
    reweight: bool = True
    batchnorm: str = "keep"
    finetune: str = "none"

    @property
    def words(self) -> str:
        treated = {
            "keep": "",
            "recalibrate": ", BatchNorm re-estimated at the end",
            "sequential": ", BatchNorm re-estimated on the way",
        }[self.batchnorm]
        return NAMES[self.model] + treated


@dataclass(frozen=True)
class Claim:
    """What the paper says, what the rows say, and where they come from."""

    text: str
    verdict: str
    evidence: Sequence[str]
    source: str


def table(setting: Setting) -> dict[str, dict[float, Cell]]:
    """Cells by method and ratio: ours and the paper's."""
    found: dict[str, dict[float, Cell]] = {}
    with (RESULTS / setting.grid / "summary.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            same = (
                row["reweight"] == str(int(setting.reweight))
                and row["batchnorm"] == setting.batchnorm
                and row["finetune"] == setting.finetune
            )
            if same:
                numbers = {
                    k: float(row[k]) if row[k] else None
                    for k in ("top1", "std", "runs", "paper_top1", "prune_seconds", "paper_seconds")
                }
                found.setdefault(row["method"], {})[float(row["value"])] = numbers
    return found


def one_shot() -> list[Setting]:
    """The blocks with reweighting and without fine-tuning."""
    return [
        Setting("lenet", MAIN["lenet"]),
        Setting("resnet56", MAIN["resnet56"]),
        Setting("resnet56", MAIN["resnet56"], batchnorm="recalibrate"),
        Setting("vgg11", MAIN["vgg11"]),
    ]


def verdict(held: Sequence[bool]) -> str:
    if all(held):
        return f"holds ({len(held)} of {len(held)})"
    if not any(held):
        return f"does not hold (0 of {len(held)})"
    return f"holds under conditions ({sum(held)} of {len(held)})"


def grid_lines(head: str, rows: Iterable[tuple[str, Sequence[str]]]) -> list[str]:
    columns = " | ".join(f"c = {c}" for c in RATIOS)
    lines = [f"| {head} | {columns} |", "|---" * (len(RATIOS) + 1) + "|"]
    return lines + [f"| {name} | {' | '.join(cells)} |" for name, cells in rows]


def number(cell: Cell | None, key: str) -> float | None:
    return None if cell is None else cell[key]


def gaps(first: dict[float, Cell], second: dict[float, Cell], key: str) -> list[float | None]:
    """First less second at every ratio."""
    out: list[float | None] = []
    for c in RATIOS:
        a, b = number(first.get(c), key), number(second.get(c), key)
        out.append(None if a is None or b is None else a - b)
    return out


def signed(values: Sequence[float | None]) -> list[str]:
    return ["" if x is None else f"{x:+.1f}" for x in values]


def known(values: Sequence[float | None]) -> list[float]:
    return [x for x in values if x is not None]


def orders() -> list[Claim]:
    """Asym ≥ Seq and Seq ≥ Layer, each on average over the ratios."""
    claims = []
    for one, two in itertools.pairwise(OURS):
        held, rows = [], []
        for setting in one_shot():
            cells = table(setting)
            ours = gaps(cells[one], cells[two], "top1")
            papers = known(gaps(cells[one], cells[two], "paper_top1"))
            average = mean(known(ours))
            held.append(average >= 0)
            name = f"{setting.words} (mean {average:+.1f}; paper {mean(papers):+.1f})"
            rows.append((name, signed(ours)))
        claims.append(
            Claim(
                f"{LABELS[one]} is better than {LABELS[two]}, on average over the ratios",
                verdict(held),
                grid_lines(f"{LABELS[one]} − {LABELS[two]}, points of top-1", rows),
                "the grids' committed rows, `experiments/results/*/summary.csv`",
            )
        )
    return claims


def best() -> Claim:
    """The best of the three against the best of all others."""
    held, rows = [], []
    for setting in one_shot():
        cells = table(setting)
        texts = []
        for c in RATIOS:
            scores = {m: number(by.get(c), "top1") for m, by in cells.items() if m != "dense"}
            there = {m: x for m, x in scores.items() if x is not None}
            mine = max((m for m in there if m in OURS), key=there.__getitem__)
            other = max((m for m in there if m not in OURS), key=there.__getitem__)
            held.append(there[mine] >= there[other])
            texts.append(
                f"{LABELS[mine]} {there[mine]:.1f}, {LABELS.get(other, other)} {there[other]:.1f}"
            )
        rows.append((setting.words, texts))
    return Claim(
        "The method outperforms all others, also when those are reweighted",
        verdict(held),
        grid_lines("best of the three variants, best of the others", rows),
        "as above",
    )


def reweighting() -> list[Claim]:
    """What reweighting adds: to all but the greedy-fs pair, and to the pair."""
    helped, pair, rows = [], [], []
    for model, batchnorm in (
        ("lenet", "keep"),
        ("resnet56", "keep"),
        ("resnet56", "recalibrate"),
    ):
        setting = Setting(model, MAIN[model], batchnorm=batchnorm)
        after = table(setting)
        before = table(Setting(model, MAIN[model], False, batchnorm))
        for method in before:
            if method == "dense" or method not in after:
                continue
            gained = gaps(after[method], before[method], "top1")
            average = mean(known(gained))
            (pair if method in GREEDY_FS else helped).append(average > 0)
            name = f"{setting.words}: {LABELS.get(method, method)} (mean {average:+.1f})"
            rows.append((name, signed(gained)))
    lines = grid_lines("points that reweighting adds", rows)
    return [
        Claim(
            "Reweighting improves all methods but the greedy-fs pair",
            verdict(helped),
            lines,
            "as above; of VGG11 there are no rows without reweighting",
        ),
        Claim(
            "It does not help the greedy-fs pair",
            verdict([not x for x in pair]),
            ["The pair's lines of the table above (LeNet)."],
            "as above",
        ),
    ]


def fine_tuning() -> list[Claim]:
    plain, few, full = (
        table(Setting("lenet", MAIN["lenet"], finetune=how)) for how in ("none", "limited", "full")
    )
    bare = {
        how: table(Setting("lenet", MAIN["lenet"], False, finetune=how))
        for how in ("none", "limited", "full")
    }
    less, still, hurt, rows = [], [], [], []
    for method in OURS:
        f, a = gaps(few[method], plain[method], "top1"), gaps(full[method], plain[method], "top1")
        less += [x < y for x, y in zip(known(f), known(a), strict=True)]
        s = gaps(few[method], bare["limited"][method], "top1")
        h = gaps(full[method], bare["full"][method], "top1")
        still.append(mean(known(s)) > 0)
        hurt.append(mean(known(h)) < 0)
        rows += [
            (f"{LABELS[method]}: tuning on 512 images adds", signed(f)),
            (f"{LABELS[method]}: tuning on all images adds", signed(a)),
            (f"{LABELS[method]}: reweighting adds, after 512 images", signed(s)),
            (f"{LABELS[method]}: reweighting adds, after all images", signed(h)),
        ]
    source = "`experiments/results/lenet-mnist/summary.csv`; CIFAR-10 has no rows tuned on all data"
    lines = grid_lines("LeNet, points of top-1", rows)
    return [
        Claim(
            "Fine-tuning with limited data helps less than with all data",
            verdict(less),
            lines,
            source,
        ),
        Claim(
            "Reweighting still helps when fine-tuning with limited data",
            verdict(still),
            ["The table above."],
            source,
        ),
        Claim(
            "It can hurt when fine-tuning with all data (in the paper, with VGG11 only)",
            verdict(hurt) + ", on LeNet",
            ["The table above."],
            source,
        ),
    ]


def budgets() -> Claim:
    held, rows = [], []
    for model, grid, chosen in (
        ("lenet", "lenet-equal-fractions", Setting("lenet", MAIN["lenet"])),
        ("vgg11", "vgg11-equal-fractions", Setting("vgg11", MAIN["vgg11"])),
        (
            "resnet56",
            "resnet56-equal-fractions",
            Setting("resnet56", MAIN["resnet56"], batchnorm="sequential"),
        ),
    ):
        equal = table(Setting(model, grid, batchnorm=chosen.batchnorm))
        for method in equal:
            if method == "dense":
                continue
            lost = gaps(table(chosen)[method], equal[method], "top1")
            held += [x > 0 for x in known(lost)]
            rows.append((f"{NAMES[model]}: {LABELS[method]}", signed(lost)))
    return Claim(
        "How much is pruned in each layer matters a lot: equal fractions are far worse",
        verdict(held),
        [
            *grid_lines("points that chosen budgets add to equal fractions", rows),
            "",
            "LeNet: equal accuracy, the paper's rule, leaves conv1 one channel "
            "([why](results-lenet.md)); VGG11 and ResNet56: error curves. The paper's own study, "
            "two layers of VGG11 (figures 4 and 5), has not been run on a network as redundant as "
            "its own.",
        ],
        "`experiments/*-equal-fractions.toml` and their rows",
    )


def patches() -> Claim | None:
    path = RESULTS / "patches.csv"
    if not path.is_file():
        return None
    with path.open(newline="") as file:
        every = list(csv.DictReader(file))
    held, rows = [], []
    for model in dict.fromkeys(r["model"] for r in every):
        texts = []
        for c in RATIOS:
            ours = {
                kind: [
                    float(r["top1"])
                    for r in every
                    if (r["model"], r["patches"], float(r["compression"])) == (model, kind, c)
                ]
                for kind in ("all", "random")
            }
            if not ours["all"] or not ours["random"]:
                texts.append("")
                continue
            a, b = mean(ours["all"]), mean(ours["random"])
            held.append(b < a)
            texts.append(f"{a:.1f}, {b:.1f}")
        seeds = len({r["seed"] for r in every if r["model"] == model})
        rows.append((f"{NAMES[model]}, seeds: {seeds}", texts))
    return Claim(
        "Random patches (r_h·r_w of each image) give worse results than all patches",
        verdict(held),
        grid_lines("AsymInChange, reweighted: all patches, random ones", rows),
        "`experiments/patches.py`, `experiments/results/patches.csv`",
    )


def ranges() -> Claim:
    """The largest k for which γ is proven positive."""
    with (RESULTS / "guarantees" / "ranks.csv").open(newline="") as file:
        every = [r for r in csv.DictReader(file) if r["paper"] and r["patches"] == "all"]
    lines, own = ["| network | layers | within 0.01 of the paper |", "|---|---|---|"], []
    for model in dict.fromkeys(r["model"] for r in every):
        close = [abs(float(r["difference"])) <= 0.01 for r in every if r["model"] == model]
        if model == "resnet56":
            own = close
        lines.append(f"| {NAMES[model]} | {len(close)} | {sum(close)} |")
    return Claim(
        "γ-ranges: the upper bounds on k/n of table 1",
        verdict(own) + ", on ResNet56, whose weights are the paper's",
        [
            *lines,
            "",
            "LeNet and VGG11 are other networks than the paper's; what the ranks mean is said on "
            "[Guarantees](guarantees.md#beside-the-papers-tables). That random patches raise the "
            "rank does not hold: they are some of the same rows. The float32 rank test makes it "
            "look so, since its threshold shrinks with the number of rows.",
        ],
        "`experiments/guarantee_tables.py`, `experiments/results/guarantees/`",
    )


def times() -> Claim:
    held, rows = [], []
    for setting in one_shot():
        cells = table(setting)
        for method in OURS:
            texts = []
            for c in RATIOS:
                cell = cells[method].get(c)
                ours, papers = number(cell, "prune_seconds"), number(cell, "paper_seconds")
                if ours is None or papers is None:
                    texts.append("")
                    continue
                held.append(ours < papers)
                texts.append(f"{ours:.0f} ({papers:.0f})")
            rows.append((f"{setting.words}: {LABELS[method]}", texts))
    return Claim(
        "Times: the paper says its implementation was not made for speed; ours is faster",
        verdict(held),
        grid_lines("seconds to prune, in brackets the paper's on its GPU", rows),
        "`prune_seconds` of the grids' rows: two cores that were not always quiet",
    )


def depth() -> Claim:
    """LayerInChange against the two others, on 4, 9 and 27 layers."""
    rows, averages = [], []
    for setting, layers in zip(
        (one_shot()[0], one_shot()[3], one_shot()[1]), (4, 9, 27), strict=True
    ):
        cells = table(setting)
        lost = [
            mean(known(gaps(cells["layer-in-change"], cells[m], "top1")))
            for m in ("asym-in-change", "seq-in-change")
        ]
        averages.append(lost[0])
        rows.append(f"| {setting.words} | {layers} | {lost[0]:+.1f} | {lost[1]:+.1f} |")
    head = "| network | layers pruned | LayerInChange − AsymInChange | − SeqInChange |"
    return Claim(
        "LayerInChange gets worse with deeper models",
        verdict([averages[2] < min(averages[:2])]) + ", against AsymInChange",
        [head, "|---|---|---|---|", *rows],
        "as above; means over the ratios",
    )


def anchor(heading: str) -> str:
    """What a heading is called in links."""
    plain = re.sub(r"[^\w\s-]", "", heading).strip().lower()
    return re.sub(r"[-\s]+", "-", plain)


def main() -> None:
    claims = [
        *orders(),
        best(),
        depth(),
        *reweighting(),
        budgets(),
        patches(),
        *fine_tuning(),
        ranges(),
        times(),
    ]
    made = [claim for claim in claims if claim is not None]
    lines = [
        "# The paper, claim by claim",
        "",
        "Every claim of the paper's experiments, what the rows made here say, and where they are. "
        "Made by",
        "`experiments/claims.py` from committed rows; nothing on this page is written by hand but "
        "the words. A claim holds if",
        "it does in all cells that it speaks of.",
        "",
        "| claim | here |",
        "|---|---|",
        *(
            f"| [{i}](#{anchor(f'{i}. {claim.text}')}) {claim.text} | {claim.verdict} |"
            for i, claim in enumerate(made, 1)
        ),
        "",
    ]
    for i, claim in enumerate(made, 1):
        lines += [f"## {i}. {claim.text}", ""]
        lines += [
            f"**{claim.verdict[0].upper()}{claim.verdict[1:]}.** From {claim.source}.",
            "",
            *claim.evidence,
        ]
        lines += [""]
    lines += below()
    PAGE.write_text("\n".join(lines).rstrip() + "\n")


if __name__ == "__main__":
    main()
