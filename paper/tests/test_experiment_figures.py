"""The paper's figures: every line that is drawn is named once, whichever panel it is in."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

pytest.importorskip("matplotlib")

from subprune_paper.config import parse_config
from subprune_paper.figures import figure
from subprune_paper.tables import Group, Point

CONFIG = parse_config(
    {
        "name": "few",
        "model": "lenet",
        "dataset": "mnist-sample",
        "methods": ["random"],
        "values": [1, 2],
    }
)
POINT = Point(value=2, runs=1, top1=50, std=0, speedup=2, seconds=1, budget_seconds=0, share=0.5)


def _legend(groups: Sequence[Group]) -> list[str]:
    drawn = figure(CONFIG, {group: [POINT] for group in groups}, 98, "keep", "none")
    (legend,) = drawn.legends
    return [text.get_text() for text in legend.get_texts()]


def test_the_legend_names_the_lines_of_both_panels_once_in_the_papers_order() -> None:
    groups: list[Group] = [
        ("random", True, "keep", "none"),
        ("asym-in-change", True, "keep", "none"),
        ("asym-in-change", False, "keep", "none"),
        ("weight-norm", False, "keep", "none"),
    ]
    assert _legend(groups) == ["AsymInChange", "WeightNorm", "Random"]


def test_the_legend_leaves_out_methods_of_another_setting() -> None:
    assert _legend(
        [("random", True, "keep", "none"), ("act-grad", True, "recalibrate", "none")]
    ) == ["Random"]
