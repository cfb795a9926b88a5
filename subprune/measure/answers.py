"""What an output answers: where its classes lie, and what one answer is about.

The outputs of a network are numbers without a label on them. What they mean is read from evidence,
strongest first: the labels; an input that the output resembles (images made from images); the
recorded operations that made the output; and integer inputs (tokens).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from subprune.data.tokens import IGNORED, masks
from subprune.program.layout import counted
from subprune.program.ops import activation, argument, belongs, joined, moved, product
from subprune.program.program import Op, Program, Ref, Value, flat_tensors

if TYPE_CHECKING:
    from subprune.data.batch import Batch

__all__ = ["Reading", "answered", "fitting", "main_output", "read", "read_program"]


@dataclass(frozen=True)
class Reading:
    """How an output is read."""

    dim: int | None  # dimension of the classes; None: the outputs are numbers, not classes
    kind: str = ""  # what an answer is about: "input", "pixel", "token", "position"; "" for numbers
    vectors: bool = False  # whether the numbers in the last dimension are one vector, an embedding

    def classes(self, output: Tensor) -> Tensor:
        """The class with the largest output, for every answer."""
        if self.dim is None:
            raise ValueError("the outputs are not classes")
        return output if not output.is_floating_point() else output.argmax(self.dim)


def main_output(tensors: Sequence[Tensor]) -> Tensor:
    """The output that is looked at: the first floating one, or the first if there is none."""
    return next((x for x in tensors if x.is_floating_point()), tensors[0])


def read(output: Tensor, batch: Batch, program: Program | None = None) -> Reading:
    """How the output of a batch is read; `program` is the recorded run that made it, if any.

    * Labels decide: floating ones are numbers to be met; integers are classes, along the dimension
      that the output has beyond them: ``[N]`` for ``[N, C]``, ``[N, H, W]`` for ``[N, C, H, W]``,
      ``[N, T]`` for ``[N, T, V]``.
    * One column is a number. An output of the shape of a floating input, or with its channels and a
      multiple of its height and width, is one made from it (a denoiser, an autoencoder,
      super-resolution): numbers.
    * What made the output: a normalised vector, tanh, or a sum with the input itself is not a
      choice between classes, nor is what several layers gave side by side: numbers. The classes
      of a linear layer are last, those of a convolution second.
    * Integer inputs ``[N, T]`` are tokens: the classes of ``[N, T, V]`` are last.
    * Other numbers ``[N, d]`` and ``[N, T, d]`` are vectors, such as embeddings.
    * Where none of this helps: classes last in ``[N, C]`` and ``[N, T, V]``, second in
      ``[N, C, H, W]``.
    """
    if output.is_complex():
        return Reading(None)
    if not output.is_floating_point():  # class numbers already
        return Reading(output.ndim, _kind(tuple(output.shape), output.ndim, batch))
    dim = _class_dim(output, batch, program)
    if dim is None:
        return Reading(None, vectors=_are_vectors(tuple(output.shape), batch))
    shape = tuple(n for d, n in enumerate(output.shape) if d != dim)
    return Reading(dim, _kind(shape, dim, batch))


def read_program(program: Program, batch: Batch) -> Reading:
    """How the output of a recorded run on the batch is read, before there are any outputs."""
    value = program.values[program.answer]
    return read(torch.empty(value.shape, dtype=value.dtype, device="meta"), batch, program)


def answered(
    shape: Sequence[int], batch: Batch, reading: Reading, program: Program | None
) -> Tensor | None:
    """Which positions of an output of this shape count; where it is the same for all, the
    dimension has length 1. None: all count.

    Padding does not, nor do tokens whose label is `IGNORED`. A pixel without a label has an answer
    all the same.
    """
    known = masks(batch.inputs)
    where = None
    if known and program is not None:
        where = counted(program, known, program.answer, shape)
    labels, dim = batch.labels, reading.dim
    if labels is None or dim is None or reading.kind != "token" or labels.is_floating_point():
        return where
    if tuple(labels.shape) != tuple(n for d, n in enumerate(shape) if d != dim):
        return where
    labelled = labels != IGNORED
    if bool(labelled.all()):
        return where
    labelled = labelled.unsqueeze(dim) if dim < len(shape) else labelled
    return labelled if where is None else where & labelled


def fitting(labels: Tensor, output: Tensor, dim: int) -> bool:
    """Whether there is one class number for every answer along `dim`; some may be `IGNORED`."""
    shape = tuple(n for d, n in enumerate(output.shape) if d != dim)
    if labels.is_floating_point() or tuple(labels.shape) != shape:
        return False
    known = labels[labels != IGNORED]
    classes = output.shape[dim] if dim < output.ndim else torch.iinfo(torch.int64).max
    return known.numel() > 0 and int(known.min()) >= 0 and int(known.max()) < classes


def _kind(shape: tuple[int, ...], dim: int, batch: Batch) -> str:
    """What one of the answers [shape] is about."""
    if prod(shape) == batch.size:
        return "input"
    if any(prod(x.shape) == prod(shape) for x in _integers(batch)):
        return "token"
    if len(shape) > 2:
        return "pixel"
    return "token" if dim == len(shape) else "position"


def _integers(batch: Batch) -> list[Tensor]:
    return [x for x in flat_tensors(batch.inputs) if x.dtype in (torch.int64, torch.int32)]


def _class_dim(output: Tensor, batch: Batch, program: Program | None) -> int | None:
    shape, labels = tuple(output.shape), batch.labels
    if len(shape) < 2:
        return None
    # By convention first, then by what made the output, then by labels, which decide.
    origin = _Origin() if program is None else _origin(program)
    usual = 1 if len(shape) > 3 else len(shape) - 1
    if origin.dim is not None and origin.dim < len(shape):
        usual = origin.dim
    if labels is not None:
        if labels.is_floating_point():
            return None
        places = [d for d in (usual, *range(1, len(shape))) if fitting(labels, output, d)]
        if places and shape[places[0]] > 1:
            return places[0]
    if not origin.classes or _made_from_input(shape, batch):
        return None
    if any(tuple(x.shape) == shape[:-1] for x in _integers(batch)):  # one answer for every token
        usual = len(shape) - 1
    return usual if shape[usual] > 1 else None


def _are_vectors(shape: tuple[int, ...], batch: Batch) -> bool:
    """Whether numbers [N, d] or [N, T, d] are vectors: not met by labels, nor made like an input."""
    if len(shape) not in (2, 3) or shape[-1] < 2 or _made_from_input(shape, batch):
        return False
    if batch.labels is not None and batch.labels.is_floating_point():
        return False
    series = [x for x in flat_tensors(batch.inputs) if x.is_floating_point() and x.ndim == 3]
    return len(shape) == 2 or not series  # which dimension of a series is time cannot be said


def _made_from_input(shape: tuple[int, ...], batch: Batch) -> bool:
    """Whether an input looks like the output:
    its channels, and lengths that divide the output's.
    """
    for x in flat_tensors(batch.inputs):
        if not x.is_floating_point() or x.ndim != len(shape) or x.shape[:2] != shape[:2]:
            continue
        if all(n and m % n == 0 for m, n in zip(shape, x.shape, strict=True)):
            return True
    return False


# ---- what the recorded operations say ------------------------------------------------------------


@dataclass(frozen=True)
class _Origin:
    """What made the output: where its classes lie, if that is known, and whether they are any."""

    dim: int | None = None
    classes: bool = True


_NUMBERS = _Origin(classes=False)


def _origin(program: Program) -> _Origin:
    """Back from the output to the layer that made it, then forward with its output dimension."""
    makers = {vid: op for op in program.ops for vid in op.outs}
    steps: list[tuple[Op, Value, Value]] = []
    made = program.values[program.answer]
    while made.id in makers:
        op = makers[made.id]
        entry = product(op)
        if entry is not None:
            return _forward(entry.output % len(made.shape), reversed(steps))
        sources = [
            program.values[v] for v in op.inputs if program.values[v].source in ("op", "input")
        ]
        if belongs(op, "features") or any(
            v.source == "input" and v.shape == made.shape for v in sources
        ):
            return _NUMBERS
        candidates = [v for v in sources if v.source == "op" and v.dtype.is_floating_point]
        if not candidates:
            return _Origin()
        read = max(candidates, key=lambda v: prod(v.shape))  # not the factor, nor the bias
        if belongs(op, "scaling") and any(_is_norm(v, read, makers, program) for v in candidates):
            return _NUMBERS
        steps.append((op, read, made))
        made = read
    return _Origin()


def _forward(output: int, steps: Iterable[tuple[Op, Value, Value]]) -> _Origin:
    dim: int | None = output
    for op, read, made in steps:
        # What several layers gave, side by side in the dimension of the classes, is not one choice:
        # a detector's distances beside scores.
        if dim is not None and joined(op, len(read.shape)) == dim:
            return _NUMBERS
        dim = None if dim is None else moved(op, read.shape, made.shape, dim)
    return _Origin(dim)


def _is_norm(scale: Value, read: Value, makers: dict[int, Op], program: Program) -> bool:
    """Whether a factor was computed from the vectors it multiplies, one number for each.

    The product is then a direction. A plain sum is not a norm: divided by it, classes become
    shares.
    """
    maker = makers.get(scale.id)
    if maker is not None and belongs(maker, "repetition"):  # expanded to the vectors' shape
        source = argument(maker, activation(maker))
        scale = program.values[source.id] if isinstance(source, Ref) else scale
        maker = makers.get(scale.id)
    if maker is None or belongs(maker, "sum") or len(scale.shape) != len(read.shape):
        return False
    narrow = [d for d, (m, n) in enumerate(zip(scale.shape, read.shape, strict=True)) if m == 1 < n]
    return len(narrow) == 1 and _depends(scale.id, read.id, makers)


def _depends(value: int, on: int, makers: dict[int, Op]) -> bool:
    """Whether a value was computed from another; nothing made before that one is looked at."""
    first = makers[on].index
    waiting, visited = [value], {value}
    while waiting:
        maker = makers.get(waiting.pop())
        if maker is None or maker.index <= first:
            continue
        if on in maker.inputs:
            return True
        waiting += [v for v in maker.inputs if v not in visited]
        visited.update(maker.inputs)
    return False
