"""What a model costs and how well it does: parameters, FLOPs, latency, accuracy, agreement."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map
from torch.utils.flop_counter import FlopCounterMode

from subprune.borrow import borrowed
from subprune.data import Batch
from subprune.program import call, flat_tensors
from subprune.record import Inputs, plain

__all__ = [
    "Latency",
    "accuracy",
    "agreement",
    "count_flops",
    "count_parameters",
    "latency",
    "predictions",
    "side_by_side",
]


def count_parameters(model: nn.Module) -> int:
    """Parameters of the whole model, tied ones once."""
    return sum(p.numel() for p in model.parameters())


def count_flops(model: nn.Module, inputs: Inputs) -> int:
    """Floating point operations of one call, as PyTorch's own counter counts them (2 per multiply-add).

    Shapes are all it takes, so nothing is computed unless the model's way depends on the numbers.
    """
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    shapes = tree_map(lambda x: fake.from_tensor(x) if isinstance(x, Tensor) else x, inputs)
    try:
        with borrowed(model, {id(p): fake.from_tensor(p) for p in model.parameters()}):
            return _counted(model, shapes, fake)
    except Exception:
        with borrowed(model):
            return _counted(model, inputs, contextlib.nullcontext())


def _counted(model: nn.Module, inputs: Inputs, mode: contextlib.AbstractContextManager[Any]) -> int:
    """FLOPs of one call of a model that is borrowed."""
    torch.backends.mha.set_fastpath_enabled(False)
    with torch.no_grad(), mode, FlopCounterMode(display=False) as counter:
        call(model, inputs)
    return int(counter.get_total_flops())


@dataclass(frozen=True)
class Latency:
    """Seconds per call: the median of repeated runs, and the middle half of them."""

    median: float
    low: float
    high: float
    repeats: int


def latency(model: nn.Module, inputs: Inputs, *, repeats: int = 20, warmup: int = 3) -> Latency:
    """Measure calls of the model after a warm-up."""
    return side_by_side([model], inputs, repeats=repeats, warmup=warmup)[0]


_LEAST_REPEATS = 5


def side_by_side(
    models: Sequence[nn.Module],
    inputs: Inputs,
    *,
    repeats: int = 20,
    warmup: int = 3,
    seconds: float = float("inf"),
) -> tuple[Latency, ...]:
    """Latencies to be compared: the models' calls alternate, so that whatever else the machine does slows all alike.

    After `seconds`, five repeats are enough.
    """
    times: list[list[float]] = [[] for _ in models]
    until = time.perf_counter() + seconds
    with contextlib.ExitStack() as loans:
        for model in models:
            loans.enter_context(borrowed(model))
        loans.enter_context(torch.no_grad())
        for i in range(warmup + repeats):
            if time.perf_counter() > until and len(times[0]) >= min(_LEAST_REPEATS, repeats):
                break
            for model, own in zip(models, times, strict=True):
                taken = _one_call(model, inputs)
                if i >= warmup:
                    own.append(taken)
    return tuple(_summary(own) for own in times)


def _one_call(model: nn.Module, inputs: Inputs) -> float:
    args, kwargs = tree_map(lambda x: x.clone() if isinstance(x, Tensor) else x, inputs)
    _wait(inputs)
    started = time.perf_counter()
    model(*args, **kwargs)
    _wait(inputs)
    return time.perf_counter() - started


def _summary(times: Sequence[float]) -> Latency:
    places = torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)
    low, median, high = torch.tensor(times, dtype=torch.float64).quantile(places).tolist()
    return Latency(median, low, high, len(times))


def _wait(inputs: Inputs) -> None:
    """Let work on an accelerator finish, so that the clock sees it."""
    device = next((x.device for x in flat_tensors(inputs)), torch.device("cpu"))
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def predictions(model: nn.Module, batches: Sequence[Batch]) -> list[Tensor]:
    """The class with the largest output (first output tensor, last dimension), batch by batch."""
    with borrowed(model), torch.no_grad():
        return [flat_tensors(plain(call(model, b.inputs)))[0].argmax(-1) for b in batches]


def accuracy(model: nn.Module, batches: Sequence[Batch]) -> float:
    """Share of labelled samples whose largest output is their label."""
    right = total = 0
    for batch, found in zip(batches, predictions(model, batches), strict=True):
        if batch.labels is not None:
            right += int((found == batch.labels).sum())
            total += batch.labels.numel()
    return right / total if total else float("nan")


def agreement(model: nn.Module, other: nn.Module, batches: Sequence[Batch]) -> float:
    """Share of samples on which two models predict the same class; needs no labels."""
    pairs = list(zip(predictions(model, batches), predictions(other, batches), strict=True))
    same = sum(int((a == b).sum()) for a, b in pairs)
    return same / max(1, sum(a.numel() for a, _ in pairs))
