"""The data that a command is about: a built-in set, a file, a folder of images, or a Python
callable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from subprune.cli.arrays import IMAGES, read_arrays, read_image
from subprune.cli.console import say
from subprune.cli.models import call, find_callable
from subprune.data.batches import model_dtype
from subprune.data.samples import LABEL_KEYS
from subprune.data.sources import draw
from subprune.errors import DataError, OptionError, closest
from subprune.program.record import record
from subprune.zoo.datasets import (
    Images,
    calibration_batches,
    dataset_names,
    split_verification,
)
from subprune.zoo.datasets import load as load_dataset

__all__ = ["DataChoice", "load_data", "load_verification"]

_MOST_FILES = 100_000
_COLOURS = (1, 3, 4)  # channels of images
_VERIFICATION = 10_000  # images that budgets are measured on, as in the paper


@dataclass(frozen=True)
class DataChoice:
    """The options that say where inputs come from and how they are prepared."""

    spec: str
    n_samples: int | None = 512  # None: all
    seed: int = 0
    folder: Path | None = None  # of the built-in data sets
    resize: int | None = None
    mean: str = ""
    std: str = ""
    option: str = "--data"  # that named it, for messages
    model: nn.Module | None = None  # whose outputs labels have to fit
    remark: Callable[[str], object] = say  # what is done with remarks

    def __post_init__(self) -> None:
        if self.n_samples is not None and self.n_samples < 1:
            raise OptionError(f"--n-samples must be at least 1, got {self.n_samples}")
        if abs(self.seed) >= 2**63:
            raise OptionError(f"--seed must fit into 64 bits, got {self.seed}")
        if self.resize is not None and not 1 <= self.resize <= 8192:
            raise OptionError(
                f"--resize must be a number of pixels from 1 to 8192, got {self.resize}"
            )


def load_data(choice: DataChoice) -> Any:
    """Something `prune` takes, with labels where the source has them."""
    spec, path, option = choice.spec, Path(choice.spec), choice.option
    if spec in dataset_names():
        _refuse_preparation(choice, "which comes prepared")
        images = load_dataset(spec, "train", choice.folder)
        return calibration_batches(
            images, min(choice.n_samples or len(images), len(images)), choice.seed
        )
    if path.suffix in (".npy", ".npz", ".safetensors") and not path.is_dir():
        if not path.is_file():
            raise DataError(
                f"{option} {spec!r} is not a file; check the path, it starts at {str(Path.cwd())!r}"
            )
        return _from_arrays(path, choice)
    if path.is_dir():
        return _from_folder(path, choice)
    if ":" in spec:
        _refuse_preparation(choice, "which has to do that itself")
        return call(find_callable(spec, option), spec, option)
    raise OptionError(
        f"{option} {spec!r}: {closest(spec, dataset_names())}give {', '.join(dataset_names())}, a "
        ".npy, .npz or .safetensors file, a folder of images, or package.module:callable"
    )


def _refuse_preparation(choice: DataChoice, why: str) -> None:
    """Options that would be ignored silently are refused; with other data than --data they may be
    meant for that.
    """
    flags = [f"--{name}" for name in ("resize", "mean", "std") if getattr(choice, name)]
    if flags and choice.option == "--data":
        raise OptionError(
            f"{' and '.join(flags)} cannot be applied to --data {choice.spec}, {why}; omit it"
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


def _from_arrays(path: Path, choice: DataChoice) -> Any:
    """One array is the input; several are keyword arguments of the model; labels are known by their
    name.
    """
    arrays = read_arrays(path, choice.n_samples, choice.seed)
    labels = next((arrays.pop(n) for n in LABEL_KEYS if n in arrays and len(arrays) > 1), None)
    sizes = {x.shape[0] if x.ndim else 0 for x in arrays.values()}
    if len(sizes) != 1 or sizes == {0}:
        shapes = {n: tuple(x.shape) for n, x in arrays.items()}
        raise DataError(
            f"{path} holds arrays of different or no length: {shapes}; each needs one row per input"
        )
    if labels is not None and (labels.ndim < 1 or {labels.shape[0]} != sizes):
        raise DataError(f"{path} has {tuple(labels.shape)} labels for {sizes.pop()} inputs")
    if len(arrays) > 1:
        _refuse_preparation(choice, f"whose arrays {', '.join(arrays)} are handed on as they are")
        item = {n: _numbers(x) for n, x in arrays.items()}
        return [item if labels is None else {**item, "labels": _targets(labels)}]
    inputs = _prepared(_resized(_numbers(next(iter(arrays.values()))), choice), choice)
    return inputs if labels is None else (inputs, _targets(labels))


def _targets(labels: Tensor) -> Tensor:
    """Class numbers as int64, also if saved as fractions; other fractions are numbers to be met."""
    whole = labels.ndim == 1 and bool((labels == labels.round()).all())
    return labels.long() if whole or not labels.is_floating_point() else labels.float()


def _numbers(x: Tensor) -> Tensor:
    """Pixels (bytes) as 0 … 1, other whole numbers as int64, fractions as float32."""
    if x.dtype == torch.uint8 and x.ndim >= 3:
        return x.float() / 255
    if x.dtype == torch.bool:
        return x
    return x.float() if x.is_floating_point() else x.long()


def _from_folder(path: Path, choice: DataChoice) -> Any:
    """Images below a folder, drawn by seed; where all lie in subfolders, the sorted names of these
    are the classes.
    """
    files = [
        file
        for file in sorted(path.rglob("*"))
        if file.suffix.lower() in IMAGES and file.is_file() and not file.name.startswith(".")
    ]
    if not files:
        raise DataError(
            f"{choice.option} {path} is a folder without images; allowed are {', '.join(IMAGES)}"
        )
    rows = draw(len(files), min(choice.n_samples or _MOST_FILES, _MOST_FILES), choice.seed)
    taken = files if rows is None else [files[i] for i in rows]
    inputs = _prepared(_images(path, taken, choice), choice)
    names = [
        file.relative_to(path).parts[0] for file in files if len(file.relative_to(path).parts) > 1
    ]
    classes = sorted(set(names))
    if len(names) < len(files) or len(classes) < 2:
        return inputs
    if choice.model is not None and (outputs := _output_count(choice.model, inputs)) != len(
        classes
    ):
        choice.remark(
            f"the {len(classes)} folders in {path} are not used as labels, since the model has "
            f"{outputs or 'no'} outputs for each image"
        )
        return inputs
    return inputs, torch.tensor([classes.index(file.relative_to(path).parts[0]) for file in taken])


def _output_count(model: nn.Module, inputs: Tensor) -> int | None:
    """Outputs for one input, if they are a plain vector."""
    try:
        program = record(model, ((inputs[:1].to(model_dtype(model)),), {}))
    except Exception:  # which is said when the data is used
        return None
    shape = program.values[program.outputs[0]].shape if program.outputs else ()
    return shape[1] if len(shape) == 2 else None


def _images(path: Path, files: Sequence[Path], choice: DataChoice) -> Tensor:
    """[images, channels, height, width]"""
    images: list[Tensor] = []
    shapes: dict[tuple[int, ...], str] = {}
    for file in files:
        images.append(_resized(read_image(file)[None], choice)[0])
        shapes.setdefault(tuple(images[-1].shape), file.name)
    if len(shapes) > 1:
        sizes = ", ".join(
            f"{name} is {'×'.join(map(str, shape))}" for shape, name in list(shapes.items())[:3]
        )
        raise DataError(
            f"the images in {path} differ in size or colour: {sizes}; give "
            "--resize, or images alike"
        )
    return torch.stack(images)


def _resized(x: Tensor, choice: DataChoice) -> Tensor:
    """Images [N, channels, height, width] brought to the size asked for."""
    if choice.resize is None:
        return x
    if not x.is_floating_point() or x.ndim != 4:
        raise OptionError(
            f"--resize is for images [number, channels, height, width]; {choice.option} "
            f"{choice.spec} is {x.dtype} of shape {tuple(x.shape)}"
        )
    if x.shape[3] in _COLOURS and x.shape[1] not in _COLOURS:
        raise OptionError(
            f"--resize: {choice.option} {choice.spec} of shape {tuple(x.shape)} seems to have "
            "channels last; save it as [number, channels, height, width], with "
            "array.transpose(0, 3, 1, 2)"
        )
    return F.interpolate(x, (choice.resize,) * 2, mode="bilinear", antialias=True)


def _prepared(x: Tensor, choice: DataChoice) -> Tensor:
    """(x − mean) / std for each channel, where asked for."""
    if not choice.mean and not choice.std:
        return x
    channels = x.shape[1] if x.ndim == 4 else 1
    mean = _per_channel("--mean", choice.mean or "0", channels)
    std = _per_channel("--std", choice.std or "1", channels)
    if not x.is_floating_point() or x.ndim != 4:
        raise OptionError(
            f"--mean and --std are for images; the data is {x.dtype} of shape {tuple(x.shape)}"
        )
    if bool((std <= 0).any()):
        raise OptionError(f"--std must be positive, got {choice.std!r}")
    return (x - mean.view(-1, 1, 1)) / std.view(-1, 1, 1)


def _per_channel(option: str, text: str, channels: int) -> Tensor:
    try:
        values = [float(t) for t in text.split(",")]
    except ValueError as error:
        raise OptionError(f"{option} must be numbers with commas between, got {text!r}") from error
    if len(values) not in (1, channels):
        raise OptionError(
            f"{option} has {len(values)} numbers for {channels} channels; give 1 or {channels}"
        )
    return torch.tensor(values)
