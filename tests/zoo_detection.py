"""Parts of one-stage detectors, a few channels wide: split and joined maps, pyramids, heads."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from zoo_convolution import conv_bn

BINS = 4


def block(c_in: int, c_out: int, k: int = 1, *, groups: int = 1) -> nn.Sequential:
    return conv_bn(c_in, c_out, k, groups=groups, act=nn.SiLU)


class Inner(nn.Module):
    """Two convolutions, around which the input may go."""

    def __init__(self, c: int, inner: int, shortcut: bool) -> None:
        super().__init__()
        self.cv1, self.cv2, self.shortcut = block(c, inner, 3), block(inner, c, 3), shortcut

    def forward(self, x: Tensor) -> Tensor:
        y = self.cv2(self.cv1(x))
        return x + y if self.shortcut else y


class C2f(nn.Module):
    """Chunked in two; all steps of the second half are joined (YOLOv8)."""

    def __init__(self, c_in: int, c_out: int, steps: list[nn.Module]) -> None:
        super().__init__()
        half = c_out // 2
        self.cv1, self.cv2 = block(c_in, 2 * half), block((2 + len(steps)) * half, c_out)
        self.m = nn.ModuleList(steps)

    def forward(self, x: Tensor) -> Tensor:
        y = list(self.cv1(x).chunk(2, 1))
        y.extend(m(y[-1]) for m in self.m)
        return self.cv2(torch.cat(y, 1))


class C3(nn.Module):
    """Two 1×1 side by side, one of them followed by blocks (C3k of YOLO11 and YOLO26)."""

    def __init__(self, c: int, inner: int) -> None:
        super().__init__()
        self.cv1, self.cv2, self.cv3 = block(c, inner), block(c, inner), block(2 * inner, c)
        self.m = nn.Sequential(Inner(inner, inner, True), Inner(inner, inner, True))

    def forward(self, x: Tensor) -> Tensor:
        return self.cv3(torch.cat((self.m(self.cv1(x)), self.cv2(x)), 1))


class SPPF(nn.Module):
    """Maxima of maxima, joined with what they are of; YOLO26 adds the input."""

    def __init__(self, c: int, add: bool = False) -> None:
        super().__init__()
        self.cv1, self.cv2, self.add = block(c, c // 2), block(4 * (c // 2), c), add

    def forward(self, x: Tensor) -> Tensor:
        y = [self.cv1(x)]
        y.extend(F.max_pool2d(y[-1], 5, 1, 2) for _ in range(3))
        out = self.cv2(torch.cat(y, 1))
        return out + x if self.add else out


class MapAttention(nn.Module):
    """Attention over places; values also go through a depthwise convolution.

    fixed: heads are put together to as many channels as came in, as YOLO26 has it, so that neither
    can be cut without the other.
    """

    def __init__(self, c: int, heads: int, fixed: bool = False) -> None:
        super().__init__()
        self.fixed = fixed
        self.heads, self.size = heads, c // heads
        self.key = self.size // 2
        self.qkv = conv_bn(c, c + 2 * heads * self.key, 1, act=nn.Identity)
        self.proj = conv_bn(c, c, 1, act=nn.Identity)
        self.pe = conv_bn(c, c, 3, groups=c, act=nn.Identity)

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        c = c if self.fixed else -1
        qkv = self.qkv(x).view(b, self.heads, 2 * self.key + self.size, h * w)
        q, k, v = qkv.split([self.key, self.key, self.size], dim=2)
        weights = (q.transpose(-2, -1) @ k * self.key**-0.5).softmax(-1)
        mixed = (v @ weights.transpose(-2, -1)).reshape(b, c, h, w)
        return self.proj(mixed + self.pe(v.reshape(b, c, h, w)))


class AttentionStage(nn.Module):
    """C2PSA: half of the channels go through attention and two 1×1, each around a shortcut."""

    def __init__(self, c: int, fixed: bool = False) -> None:
        super().__init__()
        half = c // 2
        self.c, self.cv1, self.cv2 = half, block(c, 2 * half), block(2 * half, c)
        self.attn = MapAttention(half, 2, fixed)
        self.ffn = nn.Sequential(block(half, 2 * half), conv_bn(2 * half, half, 1, act=nn.Identity))

    def forward(self, x: Tensor) -> Tensor:
        both = self.cv1(x)
        a, b = both.split((self.c, self.c), 1) if self.attn.fixed else both.chunk(2, 1)
        b = b + self.attn(b)
        b = b + self.ffn(b)
        return self.cv2(torch.cat((a, b), 1))


class Head(nn.Module):
    """Distances as distributions over bins, and scores, of maps of two sizes."""

    def __init__(self, widths: tuple[int, ...], classes: int, light: bool = False) -> None:
        super().__init__()
        self.cv2 = nn.ModuleList(
            nn.Sequential(block(c, 6, 3), block(6, 6, 3), nn.Conv2d(6, 4 * BINS, 1)) for c in widths
        )
        self.cv3 = nn.ModuleList(self._scores(c, classes, light) for c in widths)
        self.register_buffer("bins", torch.arange(BINS).float())

    @staticmethod
    def _scores(c: int, classes: int, light: bool) -> nn.Sequential:
        first = [block(c, c, 3, groups=c), block(c, 6)] if light else [block(c, 6, 3)]
        return nn.Sequential(*first, block(6, 6, 3), nn.Conv2d(6, classes, 1))

    def forward(self, maps: list[Tensor]) -> Tensor:
        joined = [
            torch.cat((b(x), s(x)), 1).flatten(2)
            for x, b, s in zip(maps, self.cv2, self.cv3, strict=True)
        ]
        every = torch.cat(joined, 2)
        box, scores = every.split((4 * BINS, every.shape[1] - 4 * BINS), 1)
        n, _, places = box.shape
        spread = box.view(n, 4, BINS, places).transpose(2, 1).softmax(1)
        sides = F.conv2d(spread, self.bins.view(1, BINS, 1, 1)).view(n, 4, places)
        return torch.cat((sides, scores.sigmoid()), 1)


class Detector(nn.Module):
    """Backbone, a pyramid of two levels and a head; `later`: with the parts of YOLO26."""

    def __init__(self, later: bool = False) -> None:
        super().__init__()
        self.stem = nn.Sequential(block(3, 6, 3), nn.MaxPool2d(2))
        self.fine = C2f(6, 8, [C3(4, 4)] if later else [Inner(4, 4, True), Inner(4, 4, True)])
        deep: list[nn.Module] = [nn.MaxPool2d(2), block(8, 8, 3), SPPF(8, add=later)]
        self.coarse = nn.Sequential(*deep, *([AttentionStage(8)] if later else []))
        self.join = C2f(16, 8, [Inner(4, 6, False)])
        self.down = nn.Sequential(nn.MaxPool2d(2), block(8, 6, 3))
        self.last = C2f(14, 8, [Inner(4, 4, False)])
        self.head = Head((8, 8), 3, light=later)
        # Large enough that the first layers still count at the end of so many.
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, nonlinearity="selu")
                m.weight.data.mul_(2)

    def forward(self, x: Tensor) -> Tensor:
        fine = self.fine(self.stem(x))
        coarse = self.coarse(fine)
        up = F.interpolate(coarse, scale_factor=2.0, mode="nearest")
        first = self.join(torch.cat((up, fine), 1))
        return self.head([first, self.last(torch.cat((self.down(first), coarse), 1))])
