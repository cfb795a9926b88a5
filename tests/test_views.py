"""Further views of images as calibration data."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import subprune
from subprune.data.batch import Batch
from subprune.data.views import mirrored, moved, with_views
from subprune.errors import OptionError
from subprune.statistics.calibration import Calibration


def images(n: int = 24, size: int = 8) -> torch.Tensor:
    return torch.randn(n, 3, size, size, generator=torch.Generator().manual_seed(0))


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 12, 3), nn.ReLU(), nn.Conv2d(12, 8, 3), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(128, 4)).eval()


def test_views_stay_in_the_fold_of_their_image() -> None:
    batches = [Batch(((images(4),), {}), None, 4), Batch(((images(3),), {}), None, 3)]
    every, folds = with_views(batches, [1, 0], ["mirror", "crop"], 0)
    assert folds == [1, 0, 1, 0, 1, 0]
    assert [b.size for b in every] == [4, 3, 4, 3, 4, 3]
    assert torch.equal(every[2].inputs[0][0], images(4).flip(3))


def test_a_moved_image_is_a_part_of_the_padded_one() -> None:
    x = images(6, 16)
    y = moved(x, torch.Generator().manual_seed(1))
    padded = nn.functional.pad(x, (2, 2, 2, 2))
    for one, whole in zip(y, padded, strict=True):
        windows = [whole[:, r : r + 16, c : c + 16] for r in range(5) for c in range(5)]
        assert any(torch.equal(one, window) for window in windows)
    assert torch.equal(mirrored(mirrored(x)), x)


def test_mirror_images_count_as_if_they_had_been_given() -> None:
    model, x = network(), images()
    both = torch.cat([x, x.flip(3)])
    options = {"budgets": {"0": 5}, "progress": False, "time_calls": False, "folds": 1}
    once = subprune.prune(model, x, augment="mirror", **options)
    twice = subprune.prune(model, both, **options)
    assert once.plan.groups[0].order == twice.plan.groups[0].order
    y = images(5)
    torch.testing.assert_close(once.model(y), twice.model(y), rtol=1e-4, atol=1e-5)


def test_the_folds_and_the_report_know_of_them() -> None:
    calibration = Calibration.of(network(), [Batch(((images(),), {}), None, 24)], 4, ["mirror"])
    assert calibration.n_folds == 4
    assert sum(b.size for b in calibration.batches) == 48
    assert sum(b.size for b in calibration.given) == 24
    for fold in range(4):
        mine = [
            b.inputs[0][0]
            for b, number in zip(calibration.batches, calibration.folds, strict=True)
            if number == fold
        ]
        assert torch.equal(mine[0].flip(3), mine[1])
    result = subprune.prune(
        network(), images(), keep=0.5, augment=["mirror", "crop"], progress=False
    )
    assert result.plan.options["augment"] == ("mirror", "crop")
    assert "augment=['mirror', 'crop']" in result.report.command


def test_unknown_views_and_data_without_images_are_refused() -> None:
    with pytest.raises(OptionError, match=r"did you mean 'mirror'.*allowed are mirror, crop"):
        subprune.prune(network(), images(), keep=0.5, augment="mirrored")
    model = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 2))
    with pytest.raises(OptionError, match=r"augment=\['mirror'\] is for images"):
        subprune.prune(model, torch.randn(20, 6), keep=0.5, augment="mirror", progress=False)
