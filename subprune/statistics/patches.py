"""The only unfold: the input of a 1-, 2- or 3-dimensional convolution as rows of patches.

Columns are ordered channel first, then kernel position, so that a convolution is ``patches(x) @
weight.reshape(outputs, -1).T``. One implementation for all dimensions: pad, then look at the padded
tensor through windows (``as_strided``, no copy), and copy the windows out in bounded chunks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from subprune.errors import OptionError
from subprune.statistics.sums import MAX_BYTES

__all__ = ["Convolution", "conv_rows", "patches", "random_rows"]

_MODES = {
    "zeros": "constant",
    "reflect": "reflect",
    "replicate": "replicate",
    "circular": "circular",
}


@dataclass(frozen=True, kw_only=True)
class Convolution:
    """The parameters of a convolution, one number per spatial dimension."""

    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]  # (before, after) in every spatial dimension
    padding_mode: str = "zeros"
    groups: int = 1
    # of a transposed convolution: the distance at which its inputs are laid out; empty: 1
    spread: tuple[int, ...] = ()

    @classmethod
    def make(
        cls,
        kernel_size: Sequence[int],
        stride: int | Sequence[int] = 1,
        padding: int | str | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        padding_mode: str = "zeros",
        groups: int = 1,
    ) -> Convolution:
        """Build from arguments as torch spells them: ints, tuples, or 'same' / 'valid' padding."""
        kernel = tuple(kernel_size)
        if padding_mode not in _MODES:
            raise OptionError(f"padding_mode {padding_mode!r} is not one of {', '.join(_MODES)}")
        wide = _each(dilation, len(kernel))
        if padding == "same":  # torch puts the odd one after
            total = [d * (k - 1) for d, k in zip(wide, kernel, strict=True)]
            pads = tuple((t // 2, t - t // 2) for t in total)
        elif padding == "valid":
            pads = ((0, 0),) * len(kernel)
        elif isinstance(padding, str):
            raise OptionError(f"padding {padding!r} is not 'same', 'valid' or a number")
        else:
            pads = tuple((p, p) for p in _each(padding, len(kernel)))
        return cls(
            kernel_size=kernel,
            stride=_each(stride, len(kernel)),
            dilation=wide,
            padding=pads,
            padding_mode=padding_mode,
            groups=groups,
        )

    @classmethod
    def transposed(
        cls,
        kernel_size: Sequence[int],
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0,
        output_padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
    ) -> Convolution:
        """A transposed convolution as an ordinary one, by the kernel turned round.

        Output p of a transposed convolution is
        ``Σ_u w[u] · x[(p + padding − dilation·u) / stride]``
        over the taps u for which that position exists. Laid out `stride` apart, with zeros between,
        the inputs are x̃ with x̃[stride · i] = x[i]; counted from the other end, tap v = k − 1 − u
        reads ``x̃[p − before + dilation·v]`` with ``before = dilation·(k − 1) − padding``: a
        convolution of stride 1. Padding may be negative, which crops.
        """
        kernel = tuple(kernel_size)
        n = len(kernel)
        wide = _each(dilation, n)
        before = [d * (k - 1) - p for d, k, p in zip(wide, kernel, _each(padding, n), strict=True)]
        more = _each(output_padding, n)
        pads = tuple((b, b + extra) for b, extra in zip(before, more, strict=True))
        return cls(
            kernel_size=kernel,
            stride=(1,) * n,
            dilation=wide,
            padding=pads,
            padding_mode="zeros",
            groups=groups,
            spread=_each(stride, n),
        )

    @classmethod
    def of(cls, module: nn.Conv1d | nn.Conv2d | nn.Conv3d) -> Convolution:
        """The parameters of a convolution layer."""
        return cls.make(
            module.kernel_size,
            module.stride,
            module.padding,
            module.dilation,
            module.padding_mode,
            module.groups,
        )

    @property
    def taps(self) -> int:
        """Kernel positions, that is columns per channel."""
        return math.prod(self.kernel_size)

    @property
    def growth(self) -> int:
        """How many times larger an input becomes when it is laid out."""
        return math.prod(self.spread)

    def laid_out(self, spatial: Sequence[int]) -> tuple[int, ...]:
        """The lengths of an input once it is laid out."""
        if self.growth == 1 or len(spatial) != len(self.spread):
            return tuple(spatial)
        return tuple((n - 1) * s + 1 for n, s in zip(spatial, self.spread, strict=True))

    def lay_out(self, x: Tensor) -> Tensor:
        """x [N, C, *spatial] with its positions `spread` apart and zeros between them."""
        if self.growth == 1:
            return x
        wide = x.new_zeros(*x.shape[:2], *self.laid_out(x.shape[2:]))
        places = (slice(None), slice(None), *(slice(None, None, s) for s in self.spread))
        wide[places] = x
        return wide

    def pad(self, x: Tensor) -> Tensor:
        """x [N, C, *spatial] with the padding put around it."""
        if not any(map(any, self.padding)):
            return x
        flat = [p for pair in reversed(self.padding) for p in pair]
        return F.pad(x, flat, mode=_MODES[self.padding_mode])

    def windows(self, x: Tensor) -> Tensor:
        """View of x [N, C, *spatial], padded, as [N, *out spatial, C, *kernel]."""
        n = len(self.kernel_size)
        if x.ndim != n + 2:
            raise OptionError(
                f"a {n}-dimensional convolution needs [N, C, *spatial], got {tuple(x.shape)}"
            )
        x = self.pad(self.lay_out(x))
        steps = x.stride()[2:]
        zipped = zip(x.shape[2:], self.kernel_size, self.stride, self.dilation, strict=True)
        out = [(size - d * (k - 1) - 1) // s + 1 for size, k, s, d in zipped]
        if min(out) < 1:
            raise OptionError(
                f"the kernel {self.kernel_size} does not fit the input {tuple(x.shape)}"
            )
        # The same memory with more dimensions: the next output is `stride` positions further on, the
        # next tap `dilation`.
        moves = [a * s for a, s in zip(steps, self.stride, strict=True)]
        reach = [a * d for a, d in zip(steps, self.dilation, strict=True)]
        size = (x.shape[0], *out, x.shape[1], *self.kernel_size)
        return x.as_strided(size, (x.stride(0), *moves, x.stride(1), *reach), x.storage_offset())


def _each(value: int | Sequence[int], n: int) -> tuple[int, ...]:
    """A number, or one number per dimension, as one number per dimension."""
    values = (value,) * n if isinstance(value, int) else tuple(value)
    if len(values) == 1:
        values = values * n
    if len(values) != n:
        raise OptionError(f"{values} must have one number for each of the {n} dimensions")
    return values


def patches(
    x: Tensor,
    kernel_size: Sequence[int],
    stride: int | Sequence[int] = 1,
    padding: int | str | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    padding_mode: str = "zeros",
) -> Tensor:
    """x [N, C, *spatial] → rows [N·P, C·taps] for P output positions, all at once."""
    conv = Convolution.make(kernel_size, stride, padding, dilation, padding_mode)
    return conv.windows(x).reshape(-1, x.shape[1] * conv.taps)


def conv_rows(
    x: Tensor, conv: Convolution, max_bytes: int = MAX_BYTES
) -> Iterator[tuple[Tensor, slice, slice]]:
    """The rows of x [N, C, *spatial] in chunks of at most ``max_bytes`` (or one line of one image).

    Yields ``(rows, images, lines)``: rows [images · lines · rest, C·taps] belong to the outputs
    ``y[images, :, lines]``, where a line is one index of the first output spatial dimension.
    """
    columns = x.shape[1] * conv.taps
    image = x[:1].numel() * x.element_size() * conv.growth
    step = max(1, max_bytes // max(1, image))  # images padded at a time
    for first in range(0, x.shape[0], step):
        view = conv.windows(x[first : first + step])
        n, lines = view.shape[:2]
        line_bytes = view[0, 0].numel() * x.element_size()
        per_image = min(lines, max(1, max_bytes // max(1, line_bytes)))
        together = max(1, max_bytes // max(1, line_bytes * lines))
        for i in range(0, n, together):
            for j in range(0, lines, per_image):
                part = view[i : i + together, j : j + per_image]
                images = slice(first + i, first + i + part.shape[0])
                yield part.reshape(-1, columns), images, slice(j, j + part.shape[1])


def random_rows(
    x: Tensor,
    y: Tensor | None,
    conv: Convolution,
    generator: torch.Generator,
    counted: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """As many random patches of each image as the kernel has positions, all if there are fewer.

    x [N, C, *spatial] → rows [N·taps, C·taps], and the outputs y [N, O, *out] at the same places
    [N·taps, O]. counted [N, 1, *out] bool: the patches that may be taken; None: all.
    """
    view = conv.windows(x)  # [N, *out, C, *kernel]
    n, *out = view.shape[: 1 + len(conv.kernel_size)]
    places = math.prod(out)
    keys = torch.rand(n, places, generator=generator, device=generator.device)
    if counted is not None:
        keys = keys + ~counted.reshape(n, places).to(keys.device)  # the others come last
    chosen = keys.argsort(1)[:, : conv.taps].sort(1).values.to(x.device)  # [N, taps]
    images = torch.arange(n, device=x.device)[:, None].expand_as(chosen)
    index = tuple(i.reshape(-1) for i in (images, *torch.unravel_index(chosen, out)))
    if counted is not None:
        valid = counted[:, 0].to(x.device)[index]
        index = tuple(i[valid] for i in index)
    rows = view[index].reshape(-1, x.shape[1] * conv.taps)
    return rows, None if y is None else y.movedim(1, -1)[index]
