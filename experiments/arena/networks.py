"""The networks of the arena: definitions whose parameter names are those of public weights."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from subprune.zoo.models import build as build_small

__all__ = ["NETWORKS", "EfficientNetLite0", "ResNet50", "load_network"]


class Bottleneck(nn.Module):
    """1×1, 3×3, 1×1 around a shortcut; the stride is in the first convolution, as in the paper."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        norm = functools.partial(nn.BatchNorm2d, eps=1e-3)
        self.conv1 = nn.Conv2d(inputs, width, 1, stride, bias=False)
        self.bn1 = norm(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = norm(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = norm(outputs)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            projection = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.downsample = nn.Sequential(projection, norm(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        return F.relu(self.bn3(self.conv3(y)) + self.downsample(x))


class ResNet50(nn.Module):
    """He et al. 2016 with the details of Keras' weights: names as torchvision has them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64, eps=1e-3)
        inputs = 64
        for stage, (width, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3)), 1):
            layers = []
            for i in range(blocks):
                stride = 2 if i == 0 and stage > 1 else 1
                layers.append(Bottleneck(inputs, width, stride))
                inputs = 4 * width
            setattr(self, f"layer{stage}", nn.Sequential(*layers))
        self.fc = nn.Linear(inputs, 1000)

    def forward(self, x: Tensor) -> Tensor:
        """[N, 3, 224, 224] → [N, 1000] logits."""
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = stage(x)
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


class SamePadding(nn.Conv2d):
    """A convolution padded as TensorFlow pads: with a stride, more at the far side."""

    def forward(self, x: Tensor) -> Tensor:
        size, (kernel, stride) = x.shape[-1], (self.kernel_size[0], self.stride[0])
        total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
        near = total // 2
        x = F.pad(x, (near, total - near, near, total - near)) if total else x
        return F.conv2d(x, self.weight, self.bias, self.stride, 0, 1, self.groups)


class InvertedResidual(nn.Module):
    """Expand, filter every channel by itself, project; a shortcut where shapes allow."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expand: int) -> None:
        super().__init__()
        wide, norm = inputs * expand, functools.partial(nn.BatchNorm2d, eps=1e-3)
        self.expands, self.shortcut = expand != 1, stride == 1 and inputs == outputs
        if self.expands:
            self._expand_conv = nn.Conv2d(inputs, wide, 1, bias=False)
            self._bn0 = norm(wide)
        self._depthwise_conv = SamePadding(wide, wide, kernel, stride, groups=wide, bias=False)
        self._bn1 = norm(wide)
        self._project_conv = nn.Conv2d(wide, outputs, 1, bias=False)
        self._bn2 = norm(outputs)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu6(self._bn0(self._expand_conv(x))) if self.expands else x
        y = F.relu6(self._bn1(self._depthwise_conv(y)))
        y = self._bn2(self._project_conv(y))
        return x + y if self.shortcut else y


# outputs, kernel, stride, expansion, repeats
_LITE0 = (
    (16, 3, 1, 1, 1),
    (24, 3, 2, 6, 2),
    (40, 5, 2, 6, 2),
    (80, 3, 2, 6, 3),
    (112, 5, 1, 6, 3),
    (192, 5, 2, 6, 4),
    (320, 3, 1, 6, 1),
)


class EfficientNetLite0(nn.Module):
    """EfficientNet-B0 without squeeze-and-excitation and with ReLU6 (Tan and Le 2019, "lite")."""

    def __init__(self) -> None:
        super().__init__()
        self._conv_stem = SamePadding(3, 32, 3, 2, bias=False)
        self._bn0 = nn.BatchNorm2d(32, eps=1e-3)
        blocks, inputs = [], 32
        for outputs, kernel, stride, expand, repeats in _LITE0:
            for i in range(repeats):
                step = stride if i == 0 else 1
                blocks.append(InvertedResidual(inputs, outputs, kernel, step, expand))
                inputs = outputs
        self._blocks = nn.Sequential(*blocks)
        self._conv_head = nn.Conv2d(inputs, 1280, 1, bias=False)
        self._bn1 = nn.BatchNorm2d(1280, eps=1e-3)
        self._fc = nn.Linear(1280, 1000)

    def forward(self, x: Tensor) -> Tensor:
        """[N, 3, 224, 224] → [N, 1000] logits."""
        x = self._blocks(F.relu6(self._bn0(self._conv_stem(x))))
        x = F.relu6(self._bn1(self._conv_head(x)))
        return self._fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "resnet50": ResNet50,
    "efficientnet-lite0": EfficientNetLite0,
    "resnet56": functools.partial(build_small, "resnet56"),
    "vgg11": functools.partial(build_small, "vgg11"),
}


def load_network(name: str, weights: Path) -> nn.Module:
    """The network in eval mode, with the file's weights; nothing in the file is executed."""
    if name not in NETWORKS:
        raise SystemExit(f"network {name!r} is not known; allowed are {', '.join(NETWORKS)}")
    if not weights.is_file():
        raise SystemExit(f"--weights {weights} is not a file; give the weights of {name}")
    model = NETWORKS[name]()
    missing = model.load_state_dict(_read(weights), strict=False)
    lost = [n for n in missing.missing_keys if not n.endswith("num_batches_tracked")]
    if lost or missing.unexpected_keys:
        raise SystemExit(
            f"{weights} does not fit {name}: it lacks {lost[:3]} and has "
            f"{missing.unexpected_keys[:3]} that the network does not know"
        )
    return model.eval()


def _read(weights: Path) -> Mapping[str, Tensor]:
    """A state dict from safetensors, or from a file of torch.save that holds tensors alone."""
    if weights.suffix == ".safetensors":
        return load_file(weights)
    state: Mapping[str, Tensor] = torch.load(weights, map_location="cpu", weights_only=True)
    return state
