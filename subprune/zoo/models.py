"""Three networks: LeNet for MNIST, ResNet and VGG11 for CIFAR-10.

Parameter names follow the usual PyTorch ports, so public weights load unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, get_args

import torch.nn.functional as F
from torch import Tensor, nn

from subprune.errors import OptionError, closest
from subprune.zoo import assets_dir
from subprune.zoo.readers import CLASSES
from subprune.zoo.weights import load_weights

__all__ = [
    "VGG11",
    "BasicBlock",
    "LeNet",
    "PadShortcut",
    "ResNet",
    "build",
    "model_names",
    "register",
    "shipped_lenet",
]

Shortcut = Literal["A", "B"]


class LeNet(nn.Module):
    """The paper's LeNet: two 3×3 convolutions with 2×2 max-pooling, three linear layers; 28×28 grey
    input.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 3)
        self.conv2 = nn.Conv2d(6, 16, 3)
        self.fc1 = nn.Linear(16 * 5 * 5, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """[N, 1, 28, 28] → [N, 10] logits."""
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.fc1(x.flatten(1)))
        return self.fc3(F.relu(self.fc2(x)))


class PadShortcut(nn.Module):
    """Option-A shortcut: every second pixel, and zero channels added evenly on both sides; no
    weights.
    """

    def __init__(self, extra: int) -> None:
        super().__init__()
        self.before = extra // 2
        self.after = extra - extra // 2

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] → [N, C + extra, ⌈H/2⌉, ⌈W/2⌉]."""
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.before, self.after))


class BasicBlock(nn.Module):
    """conv-BN-ReLU-conv-BN plus a shortcut, then ReLU."""

    def __init__(self, inputs: int, width: int, stride: int, shortcut: Shortcut) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut: nn.Module = nn.Sequential()
        if stride != 1 or inputs != width:
            if shortcut == "A":
                self.shortcut = PadShortcut(width - inputs)
            else:
                projection = nn.Conv2d(inputs, width, 1, stride, bias=False)
                self.shortcut = nn.Sequential(projection, nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        """[N, inputs, H, W] → [N, width, H/stride, W/stride]."""
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class ResNet(nn.Module):
    """The CIFAR ResNet of He et al. (2016): three stages of (depth − 2) / 6 blocks, 16, 32 and 64
    channels.

    Args:
        depth: 20, 26, …, 110: two more than a multiple of six.
        shortcut: where the width changes, "A" pads with zero channels, "B" projects with a 1×1
            convolution.
    """

    def __init__(self, depth: int = 56, shortcut: Shortcut = "A") -> None:
        super().__init__()
        if not 20 <= depth <= 110 or (depth - 2) % 6:
            raise OptionError(
                f"depth is {depth}; allowed is 6n + 2 from 20 to 110. Use 20, 32, 44, 56 or 110."
            )
        if shortcut not in get_args(Shortcut):
            raise OptionError(
                f'shortcut is {shortcut!r}; allowed are "A" (zero padding) and "B" (1×1 '
                "projection)."
            )
        blocks = (depth - 2) // 6
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = _stage(16, 16, blocks, 1, shortcut)
        self.layer2 = _stage(16, 32, blocks, 2, shortcut)
        self.layer3 = _stage(32, 64, blocks, 2, shortcut)
        self.linear = nn.Linear(64, CLASSES)
        for module in self.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, x: Tensor) -> Tensor:
        """[N, 3, 32, 32] → [N, 10] logits."""
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.linear(F.adaptive_avg_pool2d(x, 1).flatten(1))


def _stage(inputs: int, width: int, blocks: int, stride: int, shortcut: Shortcut) -> nn.Sequential:
    """The blocks of one resolution; only the first changes stride and width."""
    first = BasicBlock(inputs, width, stride, shortcut)
    return nn.Sequential(first, *(BasicBlock(width, width, 1, shortcut) for _ in range(blocks - 1)))


class VGG11(nn.Module):
    """The paper's VGG11 for CIFAR-10: conv(bias)-BN-ReLU features, global average pool,
    512-128-128-10.
    """

    LAYOUT = (64, "M", 128, "M", 256, 256, "M", 512, 512, "M", 512, 512, "M")

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = 3
        for width in self.LAYOUT:
            if isinstance(width, int):
                layers += [nn.Conv2d(inputs, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
                inputs = width
            else:
                layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            *(nn.Linear(512, 128), nn.ReLU(), nn.Dropout()),
            *(nn.Linear(128, 128), nn.ReLU(), nn.Dropout()),
            nn.Linear(128, CLASSES),
        )

    def forward(self, x: Tensor) -> Tensor:
        """[N, 3, 32, 32] → [N, 10] logits."""
        return self.classifier(F.adaptive_avg_pool2d(self.features(x), 1).flatten(1))


_REGISTRY: dict[str, Callable[[], nn.Module]] = {}


def register(name: str, make: Callable[[], nn.Module]) -> None:
    """Give a network a name that `build` knows; a name can be taken only once."""
    if name in _REGISTRY:
        raise OptionError(f"a model named {name!r} is registered already; choose another name.")
    _REGISTRY[name] = make


def model_names() -> list[str]:
    """The names `build` knows, sorted."""
    return sorted(_REGISTRY)


def build(name: str) -> nn.Module:
    """A freshly initialised network by name: "lenet", "vgg11", "resnet56", "resnet56-b", …"""
    if name not in _REGISTRY:
        raise OptionError(
            f"no model is named {name!r}; {closest(name, _REGISTRY)}allowed are "
            f"{', '.join(model_names())}."
        )
    return _REGISTRY[name]()


def shipped_lenet() -> tuple[LeNet, dict[str, str]]:
    """The LeNet that ships with the package, trained on MNIST, in eval mode; and its file's
    metadata.
    """
    model = LeNet()
    metadata = load_weights(model, assets_dir() / "lenet-mnist.safetensors")
    return model.eval(), metadata


def _resnet(depth: int, shortcut: Shortcut) -> Callable[[], nn.Module]:
    return lambda: ResNet(depth, shortcut)


def _register_all(builtin: Mapping[str, Callable[[], nn.Module]]) -> None:
    for name, make in builtin.items():
        register(name, make)


_register_all({"lenet": LeNet, "vgg11": VGG11})
_register_all({f"resnet{depth}": _resnet(depth, "A") for depth in (20, 32, 44, 56, 110)})
_register_all({f"resnet{depth}-b": _resnet(depth, "B") for depth in (20, 32, 44, 56, 110)})
