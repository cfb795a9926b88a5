"""LeNet trained by a small C loop instead of PyTorch's: the same mathematics, many times faster.

A pruned LeNet is so small that PyTorch spends a step on everything but arithmetic. `lenet_train.c` is compiled
once per process with the machine's C compiler; where there is none, or the model or the recipe is anything else,
`trainer` answers None and the ordinary loop is used.
"""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import subprocess
import tempfile
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from subprune.experiments.datasets import Images
from subprune.experiments.models import CLASSES, LeNet

if TYPE_CHECKING:
    from subprune.experiments.training import Recipe

__all__ = ["available", "trainer"]

_SECONDS = 120  # a compiler that takes longer is given up
_FLAGS = ("-O3", "-fPIC", "-shared")
_TUNED = ((*_FLAGS, "-march=native"), _FLAGS)  # the first that the compiler accepts


def available() -> bool:
    """Whether the C loop can be used on this machine."""
    return _library() is not None


def trainer(model: nn.Module, images: Images, plan: Recipe) -> LeNetTrainer | None:
    """The C loop for this model, or None if it has to be trained the ordinary way."""
    fits = plan.optimizer == "adam" and not (plan.augmented or plan.bfloat16) and _is_lenet(model)
    if not fits or images.images.shape[1:] != (1, 28, 28) or images.images.dtype != torch.uint8:
        return None
    if int(images.labels.min()) < 0 or int(images.labels.max()) >= CLASSES:
        return None
    library = _library()
    return None if library is None else LeNetTrainer(library, model, images, plan)


class LeNetTrainer:
    """Adam on a LeNet; the model's parameters are up to date after every epoch."""

    def __init__(self, library: Any, model: nn.Module, images: Images, plan: Recipe) -> None:
        self._library, self._plan, self._parameters = library, plan, list(model.parameters())
        self._pixels, self._labels = images.images.contiguous(), images.labels.long().contiguous()
        self._scale, self._shift = (float(x) for x in images.scale_and_shift())
        self._widths = torch.tensor([len(p) for p in self._parameters[0:8:2]], dtype=torch.int32)
        self._state = torch.zeros(2 * sum(p.numel() for p in self._parameters))  # Adam's two averages
        self._steps = 0

    def epoch(self, order: Tensor, rate: float) -> float:
        """One pass over the images in this order; returns the mean loss."""
        flat = torch.cat([p.detach().flatten() for p in self._parameters])
        order = order.long().contiguous()
        total: float = self._library.lenet_epoch(
            *(_pointer(x) for x in (self._pixels, self._labels, order)),
            len(order), self._plan.batch_size, self._scale, self._shift,
            *(_pointer(x) for x in (self._widths, flat, self._state)),
            self._steps, rate, self._plan.weight_decay,
        )  # fmt: skip
        if total < 0:
            raise MemoryError("there was no memory for training LeNet")
        self._steps += -(-len(order) // self._plan.batch_size)
        with torch.no_grad():
            for p, new in zip(self._parameters, flat.split([p.numel() for p in self._parameters]), strict=True):
                p.copy_(new.view_as(p))
        return total / len(order)


def _is_lenet(model: nn.Module) -> bool:
    """Whether it is a plain LeNet, pruned or not, in float32 on the CPU, and all of it is trained."""
    if type(model) is not LeNet or any(m._forward_hooks or m._forward_pre_hooks for m in model.modules()):
        return False
    names = [name for name, _ in model.named_parameters()]
    wanted = [f"{layer}.{part}" for layer in ("conv1", "conv2", "fc1", "fc2", "fc3") for part in ("weight", "bias")]
    kinds = [type(m) for m in model.children()] == [nn.Conv2d] * 2 + [nn.Linear] * 3
    plain = all(p.dtype == torch.float32 and p.device.type == "cpu" and p.requires_grad for p in model.parameters())
    return names == wanted and kinds and plain and model.fc3.out_features == CLASSES


def _pointer(x: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(x.data_ptr())


@functools.lru_cache(maxsize=1)
def _library() -> Any | None:
    """The compiled loop; None where it cannot be compiled."""
    compiler = os.environ.get("CC") or next((c for c in ("cc", "gcc", "clang") if shutil.which(c)), None)
    if compiler is None or os.name == "nt":
        return None
    source = resources.files("subprune.experiments").joinpath("lenet_train.c").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory(prefix="subprune-") as folder:
        path, made = Path(folder, "lenet_train.c"), Path(folder, "lenet_train.so")
        path.write_text(source, encoding="utf-8")
        for flags in _TUNED:
            try:
                subprocess.run(
                    [*compiler.split(), *flags, "-o", str(made), str(path), "-lm"],
                    check=True, capture_output=True, timeout=_SECONDS,
                )  # fmt: skip
                library = ctypes.CDLL(str(made))  # stays in memory when the file is gone
            except (OSError, subprocess.SubprocessError):
                continue
            library.lenet_epoch.restype = ctypes.c_double
            pointer, whole, wide, real = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_double
            library.lenet_epoch.argtypes = [
                pointer, pointer, pointer, wide, whole, ctypes.c_float, ctypes.c_float,
                pointer, pointer, pointer, wide, real, real,
            ]  # fmt: skip
            return library
    return None
