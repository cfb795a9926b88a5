"""Images brought to the size and range that a model expects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from subprune.data.batches import model_dtype
from subprune.errors import DataError, OptionError
from subprune.messages import Message
from subprune.program.record import record

__all__ = ["Pixels", "Prepare", "output_count"]

Prepare = Callable[[Tensor], Tensor]
"""From an image [channels, height, width], from 0 to 1, to the model's input."""

_COLOURS = (1, 3, 4)  # channels of images


@dataclass(frozen=True)
class Pixels:
    """How images are prepared: as the caller says, or as the model's own library does it."""

    resize: int | None = None
    mean: str | float | Sequence[float] | None = None
    std: str | float | Sequence[float] | None = None
    prepare: Prepare | None = None  # used where nothing else is said

    def __post_init__(self) -> None:
        if self.resize is not None and not 1 <= self.resize <= 8192:
            words = "{resize:name} must be a number of pixels from 1 to 8192, got {got}"
            raise OptionError(Message(words, got=self.resize))

    @property
    def given(self) -> list[str]:
        """The options that were given."""
        every = {"resize": self.resize, "mean": self.mean, "std": self.std}
        return [name for name, value in every.items() if value is not None]

    def of_images(self, images: Iterable[tuple[str, Tensor]], place: str) -> Tensor:
        """[images, channels, height, width] of named images, which must come out alike."""
        prepare = self.prepare if not self.given else None
        taken: list[Tensor] = []
        shapes: dict[tuple[int, ...], str] = {}
        for name, image in images:
            shown = self._resized(image[None], place)[0] if prepare is None else prepare(image)
            taken.append(shown)
            shapes.setdefault(tuple(shown.shape), name)
        if len(shapes) > 1:
            sizes = ", ".join(
                f"{name} is {'×'.join(map(str, shape))}" for shape, name in list(shapes.items())[:3]
            )
            words = (
                "the images in {place} differ in size or colour: {sizes}; give images alike, or "
                "{resize=}"
            )
            raise DataError(Message(words, place=place, sizes=sizes))
        stacked = torch.stack(taken)
        return stacked if prepare is not None else self._scaled(stacked)

    def of_array(self, x: Tensor, place: str) -> Tensor:
        """An array, which may hold images."""
        return self._scaled(self._resized(x, place))

    def _resized(self, x: Tensor, place: str) -> Tensor:
        """Images [N, channels, height, width] brought to the size asked for."""
        if self.resize is None:
            return x
        shape = tuple(x.shape)
        if not x.is_floating_point() or x.ndim != 4:
            words = (
                "{resize:name} is for images [number, channels, height, width]; {place} is {dtype} "
                "of shape {shape}: omit it"
            )
            dtype = str(x.dtype).removeprefix("torch.")
            raise OptionError(Message(words, place=place, dtype=dtype, shape=shape))
        if x.shape[3] in _COLOURS and x.shape[1] not in _COLOURS:
            words = (
                "{resize:name}: {place} of shape {shape} seems to have channels last; save it as "
                "[number, channels, height, width], with array.transpose(0, 3, 1, 2)"
            )
            raise OptionError(Message(words, place=place, shape=shape))
        return F.interpolate(x, (self.resize,) * 2, mode="bilinear", antialias=True)

    def _scaled(self, x: Tensor) -> Tensor:
        """(x − mean) / std for each channel, where asked for."""
        if self.mean is None and self.std is None:
            return x
        if not x.is_floating_point() or x.ndim != 4:
            words = (
                "{mean:name} and {std:name} are for images [number, channels, height, width]; the "
                "data is {dtype} of shape {shape}: omit them"
            )
            dtype = str(x.dtype).removeprefix("torch.")
            raise OptionError(Message(words, dtype=dtype, shape=tuple(x.shape)))
        channels = x.shape[1]
        mean = _per_channel("mean", 0.0 if self.mean is None else self.mean, channels)
        std = _per_channel("std", 1.0 if self.std is None else self.std, channels)
        if bool((std <= 0).any()):
            raise OptionError(Message("{std:name} must be positive, got {got!r}", got=self.std))
        return (x - mean.view(-1, 1, 1)) / std.view(-1, 1, 1)


def _per_channel(option: str, given: str | float | Sequence[float], channels: int) -> Tensor:
    try:
        parts = given.split(",") if isinstance(given, str) else given
        values = [float(parts)] if isinstance(parts, int | float) else [float(p) for p in parts]
    except (ValueError, TypeError) as error:
        words = f"{{{option}:name}} must be numbers with commas between, got {{got!r}}"
        raise OptionError(Message(words, got=given)) from error
    if len(values) not in (1, channels):
        words = (
            f"{{{option}:name}} has {{count}} numbers for {{n}}; give one for each, or one for all"
        )
        n = f"{channels} channel{'' if channels == 1 else 's'}"
        raise OptionError(Message(words, count=len(values), n=n))
    return torch.tensor(values)


def output_count(model: nn.Module, inputs: Tensor) -> int | None:
    """Outputs for one input, if they are a plain vector."""
    try:
        program = record(model, ((inputs[:1].to(model_dtype(model)),), {}))
    except Exception:  # which is said when the data is used
        return None
    shape = program.values[program.outputs[0]].shape if program.outputs else ()
    return shape[1] if len(shape) == 2 else None
