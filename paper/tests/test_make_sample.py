"""The shipped sample is the official files' images, drawn as its script says."""

from __future__ import annotations

import torch

from subprune.zoo.datasets import load
from subprune_paper.make_sample import draw
from tests.shared import SHARED, needs_shared


@needs_shared
def test_the_sample_equals_the_official_files() -> None:
    official = {split: load("mnist", split, SHARED / "data") for split in ("train", "test")}
    train, test = load("mnist-sample", "train"), load("mnist-sample", "test")
    chosen = official["train"].subset(draw(len(official["train"])))
    for ours, theirs in ((train, chosen), (test, official["test"])):
        assert torch.equal(ours.images, theirs.images)
        assert torch.equal(ours.labels, theirs.labels)
