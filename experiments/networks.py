"""The default against the paper's best method on networks of different kinds.

    python experiments/networks.py --data-dir DATA --models-dir MODELS [--only NAME …]

LeNet, VGG11 and ResNet56 as they come; a network with depthwise convolutions, a densely connected
one, a small vision transformer and a small language model are trained here first, briefly: what
counts is how much of what they do is kept. Calibrated on 512 training inputs drawn by seed, judged
on other training inputs that nothing was trained or calibrated on where the network is trained
here, never on test images. Accuracy in per cent; the language model's perplexity. Rows go to
experiments/results/networks.csv.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from csv_rows import read_rows, write_rows
from torch import Tensor, nn

import subprune
from subprune.budget.felt import Felt
from subprune.zoo.datasets import load
from subprune.zoo.models import build, shipped_lenet
from subprune.zoo.weights import load_weights

ROWS = Path(__file__).parent / "results" / "networks.csv"
METHODS: dict[str, dict[str, Any]] = {
    "asym-in-change": {"method": "asym-in-change"},
    "auto": {},
    "auto, felt errors alone": {"allocate": Felt(share=1.0)},
    "auto, relative errors alone": {"allocate": "balanced"},
    "auto, refine": {"refine": 4},
}
USUAL = ("asym-in-change", "auto")


# ---- networks that are trained here ----------------------------------------------------------


def depthwise_block(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    """Expand, filter every channel by itself, project: without a shortcut."""
    wide = 4 * inputs
    return nn.Sequential(
        nn.Conv2d(inputs, wide, 1, bias=False),
        nn.BatchNorm2d(wide),
        nn.ReLU(),
        nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False),
        nn.BatchNorm2d(wide),
        nn.ReLU(),
        nn.Conv2d(wide, outputs, 1, bias=False),
        nn.BatchNorm2d(outputs),
    )


class Mobile(nn.Module):
    """Inverted residuals with depthwise convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16))
        shapes = [(16, 16, 1), (16, 24, 2), (24, 24, 1), (24, 48, 2), (48, 48, 1)]
        self.blocks = nn.ModuleList(depthwise_block(*shape) for shape in shapes)
        self.head = nn.Linear(48, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        for block in self.blocks:
            y = block(x)
            x = x + y if y.shape == x.shape else y
        return self.head(x.mean((2, 3)))


class Dense(nn.Module):
    """Every layer reads all those before it in its stage."""

    def __init__(self, growth: int = 16) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, 2, 1, bias=False)
        self.stages = nn.ModuleList()
        width = 32
        for _ in range(2):
            stage = nn.ModuleList()
            for _ in range(4):
                stage.append(
                    nn.Sequential(
                        nn.BatchNorm2d(width),
                        nn.ReLU(),
                        nn.Conv2d(width, 4 * growth, 1, bias=False),
                        nn.BatchNorm2d(4 * growth),
                        nn.ReLU(),
                        nn.Conv2d(4 * growth, growth, 3, 1, 1, bias=False),
                    )
                )
                width += growth
            self.stages.append(stage)
        self.norm, self.head = nn.BatchNorm2d(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for stage in self.stages:
            for layer in stage:  # type: ignore[attr-defined]
                x = torch.cat([x, layer(x)], 1)
            x = F.avg_pool2d(x, 2)
        return self.head(torch.relu(self.norm(x)).mean((2, 3)))


class Attention(nn.Module):
    """Several heads; causal where asked for."""

    def __init__(self, width: int, heads: int, causal: bool, bias: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.q, self.k, self.v, self.out = (nn.Linear(width, width, bias=bias) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        n, length, _ = x.shape
        q, k, v = (
            layer(x).view(n, length, self.heads, -1).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(y.transpose(1, 2).flatten(2))


class VitBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, 4, causal=False, bias=True)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Vit(nn.Module):
    """A vision transformer on digits."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, 4, 4)
        self.places = nn.Parameter(0.02 * torch.randn(49, width))
        self.blocks = nn.Sequential(*(VitBlock(width) for _ in range(4)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2) + self.places
        return self.head(self.norm(self.blocks(x)).mean(1))


class LlamaBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention = Attention(width, 8, causal=True, bias=False)
        self.gate, self.up = (nn.Linear(width, 3 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """A language model over bytes."""

    def __init__(self, width: int = 96, length: int = 64) -> None:
        super().__init__()
        self.tokens = nn.Embedding(256, width)
        self.places = nn.Parameter(0.02 * torch.randn(length, width))
        self.blocks = nn.Sequential(*(LlamaBlock(width) for _ in range(4)))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, 256, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.tokens(ids) + self.places)))


# ---- data, training and judging --------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A network with what calibrates and judges it."""

    model: nn.Module
    calibration: Tensor
    judge: Callable[[nn.Module], float]


@torch.no_grad()
def top1(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    answers = torch.cat([model(part).argmax(1) for part in images.split(500)])
    return round(100 * float((answers == labels).double().mean()), 2)


@torch.no_grad()
def perplexity(model: nn.Module, rows: Tensor) -> float:
    losses = [
        F.cross_entropy(model(part)[:, :-1].flatten(0, 1), part[:, 1:].flatten())
        for part in rows.split(100)
    ]
    return round(float(torch.stack(losses).mean().exp()), 3)


def trained(
    model: nn.Module, loss: Callable[[nn.Module, int], Tensor], steps: int, rate: float = 2e-3
) -> nn.Module:
    """A few minutes of Adam with a rate that falls to zero."""
    optimiser = torch.optim.Adam(model.train().parameters(), rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, total_steps=steps)
    for step in range(steps):
        optimiser.zero_grad()
        loss(model, step).backward()
        optimiser.step()
        schedule.step()
    return model.eval()


def images_case(make: Callable[[], nn.Module], data: str, folder: Path, steps: int) -> Case:
    """A network trained here on the first 80% of the training images."""
    train = load(data, "train", folder)
    torch.manual_seed(0)
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(42))
    cut = len(train) * 4 // 5
    images, labels = train.inputs(order), train.labels[order]

    def loss(model: nn.Module, step: int) -> Tensor:
        at = torch.randint(0, cut, (128,))
        x = images[at]
        return F.cross_entropy(model(x.flip(3) if step % 2 and data != "mnist" else x), labels[at])

    model = trained(make(), loss, steps)
    judged = slice(cut, cut + 5000)
    return Case(model, images[:512], lambda m: top1(m, images[judged], labels[judged]))


def text_case(folder: Path, steps: int) -> Case:
    """A language model trained here on the first 80% of the bytes."""
    path = next((folder / "wikitext-2").rglob("*test*"))
    ids = torch.tensor(list(path.read_bytes()))
    cut, length = len(ids) * 4 // 5, 64
    torch.manual_seed(0)

    def rows(count: int, first: int, last: int) -> Tensor:
        starts = torch.randint(first, last - length, (count,)).tolist()
        return torch.stack([ids[s : s + length] for s in starts])

    def loss(model: nn.Module, step: int) -> Tensor:
        part = rows(64, 0, cut)
        return F.cross_entropy(model(part)[:, :-1].flatten(0, 1), part[:, 1:].flatten())

    model = trained(Llama(), loss, steps)
    judged = rows(500, cut, len(ids))
    return Case(model, rows(512, 0, cut), lambda m: perplexity(m, judged))


def given_case(name: str, options: argparse.Namespace) -> Case:
    """A network that comes with its weights."""
    data = "mnist" if name == "lenet" else "cifar10"
    model: nn.Module = shipped_lenet()[0] if name == "lenet" else build(name)
    if name != "lenet":
        load_weights(model, options.models_dir / f"{name}-cifar10.safetensors")
    train = load(data, "train", options.data_dir)
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(42))
    judged = order[2000:7000]
    images, labels = train.inputs(judged), train.labels[judged]
    return Case(model.eval(), train.inputs(order[:512]), lambda m: top1(m, images, labels))


def cases(options: argparse.Namespace) -> dict[str, Callable[[], Case]]:
    folder = options.data_dir
    return {
        "LeNet": lambda: given_case("lenet", options),
        "depthwise": lambda: images_case(Mobile, "cifar10", folder, 700),
        "densely connected": lambda: images_case(Dense, "cifar10", folder, 500),
        "vision transformer": lambda: images_case(Vit, "mnist", folder, 500),
        "language model": lambda: text_case(folder, 700),
        "VGG11": lambda: given_case("vgg11", options),
        "ResNet56": lambda: given_case("resnet56", options),
    }


def rows(
    name: str, case: Case, ratios: list[float], methods: list[str]
) -> Iterator[dict[str, Any]]:
    dense = case.judge(case.model)
    for ratio in ratios:
        for method in methods:
            started = time.process_time()
            result = subprune.prune(
                case.model,
                case.calibration,
                compression=ratio,
                **METHODS[method],
                n_samples=None,
                time_calls=False,
                progress=False,
            )
            yield {
                "network": name,
                "compression": ratio,
                "method": method,
                "dense": dense,
                "pruned": case.judge(result.model),
                "agreement_reported": round(100 * (result.report.agreement or 0), 1),
                "cpu_seconds": round(time.process_time() - started, 1),
                "machine": f"{platform.machine()}, torch {torch.__version__}",
            }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--models-dir", type=Path, required=True)
    parser.add_argument("--only", nargs="+")
    parser.add_argument("--ratios", type=float, nargs="+", default=[1.25, 1.5, 2, 4])
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(USUAL))
    options = parser.parse_args()
    written = read_rows(ROWS)
    for name, make in cases(options).items():
        if options.only and name not in options.only:
            continue
        written = [row for row in written if row["network"] != name]
        for row in rows(name, make(), options.ratios, options.methods):
            print(row, flush=True)
            written.append(row)
        write_rows(ROWS, written)


if __name__ == "__main__":
    main()
