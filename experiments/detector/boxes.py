"""Boxes out of a detector's output, and how two sets of them compare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

__all__ = ["Boxes", "boxes", "matched", "mean_precision"]


_CANDIDATES = 300  # of an image, before overlapping ones are left out


@dataclass(frozen=True)
class Boxes:
    """Corners [n, 4] in pixels, scores [n] and classes [n], the best first."""

    corners: Tensor
    scores: Tensor
    classes: Tensor

    def __len__(self) -> int:
        return len(self.scores)

    def part(self, chosen: Tensor) -> Boxes:
        """Those of a mask [n]."""
        return replace(
            self,
            corners=self.corners[chosen],
            scores=self.scores[chosen],
            classes=self.classes[chosen],
        )


def boxes(output: Tensor, least: float = 0.25, overlap: float = 0.7, most: int = 100) -> Boxes:
    """Of one image's output [4 + classes, places]: those with some score, of overlapping ones of a
    class the best.
    """
    scores, classes = output[4:].max(0)
    chosen = (scores > least).nonzero().flatten()
    chosen = chosen[scores[chosen].argsort(descending=True, stable=True)][:_CANDIDATES]
    centre, size = output[:2, chosen].T, output[2:4, chosen].T
    corners = torch.cat([centre - size / 2, centre + size / 2], 1)
    scores, classes = scores[chosen], classes[chosen]
    overlaps = shared(corners, corners)
    kept: list[int] = []
    for i in range(len(chosen)):
        rivals = [j for j in kept if classes[j] == classes[i]]
        if not rivals or float(overlaps[i, rivals].max()) <= overlap:
            kept.append(i)
    kept = kept[:most]
    return Boxes(corners[kept], scores[kept], classes[kept])


def shared(one: Tensor, other: Tensor) -> Tensor:
    """Intersection over union: [n, m] of corners [n, 4] and [m, 4]."""
    low = torch.maximum(one[:, None, :2], other[None, :, :2])
    high = torch.minimum(one[:, None, 2:], other[None, :, 2:])
    common = (high - low).clamp(min=0).prod(2)
    areas = [(x[:, 2:] - x[:, :2]).clamp(min=0).prod(1) for x in (one, other)]
    return common / (areas[0][:, None] + areas[1][None] - common).clamp(min=1e-9)


def matched(found: Boxes, wanted: Boxes, least: float = 0.5) -> list[tuple[int, int]]:
    """Pairs of boxes of the same class that overlap enough, each used once, the best first."""
    overlaps = shared(found.corners, wanted.corners)
    pairs: list[tuple[int, int]] = []
    free = set(range(len(wanted)))
    for i in range(len(found)):
        able = [j for j in free if found.classes[i] == wanted.classes[j]]
        best = max(able, key=lambda j: float(overlaps[i, j]), default=None)
        if best is not None and float(overlaps[i, best]) >= least:
            pairs.append((i, best))
            free.remove(best)
    return pairs


def mean_precision(found: Sequence[Boxes], wanted: Sequence[Boxes]) -> float:
    """mAP at an overlap of one half: the area under precision over recall, mean over classes.

    `found` must hold boxes of low scores too; classes of which no object is wanted do not count.
    """
    classes = sorted({c for b in wanted for c in b.classes.tolist()})
    return sum(_precision(found, wanted, c) for c in classes) / max(1, len(classes))


def _precision(found: Sequence[Boxes], wanted: Sequence[Boxes], kind: int) -> float:
    """Of one class: every box of all images by falling score, hit or miss."""
    scores, hits, total = [], [], 0
    for a, b in zip(found, wanted, strict=True):
        mine, theirs = a.part(a.classes == kind), b.part(b.classes == kind)
        right = {i for i, _ in matched(mine, theirs)}
        scores += mine.scores.tolist()
        hits += [float(i in right) for i in range(len(mine))]
        total += len(theirs)
    order = sorted(range(len(scores)), key=lambda i: -scores[i])
    caught = torch.tensor([hits[i] for i in order]).cumsum(0)
    precision = caught / torch.arange(1, len(caught) + 1)
    # At every recall, the best precision at that recall or beyond.
    best = precision.flip(0).cummax(0).values.flip(0) if len(caught) else precision
    steps = torch.cat([caught[:1], caught.diff()]) / max(1, total)
    return float((steps * best).sum())
