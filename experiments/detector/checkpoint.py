"""Tensors out of a detector's checkpoint, without running a line of what the file names.

Such files are pickles of whole modules. PyTorch's restricted reader builds what a list allows, and
here every class on the list is an empty stand-in: what comes out is names and tensors.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

__all__ = ["read_tensors"]

_LAYERS = {
    "torch.nn.modules": (
        "activation.SiLU",
        "batchnorm.BatchNorm2d",
        "container.ModuleList",
        "container.Sequential",
        "conv.Conv2d",
        "linear.Identity",
        "pooling.MaxPool2d",
        "upsampling.Upsample",
    ),
    "ultralytics.nn": (
        "modules.block.Attention",
        "modules.block.Bottleneck",
        "modules.block.C2PSA",
        "modules.block.C2f",
        "modules.block.C3k",
        "modules.block.C3k2",
        "modules.block.DFL",
        "modules.block.PSABlock",
        "modules.block.SPPF",
        "modules.conv.Concat",
        "modules.conv.Conv",
        "modules.conv.DWConv",
        "modules.head.Detect",
        "tasks.DetectionModel",
    ),
}


class StandIn:
    """Holds what a module held, and can do nothing."""


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Parameters and buffers of the checkpoint's model by name, in float32."""
    names = [f"{room}.{name}" for room, found in _LAYERS.items() for name in found]
    # A class of its own for every name: the reader fills only instances of classes it was given.
    allowed: list[Any] = [(type(name.rpartition(".")[2], (StandIn,), {}), name) for name in names]
    try:
        with torch.serialization.safe_globals([*allowed, (set, "builtins.set")]):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError) as error:
        raise SystemExit(
            f"{path} cannot be read without running code from it: {str(error).splitlines()[0]}; "
            "allowed are checkpoints of YOLOv8 and YOLO26 detectors"
        ) from error
    model = content.get("ema") or content.get("model") if isinstance(content, dict) else None
    if not isinstance(model, StandIn):
        raise SystemExit(f"{path} holds no detector under 'model'; give a detector's checkpoint")
    tensors = dict(_tensors(model, ""))
    return {name: x.float() if x.is_floating_point() else x for name, x in tensors.items()}


def _tensors(module: Any, prefix: str) -> list[tuple[str, Tensor]]:
    """Of a stand-in and all those below it, in order."""
    found: list[tuple[str, Tensor]] = []
    content = vars(module)
    for kind in ("_parameters", "_buffers"):
        for name, value in content.get(kind, {}).items():
            if isinstance(value, Tensor):
                found.append((f"{prefix}{name}", value.detach()))
    for name, child in content.get("_modules", {}).items():
        if isinstance(child, StandIn):
            found += _tensors(child, f"{prefix}{name}.")
    return found
