"""Random small networks made of every supported operation, from a seed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from zoo import randomise
from zoo_attention import FusedAttention, GroupedQueryAttention
from zoo_convolution import SqueezeExcite, SqueezeExciteLinear

SIDE = 4


class Apply(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class LastNorm(nn.Module):
    """Layer norm over channels, moved last and back."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(c)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Residual(nn.Module):
    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        self.inside = inside

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inside(x)


class Concat(nn.Module):
    """Branches side by side; with none of its own, the input itself is one of them."""

    def __init__(self, branches: list[nn.Module]) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([b(x) for b in self.branches], 1)


class Gate(nn.Module):
    def __init__(self, c: int, inner: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(c, 2 * inner, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.conv(x).chunk(2, 1)
        return a * torch.sigmoid(b)


class PadShortcut(nn.Module):
    """Option A: zero channels are added to the shortcut."""

    def __init__(self, c: int, extra: int) -> None:
        super().__init__()
        self.conv, self.before, self.after = (
            nn.Conv2d(c, c + extra, 3, padding=1),
            extra // 2,
            extra - extra // 2,
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x) + F.pad(x, (0, 0, 0, 0, self.before, self.after))


class PixelAttention(nn.Module):
    """Pixels as tokens, several heads, back to an image."""

    def __init__(self, c: int, mixer: nn.Module) -> None:
        super().__init__()
        self.mixer = mixer

    def forward(self, x: Tensor) -> Tensor:
        y = self.mixer(x.flatten(2).transpose(1, 2))
        return y.transpose(1, 2).unflatten(2, x.shape[2:])


def channel_shuffle(x: Tensor) -> Tensor:
    n, c, h, w = x.shape
    return x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


class Generator:
    """Draws layers; `c` is the current number of channels, always a multiple of four."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.used: Counter[str] = Counter()
        self.c = 4

    def width(self) -> int:
        return self.rng.choice((4, 8))

    def conv(self) -> nn.Module:
        c, self.c = self.c, self.width()
        return nn.Conv2d(
            c, self.c, self.rng.choice((1, 3)), padding="same", bias=self.rng.random() < 0.5
        )

    def grouped(self) -> nn.Module:
        c, self.c = self.c, self.width()
        return nn.Conv2d(c, self.c, 3, padding=1, groups=2)

    def depthwise(self) -> nn.Module:
        c, times = self.c, self.rng.choice((1, 2)) if self.c < 16 else 1
        self.c = c * times
        return nn.Conv2d(c, self.c, 3, padding=1, groups=c)

    def batch_norm(self) -> nn.Module:
        return nn.BatchNorm2d(self.c, affine=self.rng.random() < 0.8)

    def group_norm(self) -> nn.Module:
        return nn.GroupNorm(self.rng.choice((1, 2, self.c)), self.c, affine=self.rng.random() < 0.8)

    def layer_norm(self) -> nn.Module:
        return LastNorm(self.c)

    def relu(self) -> nn.Module:
        return nn.ReLU(inplace=self.rng.random() < 0.5)

    def prelu(self) -> nn.Module:
        return nn.PReLU(self.rng.choice((1, self.c)))

    def hardswish(self) -> nn.Module:
        return nn.Hardswish()

    def pool(self) -> nn.Module:
        return self.rng.choice((nn.MaxPool2d(3, 1, 1), nn.AvgPool2d(3, 1, 1)))

    def upsample(self) -> nn.Module:
        mode = self.rng.choice(("nearest", "bilinear"))
        return nn.Sequential(nn.Upsample(scale_factor=2, mode=mode), nn.AvgPool2d(2))

    def residual(self) -> nn.Module:
        c = self.c
        first = self.conv()
        middle = self.rng.choice((nn.ReLU(), nn.BatchNorm2d(self.c), nn.Tanh()))
        last = nn.Conv2d(self.c, c, 3, padding=1)
        self.c = c
        return Residual(nn.Sequential(first, middle, last))

    def concat(self) -> nn.Module:
        c = self.c
        if c > 8:
            return self.conv()
        branches: list[nn.Module] = [nn.Conv2d(c, self.width(), 3, padding=1), nn.Identity()]
        if self.rng.random() < 0.5:
            branches[1] = nn.Sequential(nn.Conv2d(c, 4, 1), nn.ReLU())
        self.rng.shuffle(branches)
        joined = Concat(branches)
        self.c = joined(torch.zeros(1, c, SIDE, SIDE)).shape[1]
        return joined

    def chunk_gate(self) -> nn.Module:
        c, self.c = self.c, self.width()
        return Gate(c, self.c)

    def squeeze_excite(self) -> nn.Module:
        return self.rng.choice((SqueezeExcite, SqueezeExciteLinear))(self.c, 3)

    def pixel_shuffle(self) -> nn.Module:
        c, self.c = self.c, 4
        return nn.Sequential(nn.Conv2d(c, 16, 1), nn.PixelShuffle(2), nn.MaxPool2d(2))

    def channel_shuffle(self) -> nn.Module:
        return Apply(channel_shuffle) if self.rng.random() < 0.5 else nn.ChannelShuffle(2)

    def transposed(self) -> nn.Module:
        c, self.c = self.c, self.width()
        return nn.Sequential(nn.ConvTranspose2d(c, self.c, 2, stride=2), nn.MaxPool2d(2))

    def attention(self) -> nn.Module:
        kind = self.rng.randrange(4)
        if kind < 2:
            return PixelAttention(self.c, FusedAttention(self.c, 2, sdpa=bool(kind)))
        return PixelAttention(self.c, GroupedQueryAttention(self.c, 4, (1, 2)[kind - 2]))

    def pad_shortcut(self) -> nn.Module:
        c = self.c
        self.c = c + 4
        return PadShortcut(c, 4)

    def flatten_head(self) -> nn.Module:
        return nn.Sequential(
            nn.Flatten(), nn.Linear(self.c * SIDE * SIDE, 6), nn.ReLU(), nn.Linear(6, 3)
        )

    def mean_head(self) -> nn.Module:
        return nn.Sequential(Apply(lambda x: x.mean((2, 3))), nn.Linear(self.c, 3))

    LAYERS = (
        "conv",
        "grouped",
        "depthwise",
        "batch_norm",
        "group_norm",
        "layer_norm",
        "relu",
        "prelu",
        "hardswish",
        "pool",
        "upsample",
        "residual",
        "concat",
        "chunk_gate",
        "squeeze_excite",
        "pixel_shuffle",
        "channel_shuffle",
        "transposed",
        "attention",
        "pad_shortcut",
    )
    HEADS = ("flatten_head", "mean_head")

    def draw(self, kinds: tuple[str, ...]) -> nn.Module:
        kind = self.rng.choice(kinds)
        if self.c > 12 and kind in ("depthwise", "pad_shortcut"):
            kind = "conv"
        self.used[kind] += 1
        layer: nn.Module = getattr(self, kind)()
        return layer


def random_net(seed: int) -> tuple[nn.Module, Tensor, Counter[str]]:
    """A network in double precision, an input for it, and the kinds of operations it is made of."""
    torch.manual_seed(seed)
    generator = Generator(seed)
    layers: list[nn.Module] = [nn.Conv2d(3, 4, 3, padding=1)]
    layers += [generator.draw(Generator.LAYERS) for _ in range(generator.rng.randint(2, 5))]
    layers.append(generator.draw(Generator.HEADS))
    model = nn.Sequential(*layers)
    randomise(model)
    return model.double().eval(), torch.randn(2, 3, SIDE, SIDE, dtype=torch.float64), generator.used
