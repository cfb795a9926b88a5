"""Replays with operations run as one equal the plain ones up to rounding, from any point to any
other.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from subprune.program.program import model_tensors
from subprune.program.record import record
from subprune.zoo.models import build


class Odd(nn.Module):
    """Everything that may not be fused, beside what may."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = (
            nn.Conv2d(3, 6, 3, padding=1),
            nn.Conv2d(6, 6, 3, padding=1, groups=2, bias=False),
        )
        self.norm, self.bare = nn.BatchNorm2d(6), nn.BatchNorm2d(6, affine=False)
        self.up, self.out = nn.ConvTranspose2d(6, 4, 2), nn.Linear(4 * 81, 5)

    def forward(self, x: Tensor) -> Tensor:
        """[N, 3, 8, 8] → [N, 5]."""
        y = self.a(x)
        z = self.norm(y) + y  # y is read twice
        z = torch.relu(self.bare(self.b(z)) + z.mean(1, keepdim=True))  # added with another shape
        z = torch.relu(z + self.a(x))  # added to what was made later
        return self.out(torch.relu(self.up(z)).flatten(1))


def randomise(model: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean = torch.randn(module.num_features, generator=generator) * 0.1
            module.running_var = torch.rand(module.num_features, generator=generator) + 0.5
    return model.eval()


@pytest.mark.parametrize("name", ["resnet20", "resnet20-b", "vgg11", "lenet", "odd"])
def test_fused_equals_plain(name: str) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = randomise(Odd() if name == "odd" else build(name))
        x = torch.randn(*{"lenet": (4, 1, 28, 28), "odd": (4, 3, 8, 8)}.get(name, (4, 3, 32, 32)))
    program = record(model, ((x,), {}))
    tensors = model_tensors(model, program)
    (plain,) = program.call(((x,), {}), tensors)
    (fused,) = program.call(((x,), {}), tensors, fuse={})
    assert program.chains
    assert float((plain - fused).abs().max()) <= 1e-5 * float(plain.abs().max())
    # stopping between any two operations changes nothing
    for stop in range(0, len(program.ops), 5):
        env = program.run(program.bind(((x,), {})), tensors, 0, stop, fuse={})
        env = program.run(env, tensors, stop, fuse={})
        assert float((env[program.outputs[0]] - plain).abs().max()) <= 1e-5 * float(
            plain.abs().max()
        )


def test_overridden_operations_are_not_fused() -> None:
    model, x = (
        randomise(build("resnet20")),
        torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1)),
    )
    program = record(model, ((x,), {}))
    tensors = model_tensors(model, program)
    seen = []
    relu = next(op for op in program.ops if op.kind == "relu")
    program.call(
        ((x,), {}),
        tensors,
        fuse={},
        override={relu.index: lambda op, a, k: seen.append(1) or op.func(*a, **k)},
    )
    assert seen == [1]


def test_float64_goes_the_ordinary_way() -> None:
    model = randomise(build("resnet20")).double()
    x = torch.randn(2, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    program = record(model, ((x,), {}))
    tensors = model_tensors(model, program)
    assert torch.equal(
        program.call(((x,), {}), tensors)[0], program.call(((x,), {}), tensors, fuse={})[0]
    )
