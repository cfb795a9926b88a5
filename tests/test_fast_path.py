"""The fast path picks the same units as the paper's formulas on raw activations, on every layer of
real networks.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from shared import SHARED, needs_shared
from torch import Tensor, nn
from views import statistics_at

from subprune.data.batches import batches
from subprune.select.greedy import greedy
from subprune.select.keep_order import KeepOrder
from subprune.statistics.calibration import Calibration
from subprune.statistics.columns import column_map
from subprune.statistics.patches import conv_rows
from subprune.statistics.runs import Run
from subprune.structure.groups import Group, in_order
from subprune.zoo.datasets import load
from subprune.zoo.models import build, shipped_lenet
from subprune.zoo.weights import load_weights

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def plain() -> ModuleType:
    """Proposition 3.2 as it stands, from the benchmarks."""
    spec = importlib.util.spec_from_file_location("benchmark_plain", BENCHMARKS / "plain.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def at_consumer(model: nn.Module, images: Tensor, name: str) -> tuple[Group, Run]:
    calibration = Calibration.of(model, batches(images, model))
    group = calibration.structure[name]
    run = calibration.start()
    run.advance(min(c.use.op for c in group.consumers))
    return group, run


def raw(group: Group, run: Run) -> tuple[Tensor, Tensor, Tensor]:
    """A, W and the units of the columns."""
    consumer = group.reweightable[0]
    how = column_map(consumer, run.programs[0], consumer.name)
    inputs = torch.cat([run.argument(consumer.use.op, i) for i in range(len(run.envs))])
    rows = inputs if how.conv is None else torch.cat([r for r, _, _ in conv_rows(inputs, how.conv)])
    return rows, how.weight_blocks(run.tensors[consumer.use.weight])[0], how.column_units()[0]


def same_or_tied(plain: ModuleType, group: Group, run: Run, steps: int, tie: float) -> None:
    """The same picks, or the first different one gains as much, within `tie` of that gain."""
    found: KeepOrder = greedy(statistics_at(group, run), group.n_units)
    rows, weight, units = raw(group, run)
    expected = plain.select(rows, weight, units, steps)
    for step, (a, b) in enumerate(zip(found.order[:steps], expected.order, strict=True)):
        if a != b:
            gap = abs(float(found.gains[step]) - expected.gains[step])
            assert gap <= tie * expected.gains[step], (group.name, step, a, b)
            return
    gains = torch.tensor(expected.gains, dtype=torch.float64)
    noise = 1e-9 if rows.dtype == torch.float64 else 1e-6  # of products in that precision
    torch.testing.assert_close(
        found.gains[:steps], gains, rtol=1e-5, atol=noise * float(gains.sum())
    )


LENET = ("conv1", "conv2", "fc1", "fc2")
RESNET = [f"layer{stage}.{block}.conv1" for stage in (1, 2, 3) for block in range(9)]


@pytest.mark.parametrize(
    ("dtype", "images"), [(torch.float64, 160), (torch.float64, 512), (torch.float32, 512)]
)
@pytest.mark.parametrize("name", LENET)
def test_lenet(plain: ModuleType, name: str, dtype: torch.dtype, images: int) -> None:
    """160 images are fewer rows than fc1 has columns: in float32 the last picks are then made among
    noise.
    """
    model = shipped_lenet()[0].to(dtype)
    group, run = at_consumer(
        model, load("mnist-sample", "train").inputs(torch.arange(images)).to(dtype), name
    )
    same_or_tied(plain, group, run, group.n_units // 2, 1e-9)


@needs_shared
@pytest.mark.slow
@pytest.mark.parametrize("name", RESNET)
def test_resnet56(plain: ModuleType, name: str) -> None:
    model = build("resnet56").eval()
    load_weights(model, SHARED / "models/resnet56-cifar10.safetensors")
    images = load("cifar10", "train", SHARED / "data").inputs(torch.arange(16)).double()
    group, run = at_consumer(model.double(), images, name)
    same_or_tied(plain, group, run, group.n_units // 2, 1e-9)


def test_every_pruned_layer_is_there() -> None:
    model = build("resnet56").eval()
    structure = Calibration.of(model, batches(torch.zeros(1, 3, 32, 32), model)).structure
    assert [g.name for g in in_order(structure.inner())] == RESNET
