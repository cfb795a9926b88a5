"""BatchNorm statistics taken anew on the calibration data, once, after everything else is done."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from subprune.data import Batch
from subprune.errors import DataError
from subprune.record import eval_mode

__all__ = ["BATCHNORM", "recalibrate"]

BATCHNORM = ("keep", "recalibrate")


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
