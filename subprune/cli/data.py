"""The data that a command is about: a built-in set, something on disk, or a Python callable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from subprune.cli import arguments as a
from subprune.cli.console import say
from subprune.cli.hubs import Loaded
from subprune.cli.loading import call, find_callable
from subprune.errors import OptionError, closest
from subprune.reading.arrays import IMAGES
from subprune.reading.pixels import Pixels
from subprune.reading.reader import ARRAYS, KINDS, Reader, refuse_tensors
from subprune.reading.records import FILES
from subprune.reading.sentences import SUFFIXES
from subprune.zoo.datasets import (
    Images,
    calibration_batches,
    dataset_names,
    split_verification,
)
from subprune.zoo.datasets import load as load_dataset

__all__ = ["DataChoice", "load_data", "load_verification"]

_VERIFICATION = 10_000  # images that budgets are measured on, as in the paper


@dataclass(frozen=True)
class DataChoice:
    """The options that say where inputs come from and how they are prepared."""

    spec: str
    n_samples: int | None = 512  # None: all
    seed: int = 0
    preparation: a.Preparation = field(default_factory=a.Preparation)
    _: KW_ONLY
    option: str = "--data"  # that named it, for messages
    loaded: Loaded | None = None  # the model that labels and texts have to fit
    remark: Callable[[str], object] = say  # what is done with remarks

    def __post_init__(self) -> None:
        if self.n_samples is not None and self.n_samples < 1:
            raise OptionError(f"--n-samples must be at least 1, got {self.n_samples}")
        if abs(self.seed) >= 2**63:
            raise OptionError(f"--seed must fit into 64 bits, got {self.seed}")
        _ = self.reader  # refuses what is not a size

    @property
    def folder(self) -> Path | None:
        """Of the built-in data sets."""
        return self.preparation.data_dir

    @property
    def reader(self) -> Reader:
        """What reads files and folders in this way."""
        how, loaded = self.preparation, self.loaded
        folder = None if loaded is None else loaded.folder
        prepare = None if loaded is None else loaded.prepare
        return Reader(
            path=self.spec,
            model=None if loaded is None else loaded.model,
            n_samples=self.n_samples,
            seed=self.seed,
            pixels=Pixels(how.resize, how.mean or None, how.std or None, prepare),
            tokenizer=how.tokenizer or (folder if self._is_text else None),
            column=how.column,
            context=how.context,
            option=self.option,
            remark=self.remark,
        )

    def refuse_preparation(self, why: str) -> None:
        """Refuse flags that say how data is read, where it is not read from a file."""
        self.reader.refuse_pixels(why)
        # the model's own tokenizer was not asked for
        replace(self.reader, tokenizer=self.preparation.tokenizer).refuse_text(why)

    @property
    def _is_text(self) -> bool:
        return not (Path(self.spec).suffix in ARRAYS or Path(self.spec).suffix.lower() in IMAGES)


def load_data(choice: DataChoice) -> Any:
    """Something `prune` takes, with labels where the source has them."""
    spec, path, option = choice.spec, Path(choice.spec), choice.option
    if spec in dataset_names():
        choice.refuse_preparation("which comes prepared")
        images = load_dataset(spec, "train", choice.folder)
        return calibration_batches(
            images, min(choice.n_samples or len(images), len(images)), choice.seed
        )
    if path.is_dir() or (path.suffix in (*ARRAYS, *SUFFIXES, *FILES)):
        return choice.reader.read()
    if ":" in spec:
        choice.refuse_preparation("which has to do that itself")
        return call(find_callable(spec, option), spec, option)
    if path.suffix == ".py":
        raise OptionError(
            f"{option} {spec!r} is a Python file; name the function in it that gives the data, "
            f"{spec}:NAME"
        )
    refuse_tensors(option, spec)
    what = "cannot be read" if path.exists() else "is not a data set by name, a file or a folder"
    raise OptionError(
        f"{option} {spec!r} {what}: {closest(spec, dataset_names())}give {', '.join(dataset_names())}, a "
        f"{KINDS}, or package.module:callable"
    )


def load_verification(choice: DataChoice, spec: str, measured: bool) -> tuple[Any, str]:
    """All of the data that ``--verify-data`` names, and in words which images these are,
    empty for a user's own.

    Of a built-in set the test images; but where budgets are `measured` on them, which must not see
    test images, up to 10,000 training images that ``--data`` does not calibrate on.
    """
    if spec not in dataset_names():
        return load_data(replace(choice, spec=spec, n_samples=None, option="--verify-data")), ""
    images = load_dataset(spec, "train" if measured else "test", choice.folder)
    words = f"{spec}'s test images"
    if measured:
        images = _not_calibrated_on(images, choice)
        words = (
            f"{len(images):,} of {spec}'s training images, none calibrated on, that "
            "budgets were measured on"
        )
    return (images.inputs(), images.labels), words


def _not_calibrated_on(images: Images, choice: DataChoice) -> Images:
    """Random images without those that ``--data`` draws, known by their pixels: the sample is a
    part of MNIST.
    """
    used: set[bytes] = set()
    if choice.spec in dataset_names():
        source = load_dataset(choice.spec, "train", choice.folder)
        others = max(0, len(source) - (choice.n_samples or len(source)))
        drawn = split_verification(source, others, choice.seed).rest
        used = {x.numpy().tobytes() for x in source.images[drawn]}
    order = split_verification(images, len(images), choice.seed).verification.flip(0).tolist()
    free = [i for i in order if images.images[i].numpy().tobytes() not in used][:_VERIFICATION]
    if not free:
        raise OptionError(
            f"--n-samples {choice.n_samples} calibrates on all {len(images):,} training "
            f"images of --verify-data {images.name}, so none are left to measure budgets on; "
            "give fewer, or other data"
        )
    return images.subset(torch.tensor(free))
