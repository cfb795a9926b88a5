"""BatchNorm statistics re-estimated on the calibration data: once at the end, or layer after layer
during a run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from subprune.errors import DataError
from subprune.messages import Message
from subprune.program.borrow import borrowed
from subprune.program.ops import argument, norm
from subprune.program.program import Program, Ref, call

if TYPE_CHECKING:
    from subprune.data.batch import Batch

__all__ = ["BATCHNORM", "BatchNorm", "recalibrate", "stored_norms"]

BatchNorm = Literal["keep", "recalibrate", "sequential"]
BATCHNORM = get_args(BatchNorm)


def recalibrate(model: nn.Module, batches: Sequence[Batch]) -> list[str]:
    """Set running means and variances to the plain average over the batches; returns the layers'
    names.

    The model is changed, but nothing in it except these two buffers. All other layers run in eval
    mode.
    """
    layers = {
        name: m
        for name, m in model.named_modules()
        if isinstance(m, _BatchNorm) and m.running_mean is not None and m.running_var is not None
    }
    if not layers:
        return []
    new: list[tuple[Tensor, ...]] = []
    with borrowed(model), torch.no_grad():
        for m in layers.values():
            m.reset_running_stats()
            m.momentum = None  # an average over all batches
            m.train()
        try:
            for batch in batches:
                call(model, batch.inputs)
        except ValueError as error:
            raise DataError(
                Message(
                    "BatchNorm statistics cannot be taken on this data ({error}); give larger "
                    "batches, or use {batchnorm=}",
                    error=error,
                    batchnorm="keep",
                )
            ) from error
        new = [_stored(m) for m in layers.values()]
    with torch.no_grad():
        for m, values in zip(layers.values(), new, strict=True):
            for x, value in zip(_stored(m), values, strict=True):
                x.copy_(value)
    return list(layers)


def _stored(layer: _BatchNorm) -> tuple[Tensor, ...]:
    """Running mean and variance, [channels] each."""
    return tuple(x for x in (layer.running_mean, layer.running_var) if x is not None)


def stored_norms(program: Program) -> dict[int, tuple[str, str]]:
    """Operations that normalise by stored statistics of their own: the names of their mean and
    variance.
    """
    norms: dict[int, tuple[str, str]] = {}
    for op in program.ops:
        entry = norm(op)
        if entry is None or entry.stored is None or entry.measures(op):
            continue
        refs = [argument(op, name) for name in entry.stored]
        names = [program.values[r.id].name for r in refs if isinstance(r, Ref)]
        if len(names) == 2 and all(names):
            norms[op.index] = (names[0], names[1])
    uses = Counter(norms.values())
    # a shared one has no single right value
    return {i: names for i, names in norms.items() if uses[names] == 1}
