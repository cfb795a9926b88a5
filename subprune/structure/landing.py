"""Where a layer's output lands: after the norm that follows it, and the sum it joins.

A convolution z of a residual branch goes through BatchNorm and is added to the shortcut r; what the
rest of the network sees is ``s = a·z + b + r``, with one a and b for each channel. A layer that is
fitted there makes up for what changed in the shortcut too, and a constant that it lacks a bias for
goes into b, exactly.

As an example, ``relu(norm(conv(x)) + x)``::

    %3 = convolution(x, weight)       Landing(value=5, op=5, others=(x,), rectified=True,
    %4 = batch_norm(%3, …)                    constant="norm.bias")
    %5 = add(%4, x)
    %6 = relu(%5)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from subprune.program.ops import argument, belongs, norm

if TYPE_CHECKING:
    from subprune.program.program import Op, Program
    from subprune.structure.flow import Use

__all__ = ["Landing", "LandingStep", "Scaling", "Sum", "find_landing"]


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """A norm by stored means and variances: a factor and a shift for each channel."""

    weight: str | None  # names of tensors
    bias: str | None
    mean: str
    variance: str
    epsilon: float


@dataclass(frozen=True, kw_only=True)
class Sum:
    """Another value is added."""

    value: int
    # Operations after the layer that make it, where it is not there before the layer runs.
    needs: tuple[int, ...] = ()


LandingStep = Scaling | Sum


@dataclass(frozen=True, kw_only=True)
class Landing:
    """The value that a layer's output becomes before anything but norms and sums sees it."""

    value: int  # value id; the layer's own output if nothing follows it
    op: int  # the operation that makes it
    dim: int  # its dimension that the layer's outputs lie in: 1, or -1 for the last
    steps: tuple[LandingStep, ...] = ()
    rectified: bool = False  # only ReLU reads the value
    bias: str | None = None  # what the layer's own bias is called
    constant: str | None = None  # the tensor that a constant can be added to
    before: int = 0  # steps between the layer and that tensor, its own included

    @property
    def sums(self) -> tuple[Sum, ...]:
        return tuple(step for step in self.steps if isinstance(step, Sum))


def find_landing(
    program: Program, use: Use, own_bias: str | None, shared: Iterable[str]
) -> Landing | None:
    """Follow a layer's output through norms and sums, as long as nothing else reads it.

    own_bias: its bias, if that is added once, as it is, to its outputs alone. shared: tensors that
    others use too. None if what the layer adds to the product is not a plain bias.
    """
    if not _plain_bias(program, use):
        return None
    # One norm or sum after another, while the value is read by that alone.
    read_by = _read_by(program)
    dim = use.product.output
    value, made = use.output, use.op
    steps: list[LandingStep] = []
    constant, before = own_bias, 0
    while True:
        readers = read_by.get(value, [])
        if len(readers) != 1 or value in program.outputs:
            break
        op = readers[0]
        step = _scaling(program, op, value, dim, read_by) or _sum(program, op, value, use)
        if step is None:
            break
        steps.append(step)
        value, made = op.outs[0], op.index
        # Behind a sum the bias is not this layer's own: others of the sum may write to it, too.
        summed = any(isinstance(s, Sum) for s in steps)
        bias = step.bias if isinstance(step, Scaling) and not summed else None
        if constant is None and bias not in (None, *shared):
            constant, before = bias, len(steps)
    readers = read_by.get(value, [])
    rectified = (
        bool(readers)
        and value not in program.outputs
        and all(belongs(op, "relu") for op in readers)
    )
    return Landing(
        value=value,
        op=made,
        dim=dim,
        steps=tuple(steps),
        rectified=rectified,
        bias=use.bias,
        constant=constant,
        before=before,
    )


def _plain_bias(program: Program, use: Use) -> bool:
    """Whether the layer adds nothing to its product, or a parameter with a number for each output."""
    op = program.ops[use.op]
    given = None if use.product.bias is None else argument(op, use.product.bias)
    if given is None or use.bias is None:
        return given is None and use.bias is None
    if use.product.addend and any(argument(op, f) != 1 for f in ("alpha", "beta")):
        return False
    outputs = program.values[use.output].shape[use.product.output]
    return program.values[program.tensors[use.bias]].shape == (outputs,)


def _read_by(program: Program) -> Mapping[int, list[Op]]:
    """The operations that read each value."""
    readers: dict[int, list[Op]] = {}
    for op in program.ops:
        for value in op.inputs:
            readers.setdefault(value, []).append(op)
    return readers


def _scaling(
    program: Program, op: Op, value: int, dim: int, read_by: Mapping[int, Sequence[Op]]
) -> Scaling | None:
    """A norm of the value by stored statistics, one number for each output of the layer."""
    entry = norm(op)
    if entry is None or entry.stored is None or entry.measures(op) or op.mutates:
        return None
    if op.value_at(entry.activation) != value or any(read_by.get(v) for v in op.outs[1:]):
        return None
    if dim % len(program.values[value].shape) != 1:
        return None
    names = [_name(program, op.value_at(n)) for n in ("weight", "bias", *entry.stored)]
    given = [argument(op, n) is not None for n in ("weight", "bias", *entry.stored)]
    weight, bias, mean, variance = names
    if any(g and n is None for g, n in zip(given, names, strict=True)) or not mean or not variance:
        return None
    return Scaling(
        weight=weight, bias=bias, mean=mean, variance=variance, epsilon=argument(op, "eps")
    )


def _sum(program: Program, op: Op, value: int, use: Use) -> Sum | None:
    """A sum of the value with another one of the same shape."""
    if not belongs(op, "plain sum of two") or op.mutates or argument(op, "alpha") not in (None, 1):
        return None
    parts = [op.value_at(name) for name in ("self", "other")]
    others = [p for p in parts if p is not None and p != value]
    if None in parts or len(others) != 1:
        return None
    other = program.values[others[0]]
    same = other.shape == program.values[value].shape == program.values[op.outs[0]].shape
    if not same or (other.source != "op" and other.source != "input"):
        return None
    needs = _needs(program, other.id, use.op)
    if any(program.ops[i].mutates for i in needs):  # what they overwrite, the run still needs
        return None
    return Sum(value=other.id, needs=needs)


def _needs(program: Program, value: int, after: int) -> tuple[int, ...]:
    """The operations behind `after` that a value is made by, in forward order."""
    maker = {v: op for op in program.ops for v in op.outs}
    wanted, needed = [value], set()
    while wanted:
        op = maker.get(wanted.pop())
        if op is not None and op.index > after and op.index not in needed:
            needed.add(op.index)
            wanted += op.inputs
    return tuple(sorted(needed))


def _name(program: Program, number: int | None) -> str | None:
    """The parameter or buffer that a value is, as it is."""
    if number is None:
        return None
    value = program.values[number]
    return value.name if value.source in ("param", "buffer") else None
