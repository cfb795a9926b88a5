"""How much the model's output feels an error of each channel of a value. No labels.

The output is asked in random directions: for a vector v of ±1, the gradient of ``vᵀ·output`` with
respect to a value says how far the output moves along v if the value is off. Its mean square over
inputs, positions and directions is what a squared error of the channel counts with; the square root
is kept. Class scores are centred first, since adding the same to all of them changes no answer.

Of the many words that a language model chooses from, most are out of the question, and their scores
may be anything. There v is an answer drawn from the model's own probabilities p, less p: the mean
square is then the Fisher information, by which KL divergence grows with small errors.
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
from subprune.program.precision import single
from subprune.program.program import flat_tensors, model_tensors
from subprune.statistics.place import generator
from subprune.statistics.sums import column_sums

if TYPE_CHECKING:
    from subprune.data.batch import Batch
    from subprune.measure.answers import Reading
    from subprune.program.program import Op, Override, Program
    from subprune.statistics.calibration import Calibration
    from subprune.structure.groups import Consumer
    from subprune.structure.landing import Landing

__all__ = ["draws_answers", "measure_metric"]

PROBES = 2
"""Random directions for each input."""

INPUTS, ANSWERS = 128, 2048
"""Inputs that are asked, or answers about them (tokens, pixels) if those are many; what comes after
would change little.
"""


def draws_answers(reading: Reading) -> bool:
    """Whether the output is asked about answers that are drawn, not in directions of ±1: where it
    chooses between words, one choice for each token.
    """
    return reading.kind == "token" and reading.dim is not None


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
    asked, drawn = _asked(calibration), 0

    def one(number: int) -> dict[int, tuple[Tensor, int]] | None:
        """Of one batch; None where an operation cannot be gone back through."""
        nonlocal drawn
        for program, batch in asked[drawn:number]:  # that other ranks ask
            _pass_over(program, batch, random)
        drawn = number + 1
        try:
            return _squares(calibration, *asked[number], landings, random)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:
            return None

    for squares_of_one in calibration.ranks.each(one, range(len(asked))):
        if squares_of_one is None:
            return {}
        for value, (channels, positions) in squares_of_one.items():
            squares[value] = squares[value] + channels if value in squares else channels
            counts[value] += positions
    means = {value: total / max(1, counts[value]) for value, total in squares.items()}
    return {value: mean.sqrt() for value, mean in means.items() if _tells(mean)}


def _asked(calibration: Calibration) -> list[tuple[Program, Batch]]:
    """The batches, the first ones, that are enough."""
    asked: list[tuple[Program, Batch]] = []
    seen = answers = 0
    for program, batch in zip(calibration.programs, calibration.batches, strict=True):
        if seen >= INPUTS or answers >= ANSWERS:
            break
        seen += batch.size
        answers += _answers(program.values[program.answer].shape)
        asked.append((program, batch))
    return asked


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
    sums: dict[int, tuple[Tensor, int]] = {}
    known = masks(batch.inputs)
    starts: list[Tensor] = []  # values that no other watched one leads to

    def watch(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = op.func(*args, **kwargs)
        first, value = flat_tensors(result)[0], op.outs[0]
        if first.requires_grad:
            probed = first.view_as(first)
        else:
            probed = first.detach().requires_grad_()
            starts.append(probed)

        def felt(grad: Tensor) -> None:
            mine = counted(program, known, value)
            square, positions = _square(grad, landings[value].dim, mine)
            before, count = sums.get(value, (torch.zeros_like(square), 0))
            sums[value] = before + square, count + positions

        probed.register_hook(felt)  # squared as it arrives: gradients of all are never held
        if program.overwrites:  # others may write into what they read
            with torch.enable_grad():
                probed = probed.clone()
        return probed if isinstance(result, Tensor) else (probed, *result[1:])

    override: dict[int, Override] = {landing.op: watch for landing in landings.values()}
    tensors = model_tensors(calibration.model, program)
    env = program.run(program.bind(batch.inputs), tensors, override=override, grad=True)
    output = program.fetch_output(program.answer, env, tensors)
    if not output.requires_grad:
        return {}
    # With random directions v, the mean square of ∂(v·y)/∂s is the diagonal of JᵀJ, where J = ∂y/∂s.
    reading = read_program(program, batch)
    where = answered(output.shape, batch, reading, program)
    for probe in range(PROBES):
        direction = _direction(output.detach(), reading, random)
        if where is not None:
            direction = torch.where(where, direction, 0)
        last = probe + 1 == PROBES
        torch.autograd.grad(output, starts, direction, retain_graph=not last, allow_unused=True)
        del direction  # as large as the output
    return sums


def _square(grad: Tensor, dim: int, counted: Tensor | None) -> tuple[Tensor, int]:
    """Squared gradients of each channel, summed [channels] float64; of how many positions.

    dim: the channels'; counted: which positions do; None: all.
    """
    dim = dim % grad.ndim
    if counted is not None:  # [rows, channels]
        grad, dim = grad.movedim(dim, -1)[over_rows(counted, grad.shape, dim).squeeze(dim)], 1
    # Squares of float16 would end at 256, and vanish below 1e-4.
    rows = single(grad).movedim(dim, -1).reshape(-1, grad.shape[dim])
    return column_sums(rows.square()).cpu(), len(rows)


def _answers(shape: Sequence[int]) -> int:
    """In an output of this shape: one for each position of a sequence, else one for each input."""
    return math.prod(shape[:-1]) if len(shape) == 3 else math.prod(shape[:1])


def _direction(output: Tensor, reading: Reading, random: torch.Generator) -> Tensor:
    """What the output is asked about, in its shape."""
    if draws_answers(reading):
        assert reading.dim is not None
        # The gradient of log p(answer) with respect to the scores is 1{answer} − p.
        shares = output.float().movedim(reading.dim, -1).softmax(-1)
        answers = _drawn(shares, random)[..., None]
        shares = shares.neg_().scatter_add_(
            -1, answers, torch.ones_like(answers, dtype=shares.dtype)
        )
        return shares.movedim(-1, reading.dim).to(output)
    signs = _signs(output, random)
    if reading.dim is None:
        return signs
    # The gradient of Σ v·(y − ȳ) with respect to the output y, of mean ȳ over classes, is v − v̄.
    return signs - signs.mean(reading.dim, keepdim=True)


def _pass_over(program: Program, batch: Batch, random: torch.Generator) -> None:
    """Draw the random numbers of a batch, and leave them."""
    shape, reading = program.values[program.answer].shape, read_program(program, batch)
    for _ in range(PROBES):
        if draws_answers(reading):
            _levels([n for d, n in enumerate(shape) if d != reading.dim], random)
        else:
            _bits(shape, random)


def _levels(shape: Sequence[int], random: torch.Generator) -> Tensor:
    return torch.rand(tuple(shape), generator=random, dtype=torch.float64)


def _drawn(shares: Tensor, random: torch.Generator) -> Tensor:
    """For each position of shares [N, T, classes] a class [N, T], drawn with these chances."""
    levels = _levels(shares.shape[:-1], random)
    sums = shares.cumsum(-1)
    wanted = (levels.to(sums) * sums[..., -1])[..., None]
    return torch.searchsorted(sums, wanted).squeeze(-1).clamp_max(shares.shape[-1] - 1)


def _signs(like: Tensor, random: torch.Generator) -> Tensor:
    """Random ±1 in the shape of the output."""
    return _bits(like.shape, random).to(like).mul_(2).sub_(1)


def _bits(shape: Sequence[int], random: torch.Generator) -> Tensor:
    return torch.randint(0, 2, tuple(shape), generator=random, dtype=torch.uint8)
