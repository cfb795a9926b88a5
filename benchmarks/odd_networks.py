"""Networks whose layers are awkward: many small groups read by many layers, and long kernels."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["DenselyConnected", "LongKernels"]


class _Layer(nn.Module):
    """Norm, 1×1, norm, 3×3; the input goes on beside what is made of it."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.BatchNorm2d(inputs), nn.BatchNorm2d(4 * growth)
        self.conv1 = nn.Conv2d(inputs, 4 * growth, 1, bias=False)
        self.conv2 = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:  # [b, c, h, w] → [b, c + growth, h, w]
        new = self.conv2(self.norm2(self.conv1(self.norm1(x).relu())).relu())
        return torch.cat([x, new], 1)


class DenselyConnected(nn.Module):
    """Three blocks of 14 bottleneck layers, 32×32 images: 87 groups, most with many consumers."""

    def __init__(self, growth: int = 12, layers: int = 14, classes: int = 10) -> None:
        super().__init__()
        width = 2 * growth
        parts: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1, bias=False)]
        for block in range(3):
            for _ in range(layers):
                parts.append(_Layer(width, growth))
                width += growth
            parts += [nn.BatchNorm2d(width), nn.ReLU()]
            if block < 2:
                parts += [nn.Conv2d(width, width // 2, 1, bias=False), nn.AvgPool2d(2)]
                width //= 2
        self.features, self.classifier = nn.Sequential(*parts), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).mean((2, 3)))


class LongKernels(nn.Module):
    """One-dimensional convolutions with kernels of 64 on 4,000 samples: 486 thousand parameters."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(1, 32, 64, stride=4)
        self.conv2 = nn.Conv1d(32, 64, 64, stride=2)
        self.conv3 = nn.Conv1d(64, 86, 64, stride=2)
        self.classifier = nn.Linear(86, classes)

    def forward(self, x: Tensor) -> Tensor:  # [b, 1, 4000]
        for conv in (self.conv1, self.conv2, self.conv3):
            x = conv(x).relu()
        return self.classifier(x.mean(2))
