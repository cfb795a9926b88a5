"""The paper's figures as PNG: top-1 against compression, with and without reweighting. Needs
matplotlib.
"""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from subprune.errors import OptionError
from subprune.files import write_atomic
from subprune_paper.config import Config
from subprune_paper.tables import LABELS, OURS, Group, Point

__all__ = [
    "COLOURS",
    "can_draw",
    "colour",
    "figure",
    "figure_name",
    "methods_in_order",
    "panels",
    "setting_title",
    "write_figures",
]

COLOURS = {
    "asym-in-change": "#b2182b",
    "seq-in-change": "#ef6548",
    "layer-in-change": "#f5a623",
    "act-grad": "#2166ac",
    "layer-act-grad": "#67a9cf",
    "layer-weight-norm": "#1b7837",
    "weight-norm": "#7fbf7b",
    "layer-sampling": "#762a83",
    "layer-greedy-fs": "#8c510a",
    "layer-greedy-fs-fd": "#c8a165",
    "random": "#4d4d4d",
    "layer-random": "#a0a0a0",
}


def can_draw() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def colour(method: str) -> str:
    """A method's colour; a user's own methods share one."""
    return COLOURS.get(method, "#d01c8b")


def panels(curves: dict[Group, list[Point]]) -> list[tuple[str, str]]:
    """The (batchnorm, finetune) pairs there is a figure for."""
    order = ("none", "limited", "full")
    return sorted({(g[2], g[3]) for g in curves}, key=lambda p: (order.index(p[1]), p[0]))


def figure_name(batchnorm: str, finetune: str) -> str:
    """File name without suffix."""
    return f"top1-finetune-{finetune}" + ("" if batchnorm == "keep" else f"-batchnorm-{batchnorm}")


def methods_in_order(curves: dict[Group, list[Point]]) -> list[str]:
    """The paper's order, then a user's own methods."""
    present = {g[0] for g in curves}
    return [m for m in LABELS if m in present] + sorted(present - set(LABELS))


def write_figures(
    config: Config, curves: dict[Group, list[Point]], dense: float, folder: Path
) -> list[Path]:
    """One PNG for each BatchNorm and fine-tuning setting."""
    written = []
    for batchnorm, finetune in panels(curves):
        content = io.BytesIO()
        drawn = figure(config, curves, dense, batchnorm, finetune)
        drawn.savefig(content, format="png", dpi=110, metadata={"Software": None})
        written.append(
            write_atomic(folder / f"{figure_name(batchnorm, finetune)}.png", content.getvalue())
        )
    return written


def figure(
    config: Config, curves: dict[Group, list[Point]], dense: float, batchnorm: str, finetune: str
) -> Any:
    """With and without reweighting side by side, and one legend for both."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise OptionError(
            "figures need matplotlib; run pip install 'subprune-paper[full]'."
        ) from error
    drawn = Figure(figsize=(12, 5), layout="constrained")
    axes = drawn.subplots(1, 2, sharey=True)
    for axis, reweight in zip(axes, (True, False), strict=True):
        _draw(axis, config, curves, dense, reweight, batchnorm, finetune)
    lines = {
        label: line
        for axis in axes
        for line, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    labels = [
        name for name in (LABELS.get(m, m) for m in methods_in_order(curves)) if name in lines
    ]
    drawn.legend(
        [lines[name] for name in labels], labels, loc="outside lower center", ncols=6, frameon=False
    )
    drawn.suptitle(f"{config.title or config.name}: {setting_title(batchnorm, finetune)}")
    return drawn


def setting_title(batchnorm: str, finetune: str) -> str:
    """What was done after pruning, in words."""
    words = {
        "none": "No fine-tuning",
        "limited": "Fine-tuned on the same batches",
        "full": "Fine-tuned on all data",
    }
    again = ", BatchNorm re-estimated"
    renewed = {"keep": "", "recalibrate": again, "sequential": f"{again} on the way"}
    return words[finetune] + renewed[batchnorm]


def _draw(
    axis: Any,
    config: Config,
    curves: dict[Group, list[Point]],
    dense: float,
    reweight: bool,
    batchnorm: str,
    finetune: str,
) -> None:
    for method in methods_in_order(curves):
        if not reweight and method in OURS:  # faded, for reference
            _line(
                axis, curves.get((method, True, batchnorm, finetune), []), dense, method, faded=True
            )
        _line(axis, curves.get((method, reweight, batchnorm, finetune), []), dense, method)
    axis.set_xscale("log", base=2 if config.goal == "compression" else 10)
    ticks = list(config.values)
    axis.set_xticks(ticks, [f"{v:g}" for v in ticks])
    axis.set_xlabel(
        "compression ratio" if config.goal == "compression" else "share of channels kept"
    )
    axis.set_title("with reweighting" if reweight else "without reweighting")
    axis.grid(alpha=0.3)
    if reweight:
        axis.set_ylabel("top-1 accuracy, %")


def _line(
    axis: Any, curve: Sequence[Point], dense: float, method: str, faded: bool = False
) -> None:
    if not curve:
        return
    pairs = sorted([(1.0, dense, 0.0), *((p.value, p.top1, p.std) for p in curve)])
    x, y, error = zip(*pairs, strict=True)
    style: dict[str, Any] = (
        {"alpha": 0.3, "linestyle": "--"} if faded else {"label": LABELS.get(method, method)}
    )
    axis.errorbar(
        x, y, yerr=error, color=colour(method), marker=".", capsize=2, linewidth=1.3, **style
    )
