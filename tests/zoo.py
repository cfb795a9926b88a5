"""Small versions of the architectures people prune, each with an example input.

Weights, norm parameters and running statistics are random, so that an error in a bias, a norm or a
buffer cannot hide behind zeros and ones.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import zoo_attention as attn
import zoo_convolution as conv
import zoo_detection as detection
import zoo_odd as odd
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from torch.utils.flop_counter import FlopCounterMode

from subprune.program.program import flat_tensors
from subprune.program.record import as_inputs, plain
from subprune.structure.groups import Structure
from subprune.zoo.models import VGG11, LeNet, ResNet


@dataclass(frozen=True)
class Entry:
    """A model, an example input, and what must be found in it."""

    make: Callable[[], nn.Module]
    example: Callable[[], Any]
    kinds: dict[str, int]  # kind of group → how many
    inner: int  # how many of them are pruned by default
    # layers that must be refused → a word of the reason
    refused: dict[str, str] = field(default_factory=dict)

    def build(self, seed: int = 0) -> tuple[nn.Module, Any]:
        torch.manual_seed(seed)
        model = self.make()
        randomise(model)
        return model.eval(), self.example()


def randomise(model: nn.Module) -> None:
    """Nothing stays at zero or one: norms, biases and running statistics get random values."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.ndim <= 1 or (min(p.shape) == 1 and p.ndim < 4):
                p.copy_(torch.randn(p.shape) * 0.3 + 0.5)
            elif "embed" not in name and p.ndim == 2:
                p.mul_(1.5)
        for name, b in model.named_buffers():
            if name.endswith("running_mean"):
                b.normal_()
            elif name.endswith("running_var"):
                b.uniform_(0.5, 1.5)


def image(size: int = 12, channels: int = 3) -> Callable[[], Tensor]:
    return lambda: torch.randn(2, channels, size, size)


def rows(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(*shape)


def tokens() -> Tensor:
    return torch.randint(0, 20, (2, 6))


def pair() -> tuple[Tensor, Tensor]:
    return torch.randn(2, 6, 5), torch.randn(2, 4, 5)


def mobile_v2() -> nn.Module:
    return conv.ResidualNet([conv.InvertedResidual(8, 16), conv.InvertedResidual(8, 24)])


def mobile_v3() -> nn.Module:
    blocks = [conv.InvertedResidual(8, n, nn.Hardswish, conv.SqueezeExcite(n, 4)) for n in (16, 24)]
    return conv.ResidualNet(blocks)


def efficient() -> nn.Module:
    blocks = [
        conv.InvertedResidual(8, n, nn.SiLU, conv.SqueezeExciteLinear(n, 4)) for n in (16, 24)
    ]
    return conv.ResidualNet(blocks)


def inception() -> nn.Module:
    return nn.Sequential(
        conv.conv_bn(3, 6),
        conv.InceptionBlock(6),
        conv.InceptionBlock(16),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 5),
    )


def shuffle() -> nn.Module:
    return nn.Sequential(
        conv.conv_bn(3, 8),
        conv.ShuffleUnit(8),
        conv.ShuffleUnit(8),
        nn.Conv2d(8, 6, 1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(6 * 36, 4),
    )


def language(
    mixer: Callable[[], nn.Module], norm: type[nn.Module] = nn.LayerNorm, tied: bool = False
) -> nn.Module:
    mlps = (attn.GatedMLP(12, 10), attn.FusedGatedMLP(12, 10))
    return attn.Language([attn.Block(12, mixer(), mlp, norm) for mlp in mlps], tied=tied)


def mha(**options: Any) -> Callable[[], nn.Module]:
    return lambda: attn.SelfAttention(**options)


ZOO: dict[str, Entry] = {
    "lenet": Entry(
        LeNet, image(28, 1), {"channel": 2, "neuron": 2}, 4, {"fc3": "the model's output"}
    ),
    "vgg11": Entry(VGG11, image(32), {"channel": 8, "neuron": 2}, 10),
    "resnet20-A": Entry(lambda: ResNet(20, "A"), image(16), {"stream": 1, "channel": 9}, 9),
    "resnet20-B": Entry(lambda: ResNet(20, "B"), image(16), {"stream": 3, "channel": 9}, 9),
    "bottleneck": Entry(
        lambda: conv.ResidualNet([conv.Bottleneck(8, 4), conv.Bottleneck(8, 6)]),
        image(),
        {"stream": 1, "channel": 4},
        4,
    ),
    "resnext": Entry(
        lambda: conv.ResidualNet([conv.Bottleneck(8, 8, 2), conv.Bottleneck(8, 12, 4)]),
        image(),
        {"stream": 1, "channel": 4},
        4,
    ),
    "mobilenet-v2": Entry(mobile_v2, image(), {"stream": 1, "channel": 2}, 2),
    "mobilenet-v3": Entry(mobile_v3, image(), {"stream": 1, "channel": 4}, 4),
    "efficientnet": Entry(efficient, image(), {"stream": 1, "channel": 2, "neuron": 2}, 4),
    "densenet": Entry(conv.DenseNet, image(), {"channel": 8}, 8),
    "inception": Entry(inception, image(), {"channel": 13}, 13),
    "convnext": Entry(conv.ConvNeXt, image(), {"stream": 2, "neuron": 3}, 3),
    "shufflenet": Entry(shuffle, image(6), {"channel": 4}, 4),
    "unet": Entry(conv.UNet, image(), {"channel": 7}, 7),
    "detector": Entry(
        detection.Detector,
        image(16),
        {"stream": 1, "channel": 24},
        24,
        {"head.cv2.0.2": "split dimension", "head.cv3.0.2": "the model's output"},
    ),
    "detector-later": Entry(
        lambda: detection.Detector(later=True),
        image(16),
        {"stream": 3, "channel": 27, "head": 1},
        28,
        {"head.cv2.0.2": "split dimension", "head.cv3.0.3": "the model's output"},
    ),
    "super-resolution": Entry(conv.SuperResolution, image(6), {"channel": 3}, 3),
    "audio": Entry(conv.AudioNet, rows(2, 1, 32), {"stream": 1, "channel": 4}, 4),
    "video": Entry(conv.Video, rows(2, 1, 6, 8, 8), {"channel": 2}, 2),
    "group-norm": Entry(conv.GroupNormNet, image(), {"channel": 3}, 3),
    "prelu": Entry(conv.PReLUNet, image(6), {"channel": 2}, 2),
    "no-affine": Entry(conv.NoAffine, image(6), {"channel": 2, "neuron": 1}, 3),
    "fused-qkv": Entry(
        lambda: language(lambda: attn.FusedAttention(12, 3)),
        tokens,
        {"stream": 1, "head": 2, "neuron": 2},
        4,
    ),
    "fused-qkv-sdpa": Entry(
        lambda: language(lambda: attn.FusedAttention(12, 3, sdpa=True)),
        tokens,
        {"stream": 1, "head": 2, "neuron": 2},
        4,
    ),
    "chunk-qkv": Entry(
        lambda: language(lambda: attn.ChunkAttention(12, 3, 8), attn.RMSNorm),
        tokens,
        {"stream": 1, "head": 2, "neuron": 2},
        4,
    ),
    "gqa": Entry(
        lambda: language(lambda: attn.GroupedQueryAttention(12, 6, 3), attn.RMSNorm),
        tokens,
        {"stream": 1, "head": 2, "neuron": 2},
        4,
    ),
    "gqa-sdpa": Entry(
        lambda: language(lambda: attn.GroupedQueryAttention(12, 6, 2, repeat="gqa")),
        tokens,
        {"stream": 1, "head": 2, "neuron": 2},
        4,
    ),
    "mqa": Entry(
        lambda: language(lambda: attn.GroupedQueryAttention(12, 3, 1)),
        tokens,
        {"stream": 1, "head": 2, "neuron": 2},
        4,
    ),
    "mqa-broadcast": Entry(
        lambda: language(lambda: attn.GroupedQueryAttention(12, 3, 1, repeat="broadcast")),
        tokens,
        {"stream": 1, "head": 2, "neuron": 2},
        4,
    ),
    "einsum": Entry(
        lambda: language(lambda: attn.EinsumAttention(12, 3)),
        tokens,
        {"stream": 1, "head": 2, "neuron": 2},
        4,
    ),
    "sloped-heads": Entry(  # as they depend on all of the slopes, heads stay
        lambda: language(lambda: attn.SlopedAttention(12, 3)),
        tokens,
        {"stream": 1, "head": 2, "neuron": 2},
        2,
    ),
    "located-heads": Entry(
        lambda: language(lambda: attn.LocatedAttention(12, 3, 2, 3)),
        tokens,
        {"stream": 1, "head": 2, "neuron": 2},
        4,
    ),
    "tied": Entry(
        lambda: language(lambda: attn.EinsumAttention(12, 3), tied=True),
        tokens,
        {"stream": 1, "head": 2, "neuron": 2},
        4,
    ),
    "mha": Entry(
        mha(batch_first=True, need_weights=False), rows(2, 6, 5), {"stream": 1, "head": 1}, 1
    ),
    "mha-weights": Entry(
        mha(batch_first=True, need_weights=True), rows(2, 6, 5), {"stream": 1, "head": 1}, 1
    ),
    "mha-seq": Entry(
        mha(batch_first=False, need_weights=False), rows(6, 2, 5), {"stream": 1, "head": 1}, 1
    ),
    "mha-seq-weights": Entry(
        mha(batch_first=False, need_weights=True), rows(6, 2, 5), {"stream": 1, "head": 1}, 1
    ),
    "mha-unbatched": Entry(
        mha(batch_first=True, need_weights=False), rows(6, 5), {"stream": 1, "head": 1}, 1
    ),
    "mha-kdim": Entry(
        mha(batch_first=True, need_weights=False, other=6),
        rows(2, 6, 5),
        {"stream": 1, "head": 1, "neuron": 1},
        2,
    ),
    "mha-no-bias": Entry(
        mha(batch_first=True, need_weights=False, bias=False),
        rows(2, 6, 5),
        {"stream": 1, "head": 1},
        1,
    ),
    "mha-bias-kv": Entry(
        mha(batch_first=True, need_weights=False, add_bias_kv=True),
        rows(2, 6, 5),
        {"stream": 1, "head": 1},
        1,
    ),
    "encoder-decoder": Entry(attn.EncoderDecoder, pair, {"stream": 1, "head": 3, "neuron": 2}, 5),
    "encoder-decoder-pre": Entry(
        lambda: attn.EncoderDecoder(True), pair, {"stream": 1, "head": 3, "neuron": 2}, 5
    ),
    "twice": Entry(odd.Twice, rows(3, 5), {"neuron": 1}, 1),
    "shared-head": Entry(odd.SharedHead, rows(3, 5), {"neuron": 1}, 0),
    "two-names": Entry(
        odd.TwoNames, rows(3, 5), {"neuron": 2}, 2, {"classifier": "the model's output"}
    ),
    "repeated": Entry(odd.repeated, rows(3, 5), {"neuron": 2}, 2, {"8": "the model's output"}),
    "shared-block": Entry(odd.SharedBlock, image(6), {"stream": 1, "channel": 1}, 0),
    "caching": Entry(odd.Caching, rows(3, 4), {"neuron": 2}, 2),
    "remembering": Entry(odd.Remembering, rows(3, 4), {"neuron": 2}, 2),
    "autoencoder": Entry(odd.Autoencoder, rows(3, 6), {"neuron": 2}, 0),
    "weight-norm": Entry(
        odd.weight_normed,
        image(8),
        {"neuron": 1},
        1,
        {"0": "remove_parametrizations", "2": "remove_parametrizations"},
    ),
    "spectral-norm": Entry(
        odd.spectral_normed,
        rows(3, 4),
        {"neuron": 1},
        1,
        {"0": "remove_parametrizations", "2": "remove_parametrizations"},
    ),
    "lstm": Entry(
        odd.Recurrent, rows(2, 6, 4), {"neuron": 2}, 2, {"lstm": "recurrent", "fc2": "lstm"}
    ),
    "gru": Entry(odd.Stepwise, rows(2, 6, 4), {"neuron": 2}, 2, {"gru": "recurrent", "fc2": "gru"}),
    "branching": Entry(
        odd.Branching,
        rows(3, 4),
        {"neuron": 2},
        2,
        {"branch": "depends on the values", "fc2": "branch"},
    ),
    "unknown-op": Entry(odd.Unknown, rows(3, 4), {"neuron": 1}, 1, {"fc2": "cummax"}),
    "moving-average": Entry(odd.MovingAverage, rows(3, 4), {"neuron": 1}, 1),
    "vit": Entry(attn.VisionTransformer, image(12), {"stream": 1, "head": 2, "neuron": 2}, 4),
    "swin": Entry(attn.Swin, image(16), {"stream": 2, "head": 2, "neuron": 2}, 4),
    "linear-attention": Entry(
        lambda: language(lambda: attn.LinearAttention(12, 6)), tokens, {"stream": 1, "neuron": 6}, 4
    ),
    "non-local": Entry(
        lambda: conv.ResidualNet([attn.NonLocal(8, 6)]), image(6), {"stream": 1, "channel": 2}, 1
    ),
    "learned-queries": Entry(
        attn.LearnedQueries, rows(2, 6, 5), {"stream": 1, "head": 1, "neuron": 1}, 2
    ),
    "norms": Entry(conv.Norms, image(6), {"channel": 5}, 5),
    "shuffles": Entry(conv.Shuffles, image(6), {"channel": 3}, 1),
    "selective-kernel": Entry(conv.SelectiveKernel, image(6), {"channel": 2, "neuron": 1}, 3),
    "counting": Entry(conv.Counting, image(6), {"channel": 3}, 0),
    "grouped-transpose": Entry(
        conv.DoubleTranspose,
        image(4),
        {"channel": 3},
        3,
    ),
    "flatten-norm": Entry(conv.FlattenNorm, image(4), {"channel": 1, "neuron": 1}, 2),
    "old-weight-norm": Entry(
        odd.OldWeightNorm,
        rows(3, 4),
        {"neuron": 1},
        1,
        {"fc1": "remove_weight_norm", "fc2": "remove_weight_norm"},
    ),
    "experts": Entry(odd.Experts, rows(4, 5), {"neuron": 1}, 1, {"gate": "softmax runs over"}),
    "dict-output": Entry(
        odd.DictOutput,
        lambda: {"x": torch.randn(3, 4), "scale": torch.rand(3, 1)},
        {"neuron": 1},
        1,
        {"fc2": "model's output 1 of 2", "fc3": "model's output 2 of 2"},
    ),
    **{
        f"pool-{dims}d-{'unbatched' if len(shape) == dims + 1 else 'batched'}": Entry(
            lambda dims=dims: odd.Pooled(
                dims, (nn.MaxPool1d, nn.AvgPool2d, nn.MaxPool3d)[dims - 1](2)
            ),
            rows(*shape),
            {"channel": 1},
            1,
        )
        for dims, shape in ((1, (3, 9)), (2, (3, 8, 8)), (3, (3, 6, 6, 6)), (3, (2, 3, 6, 6, 6)))
    },
    "pool-beside-channels": Entry(
        lambda: odd.Pooled(2, nn.MaxPool3d((1, 2, 2))), image(8), {"channel": 1}, 1
    ),
    "pool-beside-channels-mean": Entry(
        lambda: odd.Pooled(2, nn.AvgPool3d((1, 2, 2))), image(8), {"channel": 1}, 1
    ),
    "pool-over-channels": Entry(
        lambda: odd.Pooled(2, nn.MaxPool3d((3, 1, 1), 1, (1, 0, 0))),
        image(8),
        {},
        0,
        {"first": "a window slides"},
    ),
    "massive": Entry(odd.Massive, rows(4, 16), {"neuron": 2}, 2, {"down.0": "the model's output"}),
    "denoiser": Entry(
        conv.Denoiser, image(6), {"channel": 1}, 1, {"last": "combined position by position"}
    ),
    "segmenter": Entry(conv.segmenter, image(8), {"channel": 2}, 2, {"4": "the model's output"}),
    "regression": Entry(
        lambda: nn.Sequential(nn.Linear(5, 9), nn.ReLU(), nn.Linear(9, 1)),
        rows(4, 5),
        {"neuron": 1},
        1,
    ),
    "inplace": Entry(
        odd.Inplace, rows(3, 4), {"stream": 1, "neuron": 1}, 1, {"fc3": "picked by number"}
    ),
}


def some_units(
    structure: Structure, seed: int = 0, share: float = 0.5, least: int = 1
) -> dict[str, list[int]]:
    """A random choice of units for every group that has any to spare."""
    rng = random.Random(seed)
    chosen = {}
    for g in structure.groups:
        if g.n_units > 1:
            kept = set(rng.sample(range(g.n_units), max(least, int(g.n_units * share))))
            kept.update(min(p) for p in g.parts if not kept & p)
            chosen[g.name] = sorted(kept)
    return chosen


def run(model: nn.Module, example: Any) -> list[Tensor]:
    """Outputs of a model as a flat list."""
    args, kwargs = as_inputs(clone(example))
    with torch.no_grad():
        return flat_tensors(plain(model(*args, **kwargs)))


def clone(example: Any) -> Any:
    return tree_map(lambda x: x.clone() if isinstance(x, Tensor) else x, example)


def gap(a: list[Tensor], b: list[Tensor]) -> float:
    """Largest difference of two lists of outputs, relative to the largest entry of each."""
    assert [x.shape for x in a] == [x.shape for x in b]
    pairs = [(x, y) for x, y in zip(a, b, strict=True) if x.is_floating_point() and x.numel()]
    return max(float((x - y).abs().max() / x.abs().max().clamp_min(1e-30)) for x, y in pairs)


def flops(model: nn.Module, example: Any) -> int:
    """As PyTorch counts them; without the fused encoder layer and LSTM, which its counter does not
    see.
    """
    enabled, fused = torch.backends.mha.get_fastpath_enabled(), torch._C._get_mkldnn_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    torch._C._set_mkldnn_enabled(False)
    try:
        with FlopCounterMode(display=False) as counter:
            run(model.requires_grad_(False), example)
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)
        torch._C._set_mkldnn_enabled(fused)
    return int(counter.get_total_flops())
