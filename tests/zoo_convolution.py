"""Convolutional networks of the zoo, a few channels wide."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def conv_bn(
    c_in: int, c_out: int, k: int = 3, *, groups: int = 1, act: type[nn.Module] = nn.ReLU
) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(c_in, c_out, k, padding=k // 2, groups=groups, bias=False),
        nn.BatchNorm2d(c_out),
        act(),
    )


class Bottleneck(nn.Module):
    """ResNet-50's block; with `groups`, ResNeXt's."""

    def __init__(self, c: int, inner: int, groups: int = 1) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(c, inner, 1, bias=False), nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, inner, 3, padding=1, groups=groups, bias=False)
        self.bn2 = nn.BatchNorm2d(inner)
        self.conv3, self.bn3 = nn.Conv2d(inner, c, 1, bias=False), nn.BatchNorm2d(c)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        return F.relu(self.bn3(self.conv3(y)) + x)


class ResidualNet(nn.Module):
    """Stem, blocks on one stream, average, linear."""

    def __init__(self, blocks: list[nn.Module], c: int = 8) -> None:
        super().__init__()
        self.stem = conv_bn(3, c)
        self.blocks = nn.Sequential(*blocks)
        self.fc = nn.Linear(c, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.adaptive_avg_pool2d(self.blocks(self.stem(x)), 1).flatten(1))


class SqueezeExcite(nn.Module):
    def __init__(self, c: int, squeezed: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Conv2d(c, squeezed, 1), nn.Conv2d(squeezed, c, 1)

    def forward(self, x: Tensor) -> Tensor:
        scale = F.relu(self.fc1(F.adaptive_avg_pool2d(x, 1)))
        return x * F.hardsigmoid(self.fc2(scale))


class SqueezeExciteLinear(nn.Module):
    """As often written: mean, two linear layers, sigmoid, back to [N, C, 1, 1]."""

    def __init__(self, c: int, squeezed: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(c, squeezed), nn.Linear(squeezed, c)

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[0]
        scale = F.silu(self.fc1(x.mean(dim=(2, 3))))
        return x * torch.sigmoid(self.fc2(scale)).view(n, -1, 1, 1)


class InvertedResidual(nn.Module):
    """MobileNetV2; with `se`, V3 and EfficientNet."""

    def __init__(
        self, c: int, expanded: int, act: type[nn.Module] = nn.ReLU6, se: nn.Module | None = None
    ) -> None:
        super().__init__()
        layers = [
            conv_bn(c, expanded, 1, act=act),
            conv_bn(expanded, expanded, 3, groups=expanded, act=act),
        ]
        if se is not None:
            layers.append(se)
        self.conv = nn.Sequential(*layers, nn.Conv2d(expanded, c, 1, bias=False), nn.BatchNorm2d(c))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x)


class DenseLayer(nn.Module):
    def __init__(self, c: int, growth: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(c), nn.Conv2d(c, 4 * growth, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(4 * growth)
        self.conv2 = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv2(F.relu(self.norm2(self.conv1(F.relu(self.norm1(x))))))
        return torch.cat([x, y], 1)


class DenseNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.block1 = nn.Sequential(DenseLayer(6, 3), DenseLayer(9, 3))
        self.norm, self.conv = nn.BatchNorm2d(12), nn.Conv2d(12, 6, 1)
        self.block2 = nn.Sequential(DenseLayer(6, 3))
        self.last, self.fc = nn.BatchNorm2d(9), nn.Linear(9, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.block1(self.stem(x))
        x = F.avg_pool2d(self.conv(F.relu(self.norm(x))), 2)
        x = F.relu(self.last(self.block2(x)))
        return self.fc(x.mean((2, 3)))


class InceptionBlock(nn.Module):
    def __init__(self, c: int) -> None:
        super().__init__()
        self.one = conv_bn(c, 4, 1)
        self.three = nn.Sequential(conv_bn(c, 4, 1), conv_bn(4, 6, 3))
        self.five = nn.Sequential(conv_bn(c, 2, 1), conv_bn(2, 3, 5))
        self.pool = nn.Sequential(nn.MaxPool2d(3, 1, 1), conv_bn(c, 3, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.one(x), self.three(x), self.five(x), self.pool(x)], 1)


class ConvNeXtBlock(nn.Module):
    def __init__(self, c: int) -> None:
        super().__init__()
        self.dwconv = nn.Conv2d(c, c, 7, padding=3, groups=c)
        self.norm = nn.LayerNorm(c)
        self.pwconv1, self.pwconv2 = nn.Linear(c, 4 * c), nn.Linear(4 * c, c)
        self.gamma = nn.Parameter(torch.rand(c))

    def forward(self, x: Tensor) -> Tensor:
        y = self.dwconv(x).permute(0, 2, 3, 1)
        y = self.pwconv2(F.gelu(self.pwconv1(self.norm(y))))
        return x + (self.gamma * y).permute(0, 3, 1, 2)


class ChannelsFirstNorm(nn.Module):
    """ConvNeXt's hand-written LayerNorm over channels."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.rand(c)), nn.Parameter(torch.rand(c))

    def forward(self, x: Tensor) -> Tensor:
        u = x.mean(1, keepdim=True)
        s = (x - u).pow(2).mean(1, keepdim=True)
        x = (x - u) / torch.sqrt(s + 1e-6)
        return self.weight[:, None, None] * x + self.bias[:, None, None]


class ConvNeXt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 6, 2, stride=2), ChannelsFirstNorm(6))
        self.stage1 = nn.Sequential(ConvNeXtBlock(6), ConvNeXtBlock(6))
        self.down = nn.Sequential(ChannelsFirstNorm(6), nn.Conv2d(6, 8, 2, stride=2))
        self.stage2 = ConvNeXtBlock(8)
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stage2(self.down(self.stage1(self.stem(x))))
        return self.head(self.norm(x.mean([-2, -1])))


class ShuffleUnit(nn.Module):
    """ShuffleNetV2: half of the channels pass by, then all are shuffled."""

    def __init__(self, c: int) -> None:
        super().__init__()
        half = c // 2
        self.branch = nn.Sequential(
            conv_bn(half, half, 1),
            nn.Conv2d(half, half, 3, padding=1, groups=half, bias=False),
            nn.BatchNorm2d(half),
            conv_bn(half, half, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, dim=1)
        y = torch.cat((a, self.branch(b)), dim=1)
        n, c, h, w = y.shape
        return y.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2 = conv_bn(3, 4), conv_bn(4, 8)
        self.middle = conv_bn(8, 8)
        self.up2, self.dec2 = nn.ConvTranspose2d(8, 8, 2, stride=2), conv_bn(16, 6)
        self.up1, self.dec1 = nn.ConvTranspose2d(6, 4, 2, stride=2), conv_bn(8, 4)
        self.out = nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        y = self.middle(F.max_pool2d(b, 2))
        y = self.dec2(torch.cat([self.up2(y), b], 1))
        return self.out(self.dec1(torch.cat([self.up1(y), a], 1)))


class SuperResolution(nn.Module):
    """ESPCN: the last convolution makes r² channels for every one of the image."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 6, 5, padding=2), nn.Conv2d(6, 16, 3, padding=1)
        self.conv3, self.conv4 = nn.Conv2d(4, 5, 3, padding=1), nn.Conv2d(5, 12, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.conv1(x))
        x = F.pixel_shuffle(self.conv2(x), 2)
        return F.pixel_shuffle(self.conv4(F.relu(self.conv3(x))), 2)


class AudioBlock(nn.Module):
    """WaveNet-like: a dilated convolution, gated, with a residual and a skip output."""

    def __init__(self, c: int, inner: int, skip: int, dilation: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(c, 2 * inner, 3, padding=dilation, dilation=dilation)
        self.res, self.skip = nn.Conv1d(inner, c, 1), nn.Conv1d(inner, skip, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = F.glu(self.conv(x), dim=1)
        return x + self.res(y), self.skip(y)


class AudioNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv1d(1, 6, 5, stride=2, padding=2)
        self.blocks = nn.ModuleList([AudioBlock(6, 5, 7, 2**i) for i in range(2)])
        self.conv, self.fc = nn.Conv1d(7, 8, 1), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        total: Tensor | float = 0.0
        for block in self.blocks:
            x, skip = block(x)
            total = total + skip
        return self.fc(F.relu(self.conv(F.relu(torch.as_tensor(total)))).mean(-1))


class Video(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv3d(1, 4, 3, padding=1), nn.BatchNorm3d(4)
        self.conv2, self.fc = nn.Conv3d(4, 6, 3, padding=1), nn.Linear(6 * 8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool3d(F.relu(self.bn1(self.conv1(x))), 2)
        return self.fc(F.adaptive_avg_pool3d(F.relu(self.conv2(x)), 2).flatten(1))


class GroupNormNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8)
        self.conv2, self.norm2 = nn.Conv2d(8, 6, 3, padding=1), nn.GroupNorm(6, 6)
        self.conv3, self.norm3 = nn.Conv2d(6, 4, 3, padding=1), nn.GroupNorm(1, 4)
        self.fc = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm1(self.conv1(x)))
        x = F.relu(self.norm2(self.conv2(x)))
        return self.fc(F.relu(self.norm3(self.conv3(x))).amax((2, 3)))


class PReLUNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.act1 = nn.Conv2d(3, 6, 3, padding=1), nn.PReLU(6)
        self.conv2, self.act2 = nn.Conv2d(6, 6, 3, padding=1), nn.PReLU()
        self.conv3 = nn.Conv2d(6, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act1(self.conv1(x))
        x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
        return self.conv3(F.interpolate(self.act2(self.conv2(x)), size=(7, 7)))


class NoAffine(nn.Module):
    """Norms without parameters, and a buffer of the user's that follows the channels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn = nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6, affine=False)
        self.conv2 = nn.Conv2d(6, 5, 3, padding=1)
        self.fc1, self.ln, self.fc2 = (
            nn.Linear(5, 8),
            nn.LayerNorm(8, elementwise_affine=False),
            nn.Linear(8, 3),
        )
        self.register_buffer("scale", torch.rand(1, 5, 1, 1) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn(self.conv1(x)))
        x = F.relu(self.conv2(x) * self.scale)
        return self.fc2(F.relu(self.ln(self.fc1(x.mean((2, 3))))))


class Norms(nn.Module):
    """Instance norm, group norm without parameters, a layer norm over channels and pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 6, 3, padding=1), nn.InstanceNorm2d(6, affine=True)
        self.conv2, self.norm2 = nn.Conv2d(6, 8, 3, padding=1), nn.GroupNorm(4, 8, affine=False)
        self.conv3, self.norm3 = nn.Conv2d(8, 5, 3, padding=1), nn.LayerNorm([5, 6, 6])
        self.conv4, self.norm4 = nn.Conv2d(5, 4, 3, padding=1), nn.GroupNorm(4, 4, affine=False)
        self.conv5, self.norm5 = nn.Conv2d(4, 4, 3, padding=1), nn.InstanceNorm2d(4)
        self.out = nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        for conv, norm in (
            (self.conv1, self.norm1),
            (self.conv2, self.norm2),
            (self.conv3, self.norm3),
        ):
            x = F.relu(norm(conv(x)))
        return self.out(self.norm5(self.conv5(self.norm4(self.conv4(x)))))


class Shuffles(nn.Module):
    """Channel shuffle and pixel unshuffle as modules, around grouped convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.shuffle = nn.Conv2d(3, 8, 3, padding=1), nn.ChannelShuffle(2)
        self.conv2, self.down = nn.Conv2d(8, 6, 3, padding=1, groups=2), nn.PixelUnshuffle(2)
        self.conv3, self.conv4 = nn.Conv2d(24, 4, 1, groups=4), nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.shuffle(F.relu(self.conv1(x)))
        return self.conv4(F.relu(self.conv3(self.down(F.relu(self.conv2(x))))))


class SelectiveKernel(nn.Module):
    """Two branches stacked, weighted by a softmax over the branches, summed."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 6)
        self.three, self.five = conv_bn(6, 8, 3), conv_bn(6, 8, 5)
        self.squeeze, self.excite = nn.Linear(8, 4), nn.Linear(4, 16)
        self.fc = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        both = torch.stack([self.three(x), self.five(x)], 1)
        z = F.relu(self.squeeze(both.sum(1).mean((2, 3))))
        weights = self.excite(z).unflatten(1, (2, -1)).softmax(1)
        return self.fc((both * weights[..., None, None]).sum(1).mean((2, 3)))


class Counting(nn.Module):
    """Sums, maxima and products over the units themselves: all notice who is missing."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(3, 5, 3, padding=1)
        self.conv3 = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        a = torch.sigmoid(self.conv1(x)).sum(1, keepdim=True)
        b = (-F.relu(self.conv2(x)) - 1).amax(1, keepdim=True)
        c = self.conv3(x).exp().norm(dim=1, keepdim=True)
        return torch.cat([a, b, c], 1)


class DoubleTranspose(nn.Module):
    """Two transposed convolutions, the first of them in groups."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.up = (
            nn.Conv2d(3, 4, 3, padding=1),
            nn.ConvTranspose2d(4, 6, 2, stride=2, groups=2),
        )
        self.up2, self.out = nn.ConvTranspose2d(6, 5, 2, stride=2), nn.Conv2d(5, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.relu(self.up2(F.relu(self.up(F.relu(self.conv(x)))))))


class FlattenNorm(nn.Module):
    """Batch norm after flatten, and a broadcast scale of one number per channel and one per pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm1d(4 * 16)
        self.gain, self.map = nn.Parameter(torch.rand(4, 1, 1)), nn.Parameter(torch.rand(4, 4))
        self.fc1, self.fc2 = nn.Linear(4 * 16, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.leaky_relu(self.conv(x)) * self.gain * self.map
        return self.fc2(F.relu(self.fc1(self.norm(x.flatten(1)))))


class Denoiser(nn.Module):
    """What it finds is taken off the image: its outputs are numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = conv_bn(3, 8), nn.Conv2d(8, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x - self.last(self.first(x))


def segmenter() -> nn.Module:
    """A class for every pixel, of half the size inside."""
    return nn.Sequential(
        conv_bn(3, 8),
        nn.MaxPool2d(2),
        conv_bn(8, 6),
        nn.Upsample(scale_factor=2),
        nn.Conv2d(6, 5, 1),
    )
