"""How the time grows with columns, rows and depth: measurements, fitted slopes, one picture."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from machine import timed
from workloads import QUICK, RESIDUAL, Place, synthetic

import subprune
from subprune.select.greedy import greedy
from subprune.statistics.collectors import ConsumerStatistics
from subprune.statistics.columns import ColumnMap
from subprune.statistics.patches import Convolution
from subprune.statistics.shifts import shifted_products
from subprune.zoo.models import build

REPEATS = 1 if QUICK else 3
MOST = 2 if QUICK else None  # sizes of each kind that are measured


def best(work: Callable[[], Any], repeats: int = REPEATS) -> float:
    """Seconds of the fastest of a few runs after a first one."""
    work()
    return min(timed(work)[0] for _ in range(repeats))


def by_columns() -> list[tuple[int, float]]:
    """The whole keep order against d, from ready statistics, d/8 outputs."""
    found = []
    for d in (256, 512, 1024, 2048, 4096)[:MOST]:
        statistics = synthetic(d, d // 8)
        found.append(
            (d, best(lambda s=statistics, d=d: greedy([s], d), 1 if d > 2000 else REPEATS))
        )
    return found


def by_rows() -> list[tuple[int, float]]:
    """Statistics of a linear layer with 512 columns against its rows."""
    found = []
    for rows in (2048, 8192, 32768, 131072)[:MOST]:
        x = torch.randn(rows, 512, generator=torch.Generator().manual_seed(0))

        def work(x: torch.Tensor = x) -> None:
            ConsumerStatistics(ColumnMap(torch.arange(512), 512), symmetric=True).update(x)

        found.append((rows, best(work)))
    return found


def by_images() -> list[tuple[int, float]]:
    """Statistics of a 3×3 convolution with 64 channels on 8×8 maps against its rows (patches)."""
    conv = Convolution.make((3, 3), (1, 1), (1, 1), (1, 1), "zeros", 1)
    found = []
    for images in (32, 128, 512, 2048)[:MOST]:
        x = torch.randn(images, 64, 8, 8, generator=torch.Generator().manual_seed(0))
        found.append((images * 64, best(lambda x=x: shifted_products(x, None, conv))))
    return found


def by_depth(place: Place, images: int = 64) -> list[tuple[int, float]]:
    """Whole `prune` calls of ResNet20 … 110 with AsymInChange, half the channels, against pruned
    layers.
    """
    data = place.images("cifar10", "train", images)
    found = []
    for depth in (20, 32, 44, 56, 110)[:MOST]:
        torch.manual_seed(0)
        model = build(f"resnet{depth}").eval()

        def work(call: Any = subprune.prune, model: torch.nn.Module = model) -> Any:
            quiet: Any = {"time_calls": False, "progress": False}
            return call(model, data, keep=0.5, only=RESIDUAL, **quiet)

        found.append((len(work(subprune.forecast).counts), best(work, 1)))
    return found


def slope(points: Sequence[tuple[int, float]]) -> float:
    """Of a straight line through the logarithms."""
    xs, ys = ([math.log(p[i]) for p in points] for i in (0, 1))
    mx, my = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((x - mx) * (y - my) for x, y in zip(xs, ys, strict=True)) / sum(
        (x - mx) ** 2 for x in xs
    )


SERIES: dict[str, tuple[str, Callable[[Place], list[tuple[int, float]]]]] = {
    "keep order": ("columns d", lambda place: by_columns()),
    "linear statistics": ("rows N", lambda place: by_rows()),
    "convolution statistics": ("rows N", lambda place: by_images()),
    "whole prune": ("pruned layers (ResNet20 … 110)", by_depth),
}


def measure_all(place: Place) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, (axis, work) in SERIES.items():
        points = work(place)
        tail = points[len(points) // 2 - 1 :]  # the small ones show overhead, not growth
        found[name] = {
            "axis": axis,
            "points": points,
            "slope": slope(points),
            "slope_of_large": slope(tail),
        }
    return found


def plot(found: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        1, len(found), figsize=(4 * len(found), 3.6), layout="constrained"
    )
    for axis, (name, series) in zip(axes, found.items(), strict=True):
        xs, ys = zip(*series["points"], strict=True)
        axis.loglog(xs, ys, "o-", color="#1f6f8b")
        label = f"slope {series['slope']:.2f}, of the larger {series['slope_of_large']:.2f}"
        axis.set(title=f"{name}\n{label}", xlabel=series["axis"], ylabel="seconds")
        axis.title.set_fontsize(10)
        axis.set_xticks(xs, [str(x) for x in xs], minor=False)
        axis.tick_params(axis="x", labelrotation=45)
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
