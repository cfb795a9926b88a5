"""What a model costs and how well it does: parameters, FLOPs, latency, accuracy, agreement."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map
from torch.utils.flop_counter import FlopCounterMode

from subprune.data.layouts import lay_out
from subprune.data.tokens import masks
from subprune.measure.answers import main_output
from subprune.measure.compare import compare
from subprune.program.borrow import borrowed
from subprune.program.program import Inputs, Program, call, flat_tensors
from subprune.program.record import plain, record
from subprune.program.recurrent import recurrent_flops

if TYPE_CHECKING:
    from subprune.data.batch import Batch

__all__ = [
    "Latency",
    "accuracy",
    "agreement",
    "count_flops",
    "count_parameters",
    "flops_per_input",
    "latency",
    "outputs",
    "side_by_side",
]


def count_parameters(model: nn.Module) -> int:
    """Parameters of the whole model, tied ones once."""
    return sum(p.numel() for p in model.parameters())


def count_flops(model: nn.Module, inputs: Inputs) -> int:
    """Floating point operations of one call: two per multiply-add, as PyTorch's counter counts
    them.

    Those of recurrent layers, some of which it does not count, are added.

    Shapes are all it takes, so nothing is computed unless the model's way depends on the numbers.
    """
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    shapes = tree_map(lambda x: fake.from_tensor(x) if isinstance(x, Tensor) else x, inputs)
    try:
        # The counter asks parameters that are handed to modules for a graph, and there is none.
        stand_ins = {id(p): fake.from_tensor(p).requires_grad_(False) for p in model.parameters()}
        with borrowed(model, stand_ins):
            return _counted(model, shapes, fake)
    except Exception:
        with borrowed(model):
            return _counted(model, inputs, contextlib.nullcontext())


def flops_per_input(model: nn.Module, batch: Batch) -> int:
    """`count_flops` of a call on the batch, over the number of its inputs."""
    return count_flops(model, batch.inputs) // max(1, batch.size)


def _counted(model: nn.Module, inputs: Inputs, mode: contextlib.AbstractContextManager[Any]) -> int:
    """FLOPs of one call of a model that is borrowed."""
    torch.backends.mha.set_fastpath_enabled(False)
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), mode, counter, _recurrent(counter) as more:
        call(model, inputs)
    return int(counter.get_total_flops()) + sum(more)


@contextlib.contextmanager
def _recurrent(counter: FlopCounterMode) -> Iterator[list[int]]:
    """What calls of recurrent layers add to the counter's total, which sees some kernels only."""
    more: list[int] = []
    totals: list[int] = []

    def enter(module: nn.Module, args: Any) -> None:
        if isinstance(module, nn.RNNBase | nn.RNNCellBase):
            totals.append(counter.get_total_flops())

    def leave(module: nn.Module, args: Any, kwargs: Any, result: Any) -> None:
        flops = recurrent_flops(module, args, kwargs)
        if flops is not None:
            more.append(flops - (counter.get_total_flops() - totals.pop()))

    hooks = [
        nn.modules.module.register_module_forward_pre_hook(enter),
        nn.modules.module.register_module_forward_hook(leave, with_kwargs=True),
    ]
    try:
        yield more
    finally:
        for hook in hooks:
            hook.remove()
            # PyTorch forgets to remove the entry that says that a hook takes keyword arguments.
            getattr(nn.modules.module, "_global_forward_hooks_with_kwargs", {}).pop(hook.id, None)


@dataclass(frozen=True)
class Latency:
    """Seconds per call: the median of repeated runs, and the quartiles around it."""

    median: float
    low: float
    high: float
    repeats: int

    @property
    def spread(self) -> tuple[float, float]:
        return self.low, self.high


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
    """Latencies to be compared: the models' calls alternate, so that whatever else the machine does
    slows all alike.

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
            for model, durations in zip(models, times, strict=True):
                taken = _one_call(model, inputs)
                if i >= warmup:
                    durations.append(taken)
    return tuple(_summary(durations) for durations in times)


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


def outputs(model: nn.Module, batches: Sequence[Batch]) -> Iterator[Tensor]:
    """The output that is looked at, batch by batch: the first floating one."""
    for batch in batches:
        with borrowed(model), torch.no_grad():
            output = main_output(flat_tensors(plain(call(model, batch.inputs))))
        yield output  # outside: a generator that is left waiting must not hold the model


def accuracy(model: nn.Module, batches: Sequence[Batch]) -> float:
    """Share of labelled answers that are right; nan if there are no labels that fit."""
    one, other = itertools.tee(outputs(model, batches))
    both = compare(one, other, batches, _padded(model, batches)).accuracy
    return float("nan") if both is None else both[0]


def agreement(model: nn.Module, other: nn.Module, batches: Sequence[Batch]) -> float:
    """Share of answers that two models have in common; needs no labels."""
    both = outputs(model, batches), outputs(other, batches)
    return compare(*both, batches, _padded(model, batches)).agreement


def _padded(model: nn.Module, batches: Sequence[Batch]) -> Program | None:
    """The record of a run that tells which outputs are those of padding; None if there is none."""
    batch = next((b for b in batches if masks(b.inputs)), None)
    if batch is None:
        return None
    program = record(model, batch.inputs)
    lay_out(model, [batch], [program])
    return program
