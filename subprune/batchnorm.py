"""BatchNorm statistics taken anew on the calibration data: once at the end, or layer after layer during a run."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from subprune.data import Batch
from subprune.errors import DataError
from subprune.fuse import NORMS
from subprune.program import Program, Ref
from subprune.record import eval_mode

__all__ = ["BATCHNORM", "pooled", "recalibrate", "stored_norms"]

BATCHNORM = ("keep", "recalibrate", "sequential")


def recalibrate(model: nn.Module, batches: Sequence[Batch]) -> list[str]:
    """Set running means and variances to the plain average over the batches; returns the layers' names.

    The model is changed, but nothing in it except these two buffers. All other layers run in eval mode.
    """
    layers = {
        name: m
        for name, m in model.named_modules()
        if isinstance(m, _BatchNorm) and m.running_mean is not None and m.running_var is not None
    }
    if not layers:
        return []
    old = {name: [x.clone() for x in m.buffers(recurse=False)] for name, m in layers.items()}
    with eval_mode(model), _averaging(list(layers.values())), torch.no_grad():
        try:
            for batch in batches:
                model(*batch.inputs[0], **batch.inputs[1])
        except ValueError as error:
            for name, m in layers.items():
                for x, before in zip(m.buffers(recurse=False), old[name], strict=True):
                    x.copy_(before)
            raise DataError(
                f"BatchNorm statistics cannot be taken on this data ({error}); give larger batches, or leave "
                "batchnorm='keep'"
            ) from error
    return list(layers)


@contextlib.contextmanager
def _averaging(layers: Sequence[_BatchNorm]) -> Iterator[None]:
    """The layers take part in training, with an average over all batches; momentum and counters come back."""
    counters = [None if m.num_batches_tracked is None else m.num_batches_tracked.clone() for m in layers]
    momenta = [m.momentum for m in layers]
    try:
        for m in layers:
            m.reset_running_stats()
            m.momentum = None
            m.train()
        yield
    finally:
        for m, momentum, counter in zip(layers, momenta, counters, strict=True):
            m.momentum = momentum
            if counter is not None and m.num_batches_tracked is not None:
                m.num_batches_tracked.copy_(counter)


def stored_norms(program: Program) -> dict[int, tuple[str, str]]:
    """Operations that normalise by stored statistics of their own: the names of their mean and variance."""
    found: dict[int, tuple[str, str]] = {}
    for op in program.ops:
        if op.kind in NORMS and not (op.kind == "native_batch_norm" and op.args[5]):
            names = [program.values[a.id].name for a in op.args[3:5] if isinstance(a, Ref)]
            if len(names) == 2 and all(names):
                found[op.index] = (names[0], names[1])
    uses = Counter(found.values())
    return {i: names for i, names in found.items() if uses[names] == 1}  # a shared one has no single right value


def pooled(batches: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Mean and unbiased variance of every channel, over all places of all batches together: float64."""
    n = sum(x.numel() // x.shape[1] for x in batches)
    if n < 2:
        raise DataError(
            "BatchNorm statistics cannot be taken on one value per channel; give more data, or leave batchnorm='keep'"
        )
    mean = _channel_sums(batches) / n
    return mean, _channel_sums(batches, mean) / (n - 1)


def _channel_sums(batches: Sequence[Tensor], mean: Tensor | None = None) -> Tensor:
    """Sums of every channel or, given the means, of its squared distances; one batch at a time is made float64."""
    total = torch.zeros(batches[0].shape[1], dtype=torch.float64, device=batches[0].device)
    for batch in batches:
        x = batch.transpose(0, 1).flatten(1).double()
        total += x.sum(1) if mean is None else (x - mean[:, None]).square().sum(1)
    return total
