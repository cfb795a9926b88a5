"""The paper's claims about LeNet, tested on our rows: who is ahead, and what reweighting and
fine-tuning add.
"""

from __future__ import annotations

from collections import defaultdict
from statistics import mean, pstdev

from subprune_paper.store import Row
from subprune_paper.tables import LABELS, OURS, paper_rows

VALUES = (2, 4, 8, 16, 32)
GREEDY_FS = ("layer-greedy-fs", "layer-greedy-fs-fd")
Rows = list[Row]
Setting = tuple[bool, str]  # reweighting, fine-tuning
Cells = dict[tuple[str, bool, str, float], dict[int, float]]


def by_seed(rows: Rows) -> Cells:
    """Top-1 by method, reweighting, fine-tuning and ratio, then by seed."""
    found: Cells = defaultdict(dict)
    for row in rows:
        if row["status"] == "done" and row["method"] != "dense":
            found[row["method"], row["reweight"], row["finetune"], row["value"]][row["seed"]] = row[
                "top1"
            ]
    return found


def order_claim(rows: Rows) -> list[str]:
    """Asym ≥ Seq ≥ Layer on average, pair by pair over the same seeds."""
    cells = by_seed(rows)
    lines = [
        "| pair | " + " | ".join(f"c = {c}" for c in VALUES) + " | mean |",
        "|---|" + "---|" * (len(VALUES) + 1),
    ]
    verdicts = []
    for first, second in ((OURS[0], OURS[1]), (OURS[1], OURS[2]), (OURS[0], OURS[2])):
        texts, means = [], []
        for c in VALUES:
            one, two = cells[first, True, "none", float(c)], cells[second, True, "none", float(c)]
            gaps = [one[s] - two[s] for s in sorted(one.keys() & two.keys())]
            means.append(mean(gaps))
            texts.append(f"{mean(gaps):+.2f} ({sum(g > 0 for g in gaps)}/{len(gaps)})")
        lines.append(
            f"| {LABELS[first]} − {LABELS[second]} | {' | '.join(texts)} | {mean(means):+.2f} |"
        )
        verdicts.append(
            f"{LABELS[first]} ≥ {LABELS[second]}: {'yes' if mean(means) >= 0 else 'no'} ({mean(means):+.2f})"
        )
    head = "Points of top-1, mean over seeds; in brackets, seeds in which the first is ahead."
    return [head, "", *lines, "", f"**On average over the ratios:** {'; '.join(verdicts)}."]


def gains(cells: Cells, after: Setting, before: Setting) -> tuple[list[str], list[str]]:
    """What the one setting (reweighting, fine-tuning) adds to the other, as a table; and the means
    below zero.
    """
    lines = [
        "| method | " + " | ".join(f"c = {c}" for c in VALUES) + " |",
        "|---|" + "---|" * len(VALUES),
    ]
    against = []
    for method, label in LABELS.items():
        texts = []
        for c in VALUES:
            new, old = (cells.get((method, *setting, float(c)), {}) for setting in (after, before))
            gaps = [new[s] - old[s] for s in sorted(new.keys() & old.keys())]
            texts.append(f"{mean(gaps):+.1f} ± {pstdev(gaps):.1f}" if gaps else "–")
            if gaps and mean(gaps) < 0:
                against.append(f"{label} at c = {c} ({mean(gaps):+.1f})")
        lines.append(f"| {label} | {' | '.join(texts)} |")
    return lines, against


def reweighting_claim(rows: Rows) -> list[str]:
    """What reweighting adds to each method, and to the greedy-fs pair."""
    lines, against = gains(by_seed(rows), (True, "none"), (False, "none"))
    hurt = [a for a in against if not a.startswith("LayerGreedyFS")]
    pair = [a for a in against if a.startswith("LayerGreedyFS")]
    first = "yes, at every ratio" if not hurt else f"not for {', '.join(hurt)}"
    second = f"it hurts {', '.join(pair)}" if pair else "it helps them too"
    verdict = f"**Reweighting helps every method but the greedy-fs pair:** {first}. **The pair:** {second}."
    return [*lines, "", verdict, "", paper_on_the_pair()]


def paper_on_the_pair() -> str:
    """What the paper's own table says about reweighting and the greedy-fs pair."""
    numbers, texts = paper_rows(), []
    for method in GREEDY_FS:
        gaps = [
            _paper(numbers, method, True, c) - _paper(numbers, method, False, c) for c in VALUES
        ]
        texts.append(f"{LABELS[method]} {', '.join(f'{g:+.1f}' for g in gaps)}")
    return (
        "The paper says in its text that reweighting does not help this pair. Its own LeNet table says otherwise: "
        f"reweighting adds, at c = 2 … 32, {'; '.join(texts)}. The rows here agree with that table up to c = 16. At "
        "c = 32 they do not: there it hurts here."
    )


def _paper(
    numbers: dict[tuple[str, str, bool, bool, float], dict[str, float]], m: str, rw: bool, c: int
) -> float:
    return numbers["lenet", m, rw, False, float(c)]["top1"]


def finetuning_claims(rows: Rows, tuned_dense: str) -> list[str]:
    """What fine-tuning adds to reweighted networks, and what reweighting adds to fine-tuned ones."""
    cells = by_seed(rows)
    lines = ["## Claim: fine-tuning with few images helps, with all of them far more", ""]
    for finetune, words in (("limited", "the same 512 images"), ("full", "all training images")):
        added, _ = gains(cells, (True, finetune), (True, "none"))
        lines += [
            f"Points of top-1 that fine-tuning on {words} adds to reweighted networks:",
            "",
            *added,
            "",
        ]
    lines += [
        "**With all images:** yes. **With the same 512:** where much is lost. At c = 2, and for most methods at c = 4, "
        "ten epochs on 512 images, with labels and the paper's recipe, take away more than they give. That is the "
        f"recipe, not the pruning: the dense network treated in the same way falls from {tuned_dense}.",
        "",
        "## Claim: reweighting still helps when fine-tuning with few images, and may hurt when with all",
        "",
    ]
    for finetune, words in (("limited", "the same 512 images"), ("full", "all training images")):
        added, _ = gains(cells, (True, finetune), (False, finetune))
        lines += [f"Points of top-1 that reweighting adds, fine-tuned on {words}:", "", *added, ""]
    return [*lines, VERDICT]


VERDICT = (
    "**Both hold.** With few images the exceptions are within a point, but for the greedy-fs pair at c = 16 and 32. "
    "With all images reweighting takes away a little from most methods, at most 0.6 points from the three variants, "
    "far more from the greedy-fs pair at high ratios; LayerSampling gains."
)
