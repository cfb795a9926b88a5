"""Transposed convolutions are read like any other layer: least squares on their explicit rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import subprune
from subprune.cutting.masking import mask
from subprune.cutting.surgery import cut
from subprune.data.batches import batches
from subprune.fit.solver import solve
from subprune.statistics.calibration import Calibration
from subprune.statistics.columns import column_map
from subprune.statistics.consumers import consumer_weight, stored_weight
from subprune.statistics.patches import conv_rows
from subprune.statistics.place import Place
from subprune.statistics.targets import TARGETS
from subprune.structure.groups import Group

PLAIN = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}


@dataclass(frozen=True)
class Case:
    """Spatial lengths of the input, and the arguments of the layer."""

    size: Sequence[int]
    kernel: Any
    options: dict[str, Any]

    def model(self, seed: int = 0) -> nn.Sequential:
        """A convolution whose 4 or more outputs a transposed convolution with bias reads."""
        n, groups = len(self.size), self.options.get("groups", 1)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            first = PLAIN[n](2, 4 * groups, 3, padding=1)
            up = TRANSPOSED[n](4 * groups, 3 * groups, self.kernel, **self.options)
        return nn.Sequential(first, nn.ReLU(), up).double().eval()

    def inputs(self, seed: int = 1, count: int = 6) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(count, 2, *self.size, generator=generator, dtype=torch.float64)


CASES = {
    "1d": Case([9], 3, {"stride": 2}),
    "1d, far apart": Case([7], 2, {"stride": 3, "output_padding": 2}),
    "1d, dilated": Case([9], 3, {"stride": 2, "dilation": 3, "padding": 2}),
    "1d, cropped": Case([9], 2, {"padding": 3}),
    "2d": Case([5, 4], 2, {"stride": 2}),
    "2d, stride 1": Case([5, 4], 3, {"padding": 1}),
    "2d, a point": Case([4, 4], 1, {"stride": 2, "output_padding": 1}),
    "2d, uneven": Case(
        [5, 4], (3, 2), {"stride": (2, 1), "padding": (1, 0), "output_padding": (1, 0)}
    ),
    "2d, overlapping": Case([4, 4], 4, {"stride": 2, "padding": 1, "bias": False}),
    "2d, in groups": Case([5, 4], 3, {"stride": 2, "groups": 2, "padding": 1}),
    "2d, dilated groups": Case([4, 4], 2, {"dilation": 2, "groups": 2, "output_padding": 1}),
    "3d": Case([3, 2, 3], 2, {"stride": 2}),
    "3d, in groups": Case([3, 2, 3], (2, 1, 2), {"stride": (2, 1, 1), "groups": 2}),
}


def explicit_rows(up: nn.Module, x: Tensor) -> list[Tensor]:
    """What each weight multiplies, column by column: [rows, inputs / groups · taps] for each group.

    Column (c, u) is the output of a kernel that is 1 at tap u alone, on channel c alone; the taps
    are counted from the end, as the statistics count them.
    """
    own: Any = up
    run = {1: nn.functional.conv_transpose1d, 2: nn.functional.conv_transpose2d}.get(
        x.ndim - 2, nn.functional.conv_transpose3d
    )
    shape = (own.stride, own.padding, own.output_padding, 1, own.dilation)
    taps = int(np.prod(own.kernel_size))
    columns = []
    for channel in range(x.shape[1]):
        for tap in reversed(range(taps)):
            kernel = torch.zeros(taps, dtype=x.dtype)
            kernel[tap] = 1
            kernel = kernel.reshape(1, 1, *own.kernel_size)
            columns.append(run(x[:, channel : channel + 1], kernel, None, *shape).flatten())
    return list(torch.stack(columns, 1).chunk(own.groups, 1))


def calibrated(case: Case) -> tuple[nn.Sequential, Calibration, Group, Tensor]:
    model = case.model()
    calibration = Calibration.of(model, batches(case.inputs(), model))
    (group,) = calibration.structure.groups
    with torch.no_grad():
        return model, calibration, group, model[:2](case.inputs())


@pytest.mark.parametrize("name", CASES)
def test_rows_are_what_the_weights_multiply(name: str) -> None:
    model, calibration, group, x = calibrated(CASES[name])
    (consumer,) = group.reweightable
    columns = column_map(consumer, calibration.structure.program, "up")
    weight = consumer_weight(consumer, dict(model.named_parameters())).detach()
    assert columns.conv is not None
    found = torch.cat([rows for rows, _, _ in conv_rows(x, columns.conv, 5000)])
    expected = explicit_rows(model[2], x)
    assert torch.equal(found, torch.cat(expected, 1))
    with torch.no_grad():
        y = model[2](x)
        y = y if model[2].bias is None else y - model[2].bias.reshape(-1, *[1] * (y.ndim - 2))
    made = [
        rows @ w
        for rows, w in zip(
            found.chunk(group.consumers[0].groups, 1), columns.weight_blocks(weight), strict=True
        )
    ]
    torch.testing.assert_close(torch.cat(made, 1), y.movedim(1, -1).reshape(-1, y.shape[1]))
    torch.testing.assert_close(columns.output(x, weight), y)
    assert torch.equal(stored_weight(consumer, weight), model[2].weight)


@pytest.mark.parametrize("form", ["layer", "asymmetric"])
@pytest.mark.parametrize("name", CASES)
def test_gram_equals_lstsq_on_the_explicit_rows(name: str, form: str) -> None:
    model, calibration, group, x = calibrated(CASES[name])
    run = calibration.start()
    run.advance(group.consumers[0].use.op)
    blocks = TARGETS[form].gather(Place(group=group, current=run, dense=run)).blocks
    rows = explicit_rows(model[2], x)
    (consumer,) = group.reweightable
    weight = consumer_weight(consumer, run.tensors)
    assert len(blocks) == len(rows) == consumer.groups
    for block, B, own in zip(blocks, rows, weight.chunk(consumer.groups), strict=True):
        stats, Y = block.whole(), B @ own.flatten(1).T
        torch.testing.assert_close(stats.gram, B.T @ B)
        torch.testing.assert_close(stats.cross, B.T @ Y)
        assert stats.energy == pytest.approx(float(Y.square().sum()))
        assert stats.rows == len(B)
        torch.testing.assert_close(stats.sums, B.sum(0))
        chosen = stats.columns([1, 3])
        expected = np.linalg.lstsq(B[:, chosen].numpy(), Y.numpy(), rcond=1e-10)[0]
        fitted = solve(stats, [1, 3])
        left = float((Y - B[:, chosen] @ torch.from_numpy(expected)).square().sum())
        assert fitted.error * stats.energy == pytest.approx(left, rel=1e-8)
        dead = B[:, chosen].square().sum(0) == 0  # taps that meet padding only
        torch.testing.assert_close(
            fitted.weight[chosen][~dead], torch.from_numpy(expected)[~dead], rtol=1e-6, atol=1e-8
        )


class Decoder(nn.Module):
    """An encoder-decoder whose decoder is made of transposed convolutions, one of them grouped."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(3, 12, 3, 2, 1), nn.Conv2d(12, 16, 3, 2, 1)
        self.up1 = nn.ConvTranspose2d(16, 12, 4, 2, 1)
        self.up2 = nn.ConvTranspose2d(12, 8, 2, 2, groups=2)
        self.deep = nn.ConvTranspose2d(8, 16, 3, 1, 1, groups=8)  # depthwise, two outputs each
        self.out = nn.ConvTranspose2d(16, 3, 3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.down2(torch.relu(self.down1(x))))
        x = torch.relu(self.up2(torch.relu(self.up1(x))))
        return self.out(torch.relu(self.deep(x)))


def decoder() -> tuple[nn.Module, Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Decoder().eval(), torch.randn(24, 3, 16, 16)


def test_groups_of_a_decoder() -> None:
    model, x = decoder()
    structure = subprune.find_groups(model, x)
    found = {g.name: (g.n_units, [c.name for c in g.reweightable]) for g in structure}
    assert found == {
        "down1": (12, ["down2"]),
        "down2": (16, ["up1"]),
        "up1": (6, ["up2"]),  # 12 channels in 2 groups: a unit is one of each
        "up2": (4, ["out"]),  # and one of each of the 2 groups that made 8
    }
    assert not any(c.obstacle for g in structure for c in g.consumers)


def test_cut_equals_mask_for_every_group_and_all_together() -> None:
    model, x = decoder()
    structure = subprune.find_groups(model, x)
    some = {g.name: range(0, g.n_units, 2) for g in structure}
    for kept in (*({name: units} for name, units in some.items()), some):
        (masked,) = mask(model, structure, kept)(((x,), {}))
        small = cut(model, structure, kept)
        with torch.no_grad():
            torch.testing.assert_close(small(x), masked, rtol=1e-4, atol=1e-5)
        assert sum(p.numel() for p in small.parameters()) < sum(
            p.numel() for p in model.parameters()
        )


@pytest.mark.parametrize("group", ["down2", "up1", "up2"])
def test_pruning_refits_transposed_consumers(group: str) -> None:
    model, x = decoder()
    structure = subprune.find_groups(model, x)
    n = structure[group].n_units
    result = subprune.prune(model, x, budgets={group: n // 2})
    kept = next(g.kept for g in result.plan.groups if g.name == group)
    with torch.no_grad():
        dense, fitted = model(x), result.model(x)
    (plain,) = mask(model, structure, {group: kept})(((x,), {}))
    assert float((fitted - dense).norm()) < float((plain - dense).norm())
