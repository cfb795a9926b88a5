"""The workloads, each measured in a process of its own: seconds, the limit in this machine's own
rate, peak memory.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from machine import Rates, peak_memory, timed
from odd_networks import DenselyConnected, LongKernels
from plain import select
from sampling import Profile, sampled
from torch import Tensor, nn

import subprune
from subprune.data.batches import batches
from subprune.select.greedy import greedy
from subprune.statistics.calibration import Calibration
from subprune.statistics.collectors import ConsumerStatistics
from subprune.statistics.columns import column_map
from subprune.statistics.patches import conv_rows
from subprune.statistics.place import Place as Stand
from subprune.statistics.products import Layer
from subprune.statistics.statistics import Statistics
from subprune.structure.cost import CostModel
from subprune.structure.groups import Group, in_order
from subprune.zoo.datasets import load
from subprune.zoo.models import build
from subprune.zoo.weights import load_weights

QUICK = bool(os.environ.get("SUBPRUNE_BENCH_QUICK"))  # everything once, small: does it run?
IMAGES = 32 if QUICK else 512
# what the paper prunes in a ResNet: the first layers of residual branches
RESIDUAL = "layer*.conv1"


@dataclass
class Measured:
    """One row of the table."""

    seconds: float
    single: float = 0.0  # operations that must be done in float32
    double: float = 0.0  # and in float64
    peak: int = 0
    allowance: int = 0  # bytes of memory allowed; 0 if nothing was promised
    profile: Profile | None = None  # of a run that was not timed, where there is one
    notes: dict[str, Any] = field(default_factory=dict)

    def limit(self, rates: Rates) -> float:
        return self.single / rates.single + self.double / rates.double


@dataclass(frozen=True)
class Place:
    """Where data and weights lie; without them, random ones of the same shapes do for timing."""

    data: Path | None
    models: Path | None

    def images(self, name: str, split: str, count: int) -> Tensor:
        if self.data is None:
            shape = (count, 1, 28, 28) if name == "mnist" else (count, 3, 32, 32)
            return torch.randn(shape, generator=torch.Generator().manual_seed(0))
        found = load(name, split, self.data)
        order = torch.randperm(len(found), generator=torch.Generator().manual_seed(42))
        return found.inputs(order[:count])

    def network(self, name: str) -> nn.Module:
        torch.manual_seed(0)
        model = build(name).eval()
        path = None if self.models is None else self.models / f"{name}-cifar10.safetensors"
        if path is not None and path.is_file():
            load_weights(model, path)
        return model


# ---- limits --------------------------------------------------------------------------------------


def layer_operations(group: Group, calibration: Calibration) -> tuple[float, float, float]:
    """Operations for G (half of it, by symmetry), for C, and for eliminating all units, of a
    group's consumers.
    """
    program = calibration.structure.program
    gram = cross = elimination = 0.0
    count = sum(b.size for b in calibration.batches)
    for consumer in group.reweightable:
        how = column_map(consumer, program, consumer.name)
        op = program.ops[consumer.use.op]
        out = program.values[op.outs[0]].shape
        positions = 1 if how.conv is None else int(torch.tensor(out[2:]).prod())
        n, d = count * positions, len(how.column_units()[0])
        m = how.outputs // how.groups
        gram += how.groups * n * d * d
        cross += how.groups * 2 * n * d * m
        elimination += how.groups * (d**3 / 3 + d * d * m)
    return gram, cross, elimination


def prune_limit(
    calibration: Calibration, groups: list[Group], counts: dict[str, int], curves: bool
) -> Measured:
    """What pruning with statistics cannot do without.

    One pass of the dense and one of the pruned network, G and C of every layer, and the
    elimination. Rules that look at error curves take one more dense pass with G of every layer, and
    one more elimination.
    """
    gram, cross, elimination = (
        sum(x) for x in zip(*(layer_operations(g, calibration) for g in groups), strict=True)
    )
    cost = CostModel(calibration.model, calibration.structure)
    images = sum(b.size for b in calibration.batches)
    full = {g.name: g.n_units for g in groups}
    per = images / calibration.batches[0].size
    dense, small = cost.flops(full) * per, cost.flops(counts) * per
    times = 2 if curves else 1
    return Measured(0.0, dense * times + small + gram * times + cross, elimination * times)


# ---- pruning whole networks ----------------------------------------------------------------------


def prune_network(name: str, place: Place, **options: Any) -> Measured:
    """A whole `prune` call of a network for CIFAR-10 with AsymInChange, c = 2."""
    model, data = place.network(name), place.images("cifar10", "train", IMAGES)
    how = {"method": "asym-in-change", "only": paper_layers(name, model), **options}
    return pruned(model, data, compression=2, **how)


def pruned(model: nn.Module, data: Tensor, **how: Any) -> Measured:
    """A whole `prune` call, without the timing of the finished models."""
    quiet: Any = {"progress": False, "time_calls": False}
    subprune.prune(model, data[:4], **{**how, **quiet})  # lazy imports of PyTorch

    def work() -> Any:
        return subprune.prune(model, data, **{**how, **quiet})

    with peak_memory() as memory, sampled() as profile:
        work()
    seconds, result = timed(work)
    calibration = Calibration.of(model, batches(data, model))
    groups = [g for g in in_order(calibration.structure.inner()) if g.name in result.plan.kept]
    counts = {g.name: len(result.plan.kept[g.name]) for g in groups}
    found = prune_limit(calibration, groups, counts, curves=how.get("allocate") != "uniform")
    found.seconds, found.peak, found.profile = seconds, memory.extra, profile
    found.allowance = _allowance(calibration, groups)
    before, after = result.report.parameters
    found.notes = {
        "layers": len(groups),
        "images": len(data),
        "compression": round(before / after, 3),
    }
    return found


def many_groups() -> Measured:
    """A densely connected network: 87 groups, each read by many layers."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    images = torch.randn(min(256, IMAGES), 3, 32, 32, generator=generator)
    return pruned(DenselyConnected().eval(), images, keep=0.5, method="asym-in-change")


def long_kernels() -> Measured:
    """One-dimensional convolutions with kernels of 64."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    sounds = torch.randn(min(256, IMAGES), 1, 4000, generator=generator)
    return pruned(LongKernels().eval(), sounds, keep=0.5, method="asym-in-change")


def paper_layers(name: str, model: nn.Module) -> list[str]:
    """What the paper prunes: first layers of residual branches; all but the last features layer and
    the classifier.
    """
    if name.startswith("resnet"):
        # by name, as Torch-Pruning needs them
        return fnmatch.filter(dict(model.named_modules()), RESIDUAL)
    layers = [n for n, m in model.named_modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    return [n for n in layers[:-1] if n != "features.25"]


def _allowance(calibration: Calibration, groups: list[Group]) -> int:
    """3·d² float64 of the widest layer, and the calibration images' values: what the dense and the
    pruned run hold where that is most, and the one being computed.
    """
    program = calibration.structure.program
    widest = max(
        len(column_map(c, program, "").column_units()[0]) for g in groups for c in g.reweightable
    )
    share = sum(b.size for b in calibration.batches) / calibration.batches[0].size
    largest = max(_bytes(program, v) for op in program.ops for v in op.outs)
    return int(3 * widest**2 * 8 + share * (2 * max(_alive(program)) + largest))


def _bytes(program: Any, value: int) -> int:
    return 4 * int(torch.tensor(program.values[value].shape).prod())


def _alive(program: Any) -> list[int]:
    """Bytes of computed values that some later operation still reads, after every operation."""
    found = []
    for op in program.ops:
        live = [
            v for o in program.ops[: op.index + 1] for v in o.outs if program.last_use(v) > op.index
        ]
        found.append(sum(_bytes(program, v) for v in live))
    return found


# ---- one layer: from data, against the plain formulas --------------------------------------------


def one_layer(place: Place, name: str, layer: str, steps: int | None) -> Measured:
    """Statistics and keep order of one layer, against the plain formulas on the same activations."""
    model = place.network(name)
    calibration = Calibration.of(model, batches(place.images("cifar10", "train", IMAGES), model))
    group = calibration.structure[layer]
    run = calibration.start()
    run.advance(min(c.use.op for c in group.consumers))
    n = group.n_units
    count = n if steps is None else steps

    def ours() -> Any:
        return greedy(Layer().gather(Stand(group=group, current=run, dense=run)).statistics, n)

    with sampled() as profile:
        ours()  # warm
    seconds, order = timed(ours)
    rows, weight, units = _activations(group, run)
    slow = select(rows, weight, units, count)
    same = list(order.order[:count]) == slow.order
    whole = slow.seconds * sum(n - i for i in range(n)) / sum(n - i for i in range(count))
    gram, _, elimination = layer_operations(group, calibration)
    return Measured(
        seconds,
        gram,
        elimination,
        profile=profile,
        notes={
            "layer": f"{name} {layer}",
            "rows": len(rows),
            "columns": rows.shape[1],
            "units": n,
            "plain_steps": count,
            "plain_seconds": slow.seconds,
            "plain_whole": whole,
            "same_units": same,
            "first_difference": None if same else _gap(order, slow, n),
            "faster": whole / seconds,
        },
    )


def _activations(group: Group, run: Any) -> tuple[Tensor, Tensor, Tensor]:
    """A, W and the units of the columns, as the paper has them."""
    consumer = group.reweightable[0]
    how = column_map(consumer, run.programs[0], consumer.name)
    index = consumer.use.op
    inputs = torch.cat([run.argument(index, i) for i in range(len(run.envs))])
    rows = inputs if how.conv is None else torch.cat([r for r, _, _ in conv_rows(inputs, how.conv)])
    weight = how.weight_blocks(run.tensors[consumer.use.weight])[0]
    return rows, weight, how.column_units()[0]


def _gap(order: Any, slow: Any, n: int) -> float:
    """How much the gains differ, relatively, where the two orders first part."""
    at = next(i for i, (a, b) in enumerate(zip(order.order, slow.order, strict=False)) if a != b)
    return abs(float(order.gains[at]) - slow.gains[at]) / max(slow.gains[at], 1e-300)


# ---- a transformer's feed-forward layer ----------------------------------------------------------


def feed_forward(d: int = 11008, m: int = 4096, share: float = 0.5) -> Measured:
    """The keep order of a LLaMA-7B-sized feed-forward layer, from ready statistics."""
    statistics = synthetic(d, m)
    k = int(d * share)
    with peak_memory() as memory, sampled() as profile:
        seconds, order = timed(lambda: greedy([statistics], d, k))
    left = d - k
    double = (d**3 - left**3) / 3 + m * (d**2 - left**2)
    notes = {"d": d, "m": m, "k": k, "error_left": float(order.errors[-1])}
    ready = statistics.gram.nbytes + statistics.cross.nbytes
    return Measured(seconds, 0.0, double, memory.extra + ready, 8 * 10**9, profile, notes)


def synthetic(d: int, m: int, per_unit: int = 1, seed: int = 0) -> Statistics:
    """Statistics of columns with a falling spectrum and some noise, made without the rows."""
    generator = torch.Generator().manual_seed(seed)
    rank = max(8, d // 6)
    mix = torch.randn(rank, d, generator=generator) * torch.linspace(1, 0.05, rank)[:, None]
    gram = (mix.T @ mix).double()
    gram.diagonal().add_(0.1 * float(gram.diagonal().mean()))
    weight = torch.randn(d, m, generator=generator)
    cross = (gram.float() @ weight).double()
    energy = float((weight.double() * cross).sum())
    units = torch.arange(d // per_unit).repeat_interleave(per_unit)
    zeros = torch.zeros
    return Statistics(
        gram=gram,
        cross=cross,
        energy=energy,
        rows=4 * d,
        sums=zeros(d).double(),
        target_sums=zeros(m).double(),
        units=units,
    )


# ---- rows against columns ------------------------------------------------------------------------


def linear_statistics(rows: int, d: int, m: int) -> Measured:
    """Statistics and order of a linear layer seen at `rows` rows."""
    from subprune.statistics.columns import ColumnMap

    generator = torch.Generator().manual_seed(0)
    x, w = torch.randn(rows, d, generator=generator), torch.randn(m, d, generator=generator)

    def work() -> Any:
        gather = ConsumerStatistics(ColumnMap(torch.arange(d), m), symmetric=True)
        gather.update(x)
        return greedy(gather.result(w), d, d // 2)

    with sampled() as profile:
        work()
    seconds, _ = timed(work)
    rank, left = min(rows, d // 2), d - min(rows, d // 2)
    double = (d**3 - left**3) / 3 + m * (d**2 - left**2)
    notes = {"rows": rows, "d": d, "m": m, "rank": rank}
    return Measured(seconds, rows * d * d, double, profile=profile, notes=notes)


_SHARE = 8 if QUICK else 1  # by which sizes of layers are divided

WORKLOADS: dict[str, Callable[[Place, Rates], Measured]] = {
    "resnet56, equal fractions": lambda p, r: prune_network("resnet56", p, allocate="uniform"),
    "resnet56, default": lambda p, r: prune_network("resnet56", p),
    "resnet56, method auto": lambda p, r: prune_network("resnet56", p, method="auto"),
    "vgg11, equal fractions": lambda p, r: prune_network("vgg11", p, allocate="uniform"),
    "vgg11, default": lambda p, r: prune_network("vgg11", p),
    "vgg11, method auto": lambda p, r: prune_network("vgg11", p, method="auto"),
    "feed-forward 11008 → 4096, half kept": lambda p, r: feed_forward(
        11008 // _SHARE, 4096 // _SHARE
    ),
    "linear 4096 → 1024, 1024 rows": lambda p, r: linear_statistics(
        1024 // _SHARE, 4096 // _SHARE, 1024 // _SHARE
    ),
    "linear 4096 → 1024, 16384 rows": lambda p, r: linear_statistics(
        16384 // _SHARE, 4096 // _SHARE, 1024 // _SHARE
    ),
    "densely connected, 87 groups, 256 images": lambda p, r: many_groups(),
    "kernels of 64, 256 sounds": lambda p, r: long_kernels(),
    "resnet56 layer1.4.conv1": lambda p, r: one_layer(p, "resnet56", "layer1.4.conv1", None),
    "resnet56 layer2.4.conv1": lambda p, r: one_layer(p, "resnet56", "layer2.4.conv1", None),
    "resnet56 layer3.4.conv1": lambda p, r: one_layer(p, "resnet56", "layer3.4.conv1", 32),
    "vgg11 features.15": lambda p, r: one_layer(p, "vgg11", "features.15", 1),
}
