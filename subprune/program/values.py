"""What in a forward reads the values of its data, so that no run on shapes alone can record it."""

from __future__ import annotations

import traceback
from pathlib import Path

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
)
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

__all__ = ["DEPENDS", "values_read"]

DEPENDS = (DataDependentOutputException, DynamicOutputShapeException, GuardOnDataDependentSymNode)
"""Raised where values are asked for."""

_LIBRARIES = tuple(str(Path(file).parent) for file in (torch.__file__, Path(__file__).parent))


def values_read(error: BaseException) -> str:
    """What reads values, in words, and the line of the model's code that does."""
    what = (
        "a value is read out of a tensor, as .item() or an if does"
        if isinstance(error, DataDependentOutputException)
        else "the shape of a result depends on them, as with nonzero() or x[mask]"
        if isinstance(error, DynamicOutputShapeException)
        else str(error).strip().split("\n")[0][:120]
    )
    lines = [
        f"{Path(frame.filename).name}, line {frame.lineno}: "
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((*_LIBRARIES, "<"))
    ]
    return (lines or [""])[-1] + what
