"""LeNet trained by a small C loop instead of PyTorch's: the same mathematics, many times faster.

A pruned LeNet is so small that PyTorch spends a step on everything but arithmetic. `lenet_train.c`
is compiled once per process with the machine's C compiler (the one CC names, if it is set); where
there is none, or the model or the recipe is anything else, `trainer` answers None and the ordinary
loop is used.
"""

from __future__ import annotations

import ctypes
import functools
import math
import os
import shlex
import shutil
import subprocess
import tempfile
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from subprune.zoo.datasets import Images
from subprune.zoo.models import LeNet
from subprune.zoo.readers import CLASSES

if TYPE_CHECKING:
    from subprune_paper.training import TrainingRecipe

__all__ = ["available", "trainer"]

_SECONDS = 60  # a compiler that takes longer is given up
_FLAGS = ("-O3", "-fPIC", "-shared")
_TUNED = ((*_FLAGS, "-march=native"), _FLAGS)  # the first that the compiler accepts


def available() -> bool:
    """Whether the C loop can be used on this machine."""
    return _library() is not None


def trainer(model: nn.Module, images: Images, plan: TrainingRecipe) -> LeNetTrainer | None:
    """The C loop for this model, or None if it has to be trained the ordinary way."""
    fits = plan.optimizer == "adam" and not (plan.augmented or plan.bfloat16) and _is_lenet(model)
    if not fits or not _are_digits(images):
        return None
    library = _library()
    return None if library is None else LeNetTrainer(library, model, images, plan)


class LeNetTrainer:
    """Adam on a LeNet; the model's parameters are up to date after every epoch."""

    name = "compiled"

    def __init__(
        self, library: Any, model: nn.Module, images: Images, plan: TrainingRecipe
    ) -> None:
        self._library, self._plan, self._parameters = library, plan, list(model.parameters())
        self._pixels, self._labels = images.images.contiguous(), images.labels.long().contiguous()
        self._scale, self._shift = (float(x) for x in images.scale_and_shift())
        self._widths = torch.tensor(
            [len(p) for p in self._parameters[0:8:2]], dtype=torch.int32, device="cpu"
        )
        count = sum(p.numel() for p in self._parameters)
        # Adam's two averages
        self._state = torch.zeros(2 * count, dtype=torch.float32, device="cpu")
        self._steps = 0

    def epoch(self, order: Tensor, rate: float) -> float:
        """One pass over the images in this order; returns the mean loss, which is NaN if a
        weight is.
        """
        flat = torch.cat([p.detach().flatten() for p in self._parameters])
        order, batch = order.long().contiguous(), min(self._plan.batch_size, len(order))
        # the ReLUs of the C loop turn NaN into zero
        sound = bool(flat.isfinite().all())
        total: float = self._library.lenet_epoch(
            *(_pointer(x) for x in (self._pixels, self._labels, order)),
            len(order),
            batch,
            self._scale,
            self._shift,
            *(_pointer(x) for x in (self._widths, flat, self._state)),
            self._steps,
            rate,
            self._plan.weight_decay,
        )
        if total < 0:
            raise MemoryError("there was no memory for training LeNet")
        self._steps += -(-len(order) // batch)
        with torch.no_grad():
            for p, new in zip(
                self._parameters, flat.split([p.numel() for p in self._parameters]), strict=True
            ):
                p.copy_(new.view_as(p))
        return total / len(order) if sound and bool(flat.isfinite().all()) else math.nan


def _are_digits(images: Images) -> bool:
    """Whether the images and labels are what LeNet is for, in the CPU's memory."""
    pixels, labels = images.images, images.labels
    near = pixels.device.type == labels.device.type == "cpu"
    right = (
        pixels.shape[1:] == (1, 28, 28)
        and pixels.dtype == torch.uint8
        and len(labels) == len(pixels)
    )
    return near and right and int(labels.min()) >= 0 and int(labels.max()) < CLASSES


def _is_lenet(model: nn.Module) -> bool:
    """Whether it computes what the C loop does: a plain LeNet, pruned or not, in float32 on the
    CPU, all trained.
    """
    watched = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "forward")
    overrides = [vars(m).get(name) for m in model.modules() for name in watched]
    if (
        type(model) is not LeNet
        or any(overrides)
        or [type(m) for m in model.children()] != [nn.Conv2d] * 2 + [nn.Linear] * 3
    ):
        return False
    parameters = dict(model.named_parameters())
    layers = [name for name, _ in model.named_children()]
    k1, k2, f1, f2, _ = (len(parameters[f"{name}.weight"]) for name in layers)
    shapes = ((k1, 1, 3, 3), (k2, k1, 3, 3), (f1, k2 * 25), (f2, f1), (CLASSES, f2))
    wanted = {f"{name}.weight": shape for name, shape in zip(layers, shapes, strict=True)}
    wanted |= {f"{name}.bias": shape[:1] for name, shape in zip(layers, shapes, strict=True)}
    plain = all(
        (c.stride, c.padding, c.dilation, c.groups, c.padding_mode)
        == ((1, 1), (0, 0), (1, 1), 1, "zeros")
        for c in (model.conv1, model.conv2)
    )
    near = all(
        p.dtype == torch.float32 and p.device.type == "cpu" and p.requires_grad
        for p in parameters.values()
    )
    return plain and near and {name: tuple(p.shape) for name, p in parameters.items()} == wanted


def _pointer(x: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(x.data_ptr())


def _compiler() -> list[str]:
    """The command of the C compiler; empty if there is none."""
    named = shlex.split(os.environ.get("CC", ""))
    return named or [c for c in ("cc", "gcc", "clang") if shutil.which(c)][:1]


@functools.lru_cache(maxsize=1)
def _library() -> Any | None:
    """The compiled loop; None where it cannot be compiled."""
    compiler = _compiler()
    if not compiler or os.name == "nt":
        return None
    for flags in _TUNED:
        try:
            return _compile([*compiler, *flags])
        except (OSError, subprocess.SubprocessError, AttributeError):
            continue
    return None


def _compile(command: list[str]) -> Any:
    source = resources.files("subprune_paper").joinpath("lenet_train.c").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory(prefix="subprune-", ignore_cleanup_errors=True) as folder:
        path, made = Path(folder, "lenet_train.c"), Path(folder, "lenet_train.so")
        path.write_text(source, encoding="utf-8")
        subprocess.run(
            [*command, "-o", str(made), str(path), "-lm"],
            check=True,
            capture_output=True,
            timeout=_SECONDS,
        )
        library = ctypes.CDLL(str(made))  # stays in memory when the file is gone
    library.lenet_epoch.restype = ctypes.c_double
    pointer, whole, wide, real = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_double
    library.lenet_epoch.argtypes = [
        pointer,
        pointer,
        pointer,
        wide,
        whole,
        ctypes.c_float,
        ctypes.c_float,
        pointer,
        pointer,
        pointer,
        wide,
        real,
        real,
    ]
    return library
