"""Networks of the zoo that share, hide, reparametrise or branch."""

from __future__ import annotations

import random
import warnings
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations


class Twice(nn.Module):
    """The same middle layer is applied twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(5, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        return self.last(F.relu(self.middle(F.relu(self.middle(x)))))


class Uneven(nn.Module):
    """The first three of six units are read by two columns each."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(4, 6), nn.Linear(9, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc1(x)
        return self.fc2(torch.cat([y, y[:, :3]], 1))


class SharedHead(nn.Module):
    """One head reads two features in turn: it can be cut, but not refitted."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.head = nn.Linear(5, 8), nn.Linear(5, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.left(x))) - self.head(torch.tanh(self.right(x)))


class Autoencoder(nn.Module):
    """Decoder weights are the encoder's, transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.code = nn.Linear(6, 10), nn.Linear(10, 4)

    def forward(self, x: Tensor) -> Tensor:
        z = self.code(F.relu(self.hidden(x)))
        y = F.relu(F.linear(z, self.code.weight.t()))
        return F.linear(y, self.hidden.weight.t())


def weight_normed() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3),
        nn.ReLU(),
        parametrizations.weight_norm(nn.Conv2d(6, 5, 3)),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(5 * 16, 7),
        nn.ReLU(),
        nn.Linear(7, 3),
    )


def spectral_normed() -> nn.Module:
    return nn.Sequential(
        nn.Linear(4, 6),
        nn.ReLU(),
        parametrizations.spectral_norm(nn.Linear(6, 7)),
        nn.ReLU(),
        nn.Linear(7, 9),
        nn.ReLU(),
        nn.Linear(9, 2),
    )


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(4, 6), nn.Linear(6, 5)
        self.lstm = nn.LSTM(5, 7, batch_first=True)
        self.fc3, self.fc4 = nn.Linear(7, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.lstm(self.fc2(F.relu(self.fc1(x))))
        return self.fc4(F.relu(self.fc3(y[:, -1])))


class Stepwise(nn.Module):
    """Both directions of two layers, then a cell, step by step."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(4, 6), nn.Linear(6, 5)
        self.gru = nn.GRU(5, 3, num_layers=2, bidirectional=True, batch_first=True)
        self.cell = nn.LSTMCell(6, 4)
        self.fc3, self.fc4 = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.gru(self.fc2(F.relu(self.fc1(x))))
        state = None
        for step in y.unbind(1):
            state = self.cell(step, state)
        assert state is not None
        return self.fc4(F.relu(self.fc3(state[0])))


class Branch(nn.Module):
    """Looks at the values to decide what to do."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(5, 5), nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) if x.sum() > 0 else self.b(x)


class Branching(nn.Module):
    """The branch sits in a submodule: the rest stays prunable."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.branch = nn.Linear(4, 6), nn.Linear(6, 5), Branch()
        self.fc3, self.fc4 = nn.Linear(5, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.branch(self.fc2(F.relu(self.fc1(x))))
        return self.fc4(F.relu(self.fc3(y)))


class BranchingRoot(nn.Module):
    """The model's own forward branches: nothing can be recorded."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.fc1(x))
        return self.fc2(y if y.mean() > 0 else -y)


class Unknown(nn.Module):
    """An operation without a rule in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.cummax(self.fc2(F.relu(self.fc1(x))), dim=1).values
        return self.fc3(y)


class MovingAverage(nn.Module):
    """Keeps a running buffer that it writes in place, as some losses and quantisers do."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(4, 6), nn.Linear(6, 3)
        self.register_buffer("seen", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.fc1(x))
        self.seen.mul_(0.9).add_(0.1 * y.mean(0))
        return self.fc2(y - self.seen)


class OldWeightNorm(nn.Module):
    """Weight norm by a hook, as before parametrisations."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc3, self.fc4 = nn.Linear(4, 6), nn.Linear(5, 7), nn.Linear(7, 3)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.fc2 = nn.utils.weight_norm(nn.Linear(6, 5))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc4(F.relu(self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))))


class Experts(nn.Module):
    """All experts as one parameter, mixed by a gate: each hidden unit goes from all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.inp, self.gate = nn.Linear(5, 6), nn.Linear(6, 3)
        self.up, self.down = nn.Parameter(torch.randn(3, 6, 8)), nn.Parameter(torch.randn(3, 8, 6))
        self.out = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.inp(x))
        gates = self.gate(y).softmax(-1)
        z = torch.einsum("nd,edh->neh", y, self.up).relu()
        z = torch.einsum("neh,ehd->ned", z, self.down)
        return self.out((z * gates[..., None]).sum(1))


class DictOutput(nn.Module):
    """Several outputs in a dict; an intermediate one cannot go."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(4, 6), nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor, scale: Tensor | None = None) -> dict[str, Tensor]:
        h = F.relu(self.fc1(x))
        y = self.fc2(h)
        return {"features": y, "logits": self.fc3(F.relu(y)) * (1 if scale is None else scale)}


class Inplace(nn.Module):
    """In-place activations, additions and writes into slices."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.fc4, self.fc5 = nn.Linear(3, 7), nn.Linear(7, 3)

    def forward(self, x: Tensor) -> Tensor:
        x -= 0.5
        y = F.relu(self.fc1(x), inplace=True)
        y += self.fc2(y)
        z = self.fc3(y)
        z[:, 0] = 1.0
        return self.fc5(F.silu(self.fc4(z), inplace=True))


class TwoNames(nn.Module):
    """One layer, registered under two names, and used under the second."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.hidden, self.classifier = (
            nn.Linear(5, 8),
            nn.Linear(8, 7),
            nn.Linear(7, 3),
        )
        self.fc = self.classifier

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.relu(self.hidden(F.relu(self.features(x)))))


def repeated() -> nn.Module:
    """The same layer twice in a Sequential, with a layer before and after that are not repeated."""
    shared = nn.Linear(8, 8)
    return nn.Sequential(
        nn.Linear(5, 8),
        nn.ReLU(),
        shared,
        nn.ReLU(),
        shared,
        nn.ReLU(),
        nn.Linear(8, 6),
        nn.ReLU(),
        nn.Linear(6, 3),
    )


class SharedBlock(nn.Module):
    """A whole block with a norm, a buffer and a tied weight, under two names and run under both."""

    def __init__(self) -> None:
        super().__init__()
        block = nn.Sequential(
            nn.Conv2d(4, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 4, 1)
        )
        self.stem, self.first, self.second = nn.Conv2d(3, 4, 1), block, block
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = x + self.first(x)
        x = x + self.second(x)
        return self.head(x.mean((2, 3)))


class Caching(nn.Module):
    """Leaves all sorts of things behind: attributes, entries of lists and dicts, numbers written in
    place.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(4, 6), nn.Linear(6, 5), nn.Linear(5, 3)
        self.register_buffer("calls", torch.zeros(1))
        self.plain, self.outputs, self.by_name = torch.zeros(1), [torch.ones(2)], {"calls": 0}

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.fc1(x))
        self.last = y
        self.outputs.append(y)
        self.outputs[0].add_(1)
        self.by_name["calls"] += 1
        self.by_name["y"] = y
        self.calls.add_(1)
        self.plain += 1
        self.fc2.seen = y
        return self.fc3(F.relu(self.fc2(y)))


class Noisy(nn.Module):
    """Draws random numbers in eval mode too, as a decoder that samples does."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(4, 6), nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.fc1(x)) * (1 + 0.1 * torch.randn(x.shape[0], 1))
        return self.fc3(F.relu(self.fc2(y))) + 0.1 * torch.randn(x.shape[0], 3)


class Counts(dict[str, int]):
    """A dict with manners of its own."""

    def __setitem__(self, key: str, value: int) -> None:
        super().__setitem__(key, value + 1)


@dataclass
class Memory:
    """What a forward run remembers, as the caches of attention are."""

    last: Tensor | None = None
    calls: int = 0
    sums: Tensor = field(default_factory=lambda: torch.zeros(6))
    earlier: list[Any] = field(default_factory=list)


class Remembering(nn.Module):
    """Keeps tensors, numbers and random numbers in objects that are no modules, one in another."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(4, 6), nn.Linear(6, 5), nn.Linear(5, 3)
        self.memory, self.counts = Memory(earlier=[Memory(sums=torch.ones(1))]), Counts(calls=0)
        self.names = SimpleNamespace(first=None)
        self.draws = [torch.Generator(), random.Random(0), np.random.default_rng(0)]

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.fc1(x))
        torch.rand(1, generator=self.draws[0]), self.draws[1].random(), self.draws[2].random()
        self.memory.last = self.memory.earlier[0].last = self.names.first = y
        self.memory.calls += 1
        self.memory.earlier[0].sums += 1
        self.memory.earlier.append(y)
        self.counts["calls"] = 1
        return self.fc3(F.relu(self.fc2(y)))


class Pooled(nn.Module):
    """Pooling between two convolutions, for features with or without a batch dimension, or one too
    few.
    """

    def __init__(self, dims: int, pool: nn.Module) -> None:
        super().__init__()
        layer = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
        self.first, self.pool, self.last = layer(3, 8, 3), pool, layer(8, 5, 1)
        self.over = tuple(range(-dims, 0))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.pool(F.relu(self.first(x)))).mean(self.over)


class Massive(nn.Module):
    """Two layers alike, but one receives a few tokens at their full size, however large they are."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ModuleList([nn.Linear(16, 64), nn.Linear(16, 64)])
        self.down = nn.ModuleList([nn.Linear(64, 16), nn.Linear(64, 16)])
        self.up[1].load_state_dict(self.up[0].state_dict())
        self.down[1].load_state_dict(self.down[0].state_dict())

    def forward(self, x: Tensor) -> Tensor:
        first = self.down[0](F.relu(self.up[0](x)))
        return first + self.down[1](F.relu(self.up[1](x.clamp(-3, 3))))
