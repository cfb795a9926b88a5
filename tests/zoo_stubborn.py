"""Networks whose own code resists a cut: each works with other widths, or is refused by name,
within seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from zoo_attention import Block, Language, SlicedAttention
from zoo_convolution import conv_bn
from zoo_detection import AttentionStage


@dataclass(frozen=True)
class Stubborn:
    """A model, an example input, the groups that are found, and what the tried cut says of them."""

    make: Callable[[], nn.Module]
    example: Callable[[], Any]
    groups: tuple[str, ...]  # pruned by default, before they are tried
    refused: dict[str, str] = field(default_factory=dict)  # group → a word of the reason
    multiples: dict[str, int] = field(default_factory=dict)

    def build(self, seed: int = 0) -> tuple[nn.Module, Any]:
        torch.manual_seed(seed)
        return self.make().eval(), self.example()


class TwoSplits(nn.Module):
    """Both stages split their channels with the same two numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.d, self.r = 4, 12
        self.conv1, self.conv2 = nn.Conv2d(3, 16, 3), nn.Conv2d(16, 16, 3)
        self.hidden, self.fc = nn.Linear(16, 8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        a, b = torch.split(F.relu(self.conv1(x)), (self.d, self.r), 1)
        y = torch.cat([torch.tanh(a), b], 1)
        a, b = torch.split(F.relu(self.conv2(y)), (self.d, self.r), 1)
        y = torch.cat([torch.tanh(a), b], 1)
        return self.fc(F.relu(self.hidden(y.mean((2, 3)))))


class Multiple(nn.Module):
    """The code insists on a multiple of four channels; the last stage does not."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2, self.fc = (
            nn.Conv2d(3, 32, 3),
            nn.Conv2d(32, 12, 3),
            nn.Linear(12, 5),
        )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.conv1(x))
        assert y.shape[1] % 4 == 0, "channels must be a multiple of 4"
        return self.fc(F.relu(self.conv2(y)).mean((2, 3)))


class Sixes(nn.Module):
    """As `Multiple`, with a number that is not a power of two, and an assertion that says nothing."""

    def __init__(self, multiple: int) -> None:
        super().__init__()
        self.multiple = multiple
        self.conv1, self.conv2, self.fc = (
            nn.Conv2d(3, 24, 3),
            nn.Conv2d(24, 12, 3),
            nn.Linear(12, 5),
        )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.conv1(x))
        assert y.shape[1] % self.multiple == 0
        return self.fc(F.relu(self.conv2(y)).mean((2, 3)))


class Together(nn.Module):
    """Two widths that the code wants equal: either can be cut, both cannot (they are cut to
    different numbers).
    """

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(6, 16), nn.Linear(6, 16)
        self.a, self.b = nn.Linear(16, 4), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        left, right = F.relu(self.left(x)), F.relu(self.right(x))
        if left.shape[1] < 16 and right.shape[1] < 16:
            raise ValueError("one of the branches must have 16 units")
        return self.a(left) + self.b(right)


class Wide(nn.Module):
    """Runs with three quarters of the units, but not with half of them: known only once the widths
    are.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(6, 16), nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.fc1(x))
        if y.shape[1] < 10:
            raise ValueError("at least 10 features are needed")
        return self.fc3(F.relu(self.fc2(y)))


class HardCoded(nn.Module):
    """A width written into the code: the tensors can be cut, the code cannot."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)).view(-1, 8))))


class Parts(nn.Module):
    """Two layers hold one half each of what a third makes: units differ in where they sit."""

    def __init__(self) -> None:
        super().__init__()
        self.p, self.q, self.r = nn.Linear(4, 6), nn.Linear(4, 6), nn.Linear(4, 12)
        self.hidden, self.fc = nn.Linear(12, 7), nn.Linear(7, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(torch.cat([self.p(x), self.q(x)], 1) + self.r(x))
        return self.fc(F.relu(self.hidden(y)))


def sliced() -> nn.Module:
    """Heads in slices of one layer, at places from a configuration that no cut changes."""
    mlp = nn.Sequential(nn.Linear(12, 10), nn.ReLU(), nn.Linear(10, 12))
    return Language([Block(12, SlicedAttention(12, 6, 3), mlp)])


def image() -> Tensor:
    return torch.randn(8, 3, 8, 8)


def rows(n: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(8, n)


STUBBORN: dict[str, Stubborn] = {
    # Heads are put together to as many channels as came in.
    "map-attention": Stubborn(
        lambda: nn.Sequential(
            conv_bn(3, 8),
            AttentionStage(8, fixed=True),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8, 3),
        ),
        lambda: torch.randn(2, 3, 8, 8),
        ("0.0", "1.attn.qkv.0", "1.ffn.0.0", "1.cv2.0"),
        {"1.attn.qkv.0": "invalid"},
    ),
    "two-splits": Stubborn(
        TwoSplits,
        image,
        ("conv1", "conv2", "hidden"),
        {"conv1": "split_with_sizes", "conv2": "split_with_sizes"},
    ),
    "multiple": Stubborn(Multiple, image, ("conv1", "conv2"), {}, {"conv1": 4}),
    "threes": Stubborn(lambda: Sixes(3), image, ("conv1", "conv2"), {}, {"conv1": 3}),
    "sixes": Stubborn(lambda: Sixes(6), image, ("conv1", "conv2"), {}, {"conv1": 6}),
    "all-or-none": Stubborn(
        lambda: Sixes(24), image, ("conv1", "conv2"), {"conv1": "assert y.shape[1] %"}
    ),
    "together": Stubborn(Together, rows(6), ("left", "right"), {"right": "must have 16 units"}),
    "wide": Stubborn(Wide, rows(6), ("fc1", "fc2")),
    "hard-coded": Stubborn(HardCoded, rows(6), ("fc1", "fc2"), {"fc1": "shape"}),
    "sliced-heads": Stubborn(
        sliced,
        lambda: torch.randint(20, (8, 6)),
        ("blocks.0.mixer.qkv_proj", "blocks.0.mlp.0"),
        {"blocks.0.mixer.qkv_proj": "size of tensor"},
    ),
    "parts": Stubborn(Parts, rows(4), ("hidden",)),
}
