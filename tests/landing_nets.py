"""Small networks whose layers land after norms and sums, and a slow refit of one of their layers.

Every landing has an `nn.Identity` of its own, so that its value can be looked at with a hook: the
slow refit knows nothing of the package. It unfolds patches, and solves by numpy's lstsq.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

Array = np.ndarray


def made(make: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    """A network in float64 whose norms have random factors, of both signs, and shifts."""
    torch.manual_seed(seed)
    model = make().double().eval()
    with torch.no_grad():
        for m in model.modules():
            if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d):
                sign = torch.randint_like(m.weight, 0, 2) * 2 - 1
                m.weight.copy_((torch.rand_like(m.weight) + 0.5) * sign)
                m.bias.copy_(torch.randn_like(m.bias) * 0.3)
                m.running_mean.copy_(torch.randn_like(m.running_mean) * 0.3)
                m.running_var.copy_(torch.rand_like(m.running_var) + 0.5)
    return model


def conv(inputs: int, outputs: int, size: int = 3, **options: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, padding=size // 2, bias=False, **options)  # type: ignore[arg-type]


class Plain(nn.Module):
    """conv–BN–ReLU, twice; with a bias only in the head."""

    def __init__(self, groups: int = 1) -> None:
        super().__init__()
        self.c1, self.b1, self.n1 = conv(3, 8), nn.BatchNorm2d(8), nn.Identity()
        self.c2, self.b2 = conv(8, 6, groups=groups), nn.BatchNorm2d(6)
        self.n2, self.head, self.out = nn.Identity(), nn.Linear(6, 4), nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.n1(self.b1(self.c1(x))))
        x = F.relu(self.n2(self.b2(self.c2(x))))
        return self.out(self.head(x.mean((2, 3))))


class Blocks(nn.Module):
    """Two basic blocks: an identity shortcut, and a convolution that runs after the branch."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.b0 = conv(3, 6), nn.BatchNorm2d(6)
        self.c1, self.b1, self.n1 = conv(6, 8), nn.BatchNorm2d(8), nn.Identity()
        self.c2, self.b2, self.t1 = conv(8, 6), nn.BatchNorm2d(6), nn.Identity()
        self.c3, self.b3, self.n3 = conv(6, 8, stride=2), nn.BatchNorm2d(8), nn.Identity()
        self.c4, self.b4, self.t2 = conv(8, 7), nn.BatchNorm2d(7), nn.Identity()
        self.down, self.bd = conv(6, 7, 1, stride=2), nn.BatchNorm2d(7)
        self.head, self.out = nn.Linear(7, 4), nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.b0(self.stem(x)))
        y = F.relu(self.n1(self.b1(self.c1(x))))
        x = F.relu(self.t1(self.b2(self.c2(y)) + x))
        y = self.b4(self.c4(F.relu(self.n3(self.b3(self.c3(x))))))
        x = F.relu(self.t2(y + self.bd(self.down(x))))
        return self.out(self.head(x.mean((2, 3))))


class Stream(nn.Module):
    """Pre-norm blocks of linear layers, added to a stream; those that are added have no bias."""

    def __init__(self, bias: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(5, 6)
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(6) for _ in range(3))
        self.up1, self.n1 = nn.Linear(6, 10), nn.Identity()
        self.down1, self.t1 = nn.Linear(10, 6, bias=bias), nn.Identity()
        self.up2, self.n2 = nn.Linear(6, 10), nn.Identity()
        self.down2, self.t2 = nn.Linear(10, 6, bias=bias), nn.Identity()
        self.head, self.out = nn.Linear(6, 4), nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = self.t1(self.down1(F.gelu(self.n1(self.up1(self.norm1(x))))) + x)
        x = self.t2(x + self.down2(F.gelu(self.n2(self.up2(self.norm2(x))))))
        return self.out(self.head(self.norm3(x)))


class Rows(nn.Module):
    """Linear layers with BatchNorm, then two sums in a row."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.ba, self.na = nn.Linear(5, 10, bias=False), nn.BatchNorm1d(10), nn.Identity()
        self.b, self.bb = nn.Linear(10, 5, bias=False), nn.BatchNorm1d(5)
        self.side, self.t = nn.Linear(5, 5), nn.Identity()
        self.head, self.out = nn.Linear(5, 3), nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.bb(self.b(F.relu(self.na(self.ba(self.a(x))))))
        return self.out(self.head(F.relu(self.t(y + x + torch.tanh(self.side(x))))))


@dataclass(frozen=True)
class Layer:
    """One layer to fit: where its output lands, the norm on the way, and where a constant goes."""

    name: str
    lands: str  # the identity there
    norm: str | None = None
    group: str | None = None  # the group that it reads, where that is pruned
    rectified: bool = False
    constant: bool = True


@dataclass(frozen=True)
class Net:
    """A network, the layers that are refitted in forward order, and its inputs."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    keep: dict[str, int]
    layers: tuple[Layer, ...]

    def build(self) -> nn.Module:
        return made(self.make)

    def data(self, n: int = 0, seed: int = 7) -> Tensor:
        n = n or (24 if len(self.shape) > 1 else 60)
        random = torch.Generator().manual_seed(seed)
        return torch.randn(n, *self.shape, generator=random, dtype=torch.float64) + 0.2


def relu(name: str, lands: str, norm: str, group: str | None = None) -> Layer:
    return Layer(name, lands, norm, group, rectified=True)


NETS = {
    "plain": Net(Plain, (3, 6, 6), {"c1": 4}, (relu("c2", "n2", "b2", "c1"), Layer("head", "out"))),
    "grouped": Net(
        lambda: Plain(2),
        (3, 6, 6),
        {"c1": 2},
        (relu("c2", "n2", "b2", "c1"), Layer("head", "out")),
    ),
    "blocks": Net(
        Blocks,
        (3, 6, 6),
        {"c1": 4, "c3": 3},
        (
            relu("c2", "t1", "b2", "c1"),
            relu("c3", "n3", "b3"),
            relu("c4", "t2", "b4", "c3"),
            relu("down", "t2", "bd"),
            Layer("head", "out"),
        ),
    ),
    "stream": Net(
        Stream,
        (5,),
        {"up1": 4, "up2": 3},
        (
            Layer("down1", "t1", group="up1", constant=False),
            Layer("up2", "n2"),
            Layer("down2", "t2", group="up2", constant=False),
            Layer("head", "out"),
        ),
    ),
    "rows": Net(Rows, (5,), {"a": 4}, (relu("b", "t", "bb", "a"), Layer("head", "out"))),
}


# ---- the slow refit --------------------------------------------------------------------------


def seen(model: nn.Module, x: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """What a module reads and gives."""
    values: list[tuple[Tensor, Tensor]] = []
    module = model.get_submodule(name)
    handle = module.register_forward_hook(lambda m, args, y: values.append((args[0], y)))
    with torch.no_grad():
        model(x)
    handle.remove()
    return values[0]


def as_rows(x: Tensor) -> Array:
    """[N, outputs, *spatial] as [positions, outputs]."""
    return x.movedim(1, -1).reshape(-1, x.shape[1]).numpy()


def patches(module: nn.Module, x: Tensor) -> Array:
    """The inputs of a layer as rows: columns channel by channel, then by kernel position."""
    if isinstance(module, nn.Linear):
        return x.reshape(-1, x.shape[-1]).numpy()
    assert isinstance(module, nn.Conv2d)
    windows = F.unfold(x, module.kernel_size, module.dilation, module.padding, module.stride)  # type: ignore[arg-type]
    return as_rows(windows)


def factor(model: nn.Module, layer: Layer) -> Array:
    """What the norm on the way multiplies by."""
    if layer.norm is None:
        return np.ones(1)
    norm = model.get_submodule(layer.norm)
    return (norm.weight / (norm.running_var + norm.eps).sqrt()).detach().numpy()


def columns_of(module: nn.Module, kept: Sequence[int] | None) -> Array:
    """[inputs · taps] bool: which columns stay."""
    inputs = module.in_features if isinstance(module, nn.Linear) else module.in_channels
    on = np.ones(inputs, bool)
    if kept is not None:
        # A unit of a grouped convolution is one input of every group.
        groups = getattr(module, "groups", 1)
        on = np.tile(np.isin(np.arange(inputs // groups), list(kept)), groups)
    taps = 1 if isinstance(module, nn.Linear) else int(np.prod(module.kernel_size))
    return np.repeat(on, taps)


@dataclass
class Problem:
    """Least squares for one layer: rows [n, d], the dense landing and the rest of the pruned one."""

    rows: Array
    wanted: Array  # [n, m], the dense model's values at the landing
    rest: Array  # [n, m], what the pruned model adds to the layer's product there
    factor: Array  # [m] or [1]

    @classmethod
    def of(cls, current: nn.Module, dense: nn.Module, x: Tensor, layer: Layer) -> Problem:
        module = current.get_submodule(layer.name)
        inputs, output = seen(current, x, layer.name)
        bias = getattr(module, "bias", None)
        product = as_rows(output) - (0 if bias is None else bias.detach().numpy())
        scale = factor(current, layer)
        here, wanted = (as_rows(seen(m, x, layer.lands)[1]) for m in (current, dense))
        return cls(patches(module, inputs), wanted, here - scale * product, scale)

    def target(self, wanted: Array) -> Array:
        return (wanted - self.rest) / self.factor


def lstsq(rows: Array, target: Array, on: Array, constant: bool, groups: int) -> Array:
    """Weights [d, m], zero where columns are off, and a last row for the constant [1 + d, m]."""
    d, m = rows.shape[1], target.shape[1]
    new = np.zeros((d // groups + 1, m))
    for rows_of, on_of, out in zip(
        np.split(rows, groups, 1), np.split(on, groups), np.split(np.arange(m), groups), strict=True
    ):
        ones = np.ones((len(rows), int(constant)))
        found = np.linalg.lstsq(np.hstack([rows_of[:, on_of], ones]), target[:, out], rcond=None)[0]
        new[np.ix_(np.append(on_of, constant), out)] = found
    return new


def refit(
    current: nn.Module,
    dense: nn.Module,
    x: Tensor,
    layer: Layer,
    kept: Sequence[int] | None,
    rounds: int,
) -> None:
    """Fit one layer of `current`, in place, and write its constant into a bias."""
    problem = Problem.of(current, dense, x, layer)
    module = current.get_submodule(layer.name)
    on, groups = columns_of(module, kept), getattr(module, "groups", 1)
    wanted = problem.wanted
    for again in range(1 + (rounds if layer.rectified else 0)):
        new = lstsq(problem.rows, problem.target(wanted), on, layer.constant, groups)
        if again < rounds:
            given = problem.factor * product(problem.rows, new, groups) + problem.rest
            wanted = np.where(problem.wanted < 0, np.minimum(given, 0), problem.wanted)
    with torch.no_grad():
        module.weight.copy_(torch.from_numpy(new[:-1].T.copy()).view_as(module.weight))
        if layer.constant and layer.norm is not None:
            norm = current.get_submodule(layer.norm)
            norm.bias += torch.from_numpy(problem.factor * new[-1])
        elif layer.constant:
            module.bias += torch.from_numpy(new[-1])


def product(rows: Array, new: Array, groups: int) -> Array:
    """What weights [1 + d, m] give, with the constant."""
    parts = zip(np.split(rows, groups, 1), np.split(new, groups, 1), strict=True)
    return np.hstack([r @ w[:-1] + w[-1] for r, w in parts])


def slow_refit(
    net: Net, dense: nn.Module, x: Tensor, kept: dict[str, Sequence[int]], rounds: int
) -> nn.Module:
    """The whole network, layer by layer, as method "auto" goes through it with no ridge."""
    current = copy.deepcopy(dense)
    for layer in net.layers:
        chosen = None if layer.group is None else kept[layer.group]
        refit(current, dense, x, layer, chosen, rounds)
    return current


def slow_choice(problem: Problem, k: int, taps: int, felt: Array, constant: bool) -> list[int]:
    """Greedy by trying: each time the unit that leaves least, weighted, fitted with a constant."""
    n, kept = problem.rows.shape[1] // taps, []
    target = problem.target(problem.wanted)
    for _ in range(k):
        errors = {}
        for unit in set(range(n)) - set(kept):
            on = np.repeat(np.isin(np.arange(n), [*kept, unit]), taps)
            new = lstsq(problem.rows, target, on, constant, 1)
            left = (target - product(problem.rows, new, 1)) * problem.factor * felt
            errors[unit] = np.square(left).sum()
        kept.append(min(errors, key=lambda unit: errors[unit]))
    return kept
