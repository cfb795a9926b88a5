"""How much the model's output feels an error of each channel of a value. No labels.

The output is asked in random directions: for a vector v of ±1, the gradient of ``vᵀ·output`` with
respect to a value says how far the output moves along v if the value is off. Its mean square over
inputs, positions and directions is what a squared error of the channel counts with; the square root
is kept. Class scores are centred first, since adding the same to all of them changes no answer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from subprune.data.tokens import masks
from subprune.measure.answers import answered, read_program
from subprune.program.layout import counted, over_rows
from subprune.program.program import flat_tensors, model_tensors
from subprune.statistics.place import generator

if TYPE_CHECKING:
    from subprune.data.batches import Batch
    from subprune.program.program import Op, Override, Program
    from subprune.statistics.calibration import Calibration
    from subprune.structure.groups import Consumer
    from subprune.structure.landing import Landing

__all__ = ["measure_metric"]

PROBES = 2
"""Random directions for each input."""

INPUTS, ANSWERS = 128, 4096
"""Inputs that are asked, or answers about them (tokens, pixels) if those are many; what comes after
would change little.
"""


def measure_metric(calibration: Calibration, consumers: Sequence[Consumer]) -> dict[int, Tensor]:
    """By value: √ of what a squared error of each channel counts with, [channels] float64.

    Of the landings of these consumers, in the dense model. Values that the output does not depend
    on are not among them; none is where an operation of the model has no gradient.
    """
    landings = {c.landing.value: c.landing for c in consumers if c.landing is not None}
    if not landings:
        return {}
    squares: dict[int, Tensor] = {}
    counts = dict.fromkeys(landings, 0)
    random = generator(0, "metric")  # the same directions whatever the seed of the call
    seen = answers = 0
    for program, batch in zip(calibration.programs, calibration.batches, strict=True):
        if seen >= INPUTS or answers >= ANSWERS:
            break
        seen += batch.size
        answers += _answers(program.values[program.answer].shape)
        try:
            found = _squares(calibration, program, batch, landings, random)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:  # of an operation that cannot be gone back through
            return {}
        for value, (channels, positions) in found.items():
            squares[value] = squares[value] + channels if value in squares else channels
            counts[value] += positions
    means = {value: total / max(1, counts[value]) for value, total in squares.items()}
    return {value: mean.sqrt() for value, mean in means.items() if _tells(mean)}


def _tells(mean: Tensor) -> bool:
    """Whether some channel is felt, and none so much that the model's precision cannot say it."""
    return bool((mean > 0).any()) and bool(mean.isfinite().all())


def _squares(
    calibration: Calibration,
    program: Program,
    batch: Batch,
    landings: Mapping[int, Landing],
    random: torch.Generator,
) -> dict[int, tuple[Tensor, int]]:
    """By value: sums of squared gradients of each channel, and how many were summed."""
    values: dict[int, Tensor] = {}

    def watch(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = op.func(*args, **kwargs)
        first = flat_tensors(result)[0]
        own = first.view_as(first) if first.requires_grad else first.detach().requires_grad_()
        values[op.outs[0]] = own
        with torch.enable_grad():
            read = own.clone()  # which others may overwrite
        return read if isinstance(result, Tensor) else (read, *result[1:])

    override: dict[int, Override] = {landing.op: watch for landing in landings.values()}
    tensors = model_tensors(calibration.model, program)
    env = program.run(program.bind(batch.inputs), tensors, override=override, grad=True)
    output = program.fetch_output(program.answer, env, tensors)
    if not output.requires_grad:
        return {}
    known = masks(batch.inputs)
    where = answered(output.shape, batch, read_program(program, batch), program)
    order = list(values)
    sums: dict[int, tuple[Tensor, int]] = {}
    for probe in range(PROBES):
        # The gradient of Σ v·(y − ȳ) with respect to the output y is v − v̄.
        signs = _signs(output, random)
        direction = _centred(signs if where is None else torch.where(where, signs, 0))
        grads = torch.autograd.grad(
            output,
            [values[v] for v in order],
            direction,
            retain_graph=probe + 1 < PROBES,
            allow_unused=True,
        )
        del direction, signs  # as large as the output
        for value, grad in zip(order, grads, strict=True):
            if grad is None:
                continue
            dim = landings[value].dim % grad.ndim
            own = counted(program, known, value)
            if own is not None:  # [rows, channels]
                grad, dim = grad.movedim(dim, -1)[over_rows(own, grad.shape, dim).squeeze(dim)], 1
            others = [d for d in range(grad.ndim) if d != dim]
            square = grad.double().square().sum(others).cpu()
            before, count = sums.get(value, (torch.zeros_like(square), 0))
            sums[value] = before + square, count + grad.numel() // grad.shape[dim]
    return sums


def _answers(shape: Sequence[int]) -> int:
    """In an output of this shape: one for each position of a sequence, else one for each input."""
    return math.prod(shape[:-1]) if len(shape) == 3 else math.prod(shape[:1])


def _centred(output: Tensor) -> Tensor:
    """Scores less their mean over the classes: dimension 1 of maps, the last of other outputs."""
    dim = 1 if output.ndim == 4 else -1
    if output.ndim == 0 or output.shape[dim] < 2:
        return output
    return output - output.mean(dim, keepdim=True)


def _signs(like: Tensor, random: torch.Generator) -> Tensor:
    """Random ±1 in the shape of the output."""
    bits = torch.randint(0, 2, like.shape, generator=random, dtype=torch.uint8)
    return bits.to(like).mul_(2).sub_(1)
