"""YOLOv8: backbone, pyramid and a head for three scales, with the names of public weights."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["BINS", "STRIDES", "YOLOv8", "from_tensors"]

STRIDES = (8, 16, 32)
CELLS = 4  # which an edge may be off for what a wrong score costs
BINS = 16  # a side's distance is a mean over so many whole ones


class Conv(nn.Module):
    """Convolution, BatchNorm, SiLU."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
        self.bn = nn.BatchNorm2d(outputs, eps=1e-3)

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(self.bn(self.conv(x)))


class Bottleneck(nn.Module):
    """Two 3×3, around which the input may go."""

    def __init__(self, width: int, shortcut: bool) -> None:
        super().__init__()
        self.cv1, self.cv2 = Conv(width, width, 3), Conv(width, width, 3)
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        y = self.cv2(self.cv1(x))
        return x + y if self.shortcut else y


class C2f(nn.Module):
    """One half passes through blocks, and both halves and all blocks' outputs are read together."""

    def __init__(self, inputs: int, outputs: int, blocks: int, shortcut: bool) -> None:
        super().__init__()
        half = outputs // 2
        self.cv1, self.cv2 = Conv(inputs, 2 * half), Conv((2 + blocks) * half, outputs)
        self.m = nn.ModuleList(Bottleneck(half, shortcut) for _ in range(blocks))

    def forward(self, x: Tensor) -> Tensor:
        parts = list(self.cv1(x).chunk(2, 1))
        for block in self.m:
            parts.append(block(parts[-1]))
        return self.cv2(torch.cat(parts, 1))


class SPPF(nn.Module):
    """The same maximum three times over, and all of them read together."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.cv1, self.cv2 = Conv(width, width // 2), Conv(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        parts = [self.cv1(x)]
        for _ in range(3):
            parts.append(F.max_pool2d(parts[-1], 5, 1, 2))
        return self.cv2(torch.cat(parts, 1))


class Detect(nn.Module):
    """For every place of three maps: four distances as distributions, and a score per class."""

    def __init__(self, widths: tuple[int, ...], classes: int) -> None:
        super().__init__()
        box, score = max(16, widths[0] // 4, 4 * BINS), max(widths[0], min(classes, 100))
        self.cv2 = nn.ModuleList(self._branch(w, box, 4 * BINS) for w in widths)
        self.cv3 = nn.ModuleList(self._branch(w, score, classes) for w in widths)

    @staticmethod
    def _branch(inputs: int, width: int, outputs: int) -> nn.Sequential:
        last = nn.Conv2d(width, outputs, 1)
        return nn.Sequential(Conv(inputs, width, 3), Conv(width, width, 3), last)

    def forward(self, maps: Sequence[Tensor], decode: bool) -> Tensor:
        """Three maps → [N, 4 + classes, places]: centre, width and height in pixels, scores; not
        decoded, distances in cells as far as the place is sure of itself, scores.
        """
        branches = zip(maps, self.cv2, self.cv3, STRIDES, strict=True)
        made = [(_distances(b(x)), c(x), stride) for x, b, c, stride in branches]
        work = self._decoded if decode else self._counting
        return torch.cat([work(*one) for one in made], 2)

    @staticmethod
    def _decoded(distances: Tensor, scores: Tensor, stride: int) -> Tensor:
        height, width = scores.shape[2:]
        left, top, right, bottom = distances.unbind(1)  # [n, places] each
        ys = torch.arange(height, dtype=scores.dtype, device=scores.device) + 0.5
        xs = torch.arange(width, dtype=scores.dtype, device=scores.device) + 0.5
        x, y = xs.repeat(height), ys.repeat_interleave(width)
        box = [x + (right - left) / 2, y + (bottom - top) / 2, left + right, top + bottom]
        return torch.cat([stride * torch.stack(box, 1), scores.flatten(2).sigmoid()], 1)

    @staticmethod
    def _counting(distances: Tensor, scores: Tensor, stride: int) -> Tensor:
        scores = scores.flatten(2).sigmoid()
        sure = scores.amax(1, keepdim=True).detach()
        return torch.cat([sure * distances / CELLS, scores], 1)


def _distances(sides: Tensor) -> Tensor:
    """[N, 4 · BINS, H, W] → [N, 4, H · W]: to the left, top, right and bottom, in cells."""
    n, _, height, width = sides.shape
    bins = torch.arange(BINS, dtype=sides.dtype, device=sides.device)
    spread = sides.reshape(n, 4, BINS, height * width).softmax(2)
    return (spread * bins[:, None]).sum(2)


class YOLOv8(nn.Module):
    """[N, 3, H, W] in 0 … 1, sides multiples of 32 → [N, 4 + classes, places].

    With `decode` off, the output is what a user of the boxes feels, in numbers of one size: scores,
    and distances as far as there is a score. Pixels beside scores from 0 to 1 would make errors of
    scores seem to be nothing, and what the head's maps say of the many empty places nobody asks.
    """

    decode = True

    def __init__(self, width: float = 0.25, depth: float = 0.33, classes: int = 80) -> None:
        super().__init__()
        w = [round(width * c) for c in (64, 128, 256, 512, 1024)]
        n = [max(1, round(depth * blocks)) for blocks in (3, 6)]
        self.model = nn.ModuleList(
            [
                Conv(3, w[0], 3, 2),
                Conv(w[0], w[1], 3, 2),
                C2f(w[1], w[1], n[0], True),
                Conv(w[1], w[2], 3, 2),
                C2f(w[2], w[2], n[1], True),
                Conv(w[2], w[3], 3, 2),
                C2f(w[3], w[3], n[1], True),
                Conv(w[3], w[4], 3, 2),
                C2f(w[4], w[4], n[0], True),
                SPPF(w[4]),
                nn.Identity(),
                nn.Identity(),
                C2f(w[4] + w[3], w[3], n[0], False),
                nn.Identity(),
                nn.Identity(),
                C2f(w[3] + w[2], w[2], n[0], False),
                Conv(w[2], w[2], 3, 2),
                nn.Identity(),
                C2f(w[3] + w[2], w[3], n[0], False),
                Conv(w[3], w[3], 3, 2),
                nn.Identity(),
                C2f(w[4] + w[3], w[4], n[0], False),
                Detect((w[2], w[3], w[4]), classes),
            ]
        )

    def forward(self, x: Tensor) -> Tensor:
        layer = self.model
        for i in range(4):
            x = layer[i](x)
        fine = layer[4](x)
        middle = layer[6](layer[5](fine))
        coarse = layer[9](layer[8](layer[7](middle)))
        joined = layer[12](torch.cat([_doubled(coarse), middle], 1))
        first = layer[15](torch.cat([_doubled(joined), fine], 1))
        second = layer[18](torch.cat([layer[16](first), joined], 1))
        third = layer[21](torch.cat([layer[19](second), coarse], 1))
        found: Tensor = layer[22]((first, second, third), self.decode)
        return found


def _doubled(x: Tensor) -> Tensor:
    return F.interpolate(x, scale_factor=2.0, mode="nearest")


def from_tensors(tensors: Mapping[str, Tensor]) -> YOLOv8:
    """The network that the tensors fit, n, s or m by the width of its first layer."""
    first = tensors.get("model.0.conv.weight")
    scale = {16: (0.25, 0.33), 32: (0.5, 0.33)}.get(0 if first is None else len(first))
    if scale is None:
        raise SystemExit("these are not the weights of YOLOv8n or YOLOv8s")
    classes = tensors["model.22.cv3.0.2.weight"].shape[0]
    model = YOLOv8(*scale, classes=classes)
    # Fixed numbers 0 … 15, which the network here does not keep as a layer.
    bins = tensors.get("model.22.dfl.conv.weight")
    if bins is None or not torch.equal(bins.flatten(), torch.arange(BINS).float()):
        raise SystemExit("the head's distances are not means over 0 … 15")
    state = {n: x for n, x in tensors.items() if n != "model.22.dfl.conv.weight"}
    model.load_state_dict(state)
    assert math.isclose(model.model[0].bn.eps, 1e-3)
    return model.eval()
