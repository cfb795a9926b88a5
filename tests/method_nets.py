"""Small networks for the comparison of methods, with the readers of every group written down by
hand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# module that reads the group, and the unit of each of its inputs (-1: none)
Readers = list[tuple[str, Tensor]]


@dataclass(frozen=True)
class Net:
    """A network in float64, its groups in forward order, and how many units each keeps in the
    tests.
    """

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    groups: dict[str, Readers]
    keep: dict[str, int]

    def build(self, seed: int = 0) -> nn.Module:
        torch.manual_seed(seed)
        model = self.make().double()
        with torch.no_grad():
            for m in model.modules():
                if isinstance(m, nn.BatchNorm2d | nn.LayerNorm):
                    m.weight.copy_(torch.rand_like(m.weight) + 0.5)
                    m.bias.copy_(torch.randn_like(m.bias) * 0.3)
                if isinstance(m, nn.BatchNorm2d):
                    m.running_mean.copy_(torch.randn_like(m.running_mean) * 0.3)
                    m.running_var.copy_(torch.rand_like(m.running_var) + 0.5)
        return model.eval()

    def data(self, batches: int = 1, size: int = 6, seed: int = 7) -> list[tuple[Tensor, Tensor]]:
        g = torch.Generator().manual_seed(seed)

        def one() -> tuple[Tensor, Tensor]:
            x = torch.randn(size, *self.shape, generator=g, dtype=torch.float64)
            return x, torch.randint(3, (size,), generator=g)

        return [one() for _ in range(batches)]


class Plain(nn.Module):
    """conv–BN–pool, conv–BN, flatten, linear, linear."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.conv2, self.bn2 = nn.Conv2d(4, 5, 3, stride=2), nn.BatchNorm2d(5)
        self.fc1, self.fc2 = nn.Linear(5 * 4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 2)
        x = F.relu(self.bn2(self.conv2(x)))
        return self.fc2(torch.tanh(self.fc1(x.flatten(1))))


class Fork(nn.Module):
    """Two layers read the same channels; one of them reads a gated copy that depends on the other."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 5, 3)
        self.gate = nn.Conv2d(5, 1, 1)
        self.body, self.head = nn.Conv2d(5, 4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv(x))
        x = x * torch.sigmoid(self.gate(x))
        return self.head(F.relu(self.body(x)).mean((2, 3)))


class Joined(nn.Module):
    """Two branches are concatenated: the layer that reads one group reads another one too."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Conv2d(2, 3, 3), nn.Conv2d(2, 4, 3)
        self.mix, self.head = nn.Conv2d(7, 4, 1), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([F.relu(self.left(x)), F.relu(self.right(x))], 1)
        return self.head(F.relu(self.mix(x)).mean((2, 3)))


class Grouped(nn.Module):
    """A grouped convolution reads and makes the channels: unit i is channel i of every block."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.wide = nn.Conv2d(2, 8, 3), nn.Conv2d(8, 6, 3, groups=2)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.wide(F.relu(self.conv(x)))).mean((2, 3)))


class Normed(nn.Module):
    """A norm sees all units of the group together."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.tanh(self.norm(self.up(x))))


class Heads(nn.Module):
    """Attention over three tokens; units are heads."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out, self.head = nn.Linear(8, 24), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).reshape(len(x), 3, 3, -1, 2).permute(2, 0, 3, 1, 4)
        mixed = torch.softmax(q @ k.transpose(-1, -2) * 0.7, -1) @ v
        return self.head(torch.tanh(self.out(mixed.transpose(1, 2).reshape(len(x), 3, -1)))).mean(1)


def _units(n: int, each: int = 1) -> Tensor:
    return torch.arange(n).repeat_interleave(each)


NETS: dict[str, Net] = {
    "plain": Net(
        Plain,
        (2, 10, 10),
        {
            "conv1": [("conv2", _units(4))],
            "conv2": [("fc1", _units(5, 4))],
            "fc1": [("fc2", _units(6))],
        },
        {"conv1": 2, "conv2": 3, "fc1": 4},
    ),
    "fork": Net(
        Fork,
        (2, 8, 8),
        {"conv": [("gate", _units(5)), ("body", _units(5))], "body": [("head", _units(4))]},
        {"conv": 3, "body": 2},
    ),
    "joined": Net(
        Joined,
        (2, 6, 6),
        {
            "left": [("mix", torch.tensor([0, 1, 2, -1, -1, -1, -1]))],
            "right": [("mix", torch.tensor([-1, -1, -1, 0, 1, 2, 3]))],
            "mix": [("head", _units(4))],
        },
        {"left": 2, "right": 2, "mix": 3},
    ),
    "grouped": Net(
        Grouped,
        (2, 8, 8),
        {"conv": [("wide", _units(4).repeat(2))], "wide": [("head", _units(3).repeat(2))]},
        {"conv": 2, "wide": 2},
    ),
    "normed": Net(Normed, (4,), {"up": [("down", _units(6))]}, {"up": 3}),
    "heads": Net(
        Heads,
        (3, 8),
        {"qkv": [("out", _units(4, 2))], "out": [("head", _units(8))]},
        {"qkv": 2, "out": 5},
    ),
}
