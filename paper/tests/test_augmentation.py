"""Crops that are right, of the images that would be drawn without them."""

from __future__ import annotations

import pytest
import torch

from subprune.zoo.datasets import Images, calibration_batches
from subprune_paper.augmentation import augment


def pixels(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.randint(256, shape, generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


@pytest.fixture
def images() -> Images:
    return Images(pixels((50, 3, 32, 32)), torch.arange(50) % 10, "cifar10", "train")


def test_augmented_calibration_draws_the_same_images(images: Images) -> None:
    (plain, labels), (changed, same) = (
        calibration_batches(images, 20, seed=3, augment=change)[0] for change in (None, augment)
    )
    assert torch.equal(labels, same)
    assert not torch.equal(plain, changed)


def test_random_changes_leave_the_global_generator_alone(images: Images) -> None:
    before = torch.get_rng_state()
    calibration_batches(images, 20, seed=3, augment=augment)
    assert torch.equal(before, torch.get_rng_state())


def test_augmented_images_are_flipped_crops_of_the_padded_original() -> None:
    originals = pixels((40, 2, 5, 7))
    changed = augment(originals, torch.Generator().manual_seed(1), padding=2)
    assert changed.dtype == torch.uint8
    assert changed.shape == originals.shape
    flips = set()
    for before, after in zip(originals, changed, strict=True):
        padded = torch.nn.functional.pad(before, (2, 2, 2, 2))
        crops = {
            (top, left, flip): crop.flip(2) if flip else crop
            for top in range(5)
            for left in range(5)
            for flip in (False, True)
            for crop in [padded[:, top : top + 5, left : left + 7]]
        }
        found = [key for key, crop in crops.items() if torch.equal(crop, after)]
        assert found
        flips.add(found[0][2])
    assert flips == {False, True}
