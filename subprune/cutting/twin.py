"""Whether a cut model does what its masked twin does, such that rounding is never taken for a wrong
index.

Three looks, each only where the one before leaves a doubt: the outputs in the model's own
precision; all of it again in float64, casts to float32 inside the model included; and, where a
model cannot run so, the difference compared with the twin's own rounding noise: how far its outputs move
if every weight and input is off by one unit in the last place. Reordered sums err by about as much
as such a nudge; a wrong index errs by as much as a unit does.
"""

from __future__ import annotations

import contextlib
import functools
import math
import traceback
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from subprune.cutting.masking import Changed, Masked
from subprune.errors import StructureError
from subprune.program.borrow import borrowed, follow
from subprune.program.ops import FAMILIES, kind_of
from subprune.program.precision import HALF, least_precise, widened
from subprune.program.program import Inputs, Program, call, flat_tensors
from subprune.program.record import plain
from subprune.program.shelf import is_large

__all__ = ["TOLERANCE", "Few", "Match", "first_line", "match", "model_outputs"]

TOLERANCE = 1e-5  # of the look in the model's own precision
_WIDE_TOLERANCE = 1e-9  # in float64: rounding is 1e-16, times 1e7 for ill-conditioned weights
# a difference of up to ten times the largest of three nudges is rounding …
_DRAWS, _MULTIPLE = 3, 10.0
_MOST_NOISE = 1e-2  # … unless it is as large as what a unit does
_USUAL = 16  # a difference of this many units in the last place of the model's numbers is rounding
_COPIED = {torch.float32: torch.float64, torch.complex64: torch.complex128}
_WIDE = {**_COPIED, **dict.fromkeys(HALF, torch.float64)}
_PIECE = 2**18  # numbers that are compared at a time: they stay in the cache


@dataclass(frozen=True)
class Few:
    """One or two inputs, and the program that was recorded for them."""

    inputs: Inputs
    program: Program


@dataclass(frozen=True)
class Match:
    """What was found. Differences are relative to the largest entry of each output."""

    problem: str = ""  # empty if the two agree
    gap: float = 0.0  # in the model's own precision
    wide_gap: float | None = None  # in float64; None if that was not needed, or cannot be run
    noise: float | None = None  # of the twin in its own precision; None if it was not needed
    usual: float = TOLERANCE  # a gap that says nothing, in the model's own precision

    @property
    def remark(self) -> str:
        """For the report: what rounding does to the outputs, where it is more than usual."""
        if self.problem or self.gap <= self.usual:
            return ""
        how = (
            f"in float64 they agree to {self.wide_gap:.1e}"
            if self.wide_gap is not None and self.wide_gap <= _WIDE_TOLERANCE
            else f"one unit in the last place of the weights moves them by {self.noise or 0.0:.1e}"
        )
        return (
            f"the smaller model and its masked twin differ by {self.gap:.1e} "
            f"(relative) from rounding alone, {how}: some new weights are large; more "
            "calibration data makes them smaller"
        )


def match(
    twin: Masked,
    small: nn.Module,
    inputs: Inputs,
    tolerance: float = TOLERANCE,
    *,
    wide: bool = False,
    few: Callable[[], Few] | None = None,
) -> Match:
    """Compare on `inputs`, which the twin's program was recorded for; `wide` asks for float64 in
    any case.

    The second and third look take five runs; they are taken on what `few` gives, if there is such a
    function.
    """
    try:
        with _same_draws():
            expected = twin(inputs)
    except Exception as error:
        return Match(
            f"the masked twin cannot be computed: {type(error).__name__}: {first_line(error)}"
        )
    try:
        got = model_outputs(small, inputs)
    except StructureError as error:
        return Match(str(error))
    problem, gap = _difference(expected, got)
    usual = max(TOLERANCE, _USUAL * least_precise(twin.dtypes))
    if problem or (gap <= tolerance and not wide):
        return Match(problem, gap, usual=usual)
    if few is not None:
        some = few()
        closer = match(
            Masked(some.program, twin.tensors, twin.override),
            small,
            some.inputs,
            tolerance,
            wide=True,
        )
        return replace(closer, gap=max(gap, closer.gap))
    wide_gap = _wide_gap(twin, small, inputs)
    if wide_gap is not None and wide_gap <= _WIDE_TOLERANCE:
        return Match("", gap, wide_gap, usual=usual)
    noise = _noise(twin, inputs, expected)
    most = max(_MOST_NOISE, usual) if wide_gap is None else _MOST_NOISE
    if gap <= max(min(_MULTIPLE * noise, most), tolerance if wide_gap is None else 0.0):
        return Match("", gap, wide_gap, noise, usual)
    also = "" if wide_gap is None else f", in float64 by {wide_gap:.1e}"
    return Match(
        f"an output of the cut model differs from the masked one by {gap:.1e} (relative){also}; "
        f"rounding moves it by {noise:.1e}",
        gap,
        wide_gap,
        noise,
        usual,
    )


def model_outputs(model: nn.Module, inputs: Inputs, *, wide: bool = False) -> list[Tensor]:
    """Outputs of one run in eval mode that leaves neither the model nor the inputs changed.

    With `wide`, everything is computed in float64.
    """
    state = [*model.parameters(), *model.buffers()]
    copied = not is_large(state)
    stand_ins = {id(x): _stand_in(x.detach(), copied) for x in state} if wide else {}
    arguments = tree_map(_widened, inputs) if wide else inputs
    precision: contextlib.AbstractContextManager[Any] = (
        _InDouble() if wide else contextlib.nullcontext()
    )
    running: list[str] = []
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(_same_draws())
            for context in (
                borrowed(model, stand_ins),
                follow(model, running),
                torch.no_grad(),
                precision,
            ):
                stack.enter_context(context)
            return flat_tensors(plain(call(model, arguments)))
    except Exception as error:
        where = repr(running[-1]) if running and running[-1] else "the model's own forward"
        raise StructureError(f"in {where}: {type(error).__name__}: {first_line(error)}") from error


@contextlib.contextmanager
def _same_draws() -> Iterator[None]:
    """Models that draw random numbers draw the same ones in every run: runs can be compared."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(0)
        yield


def first_line(error: BaseException) -> str:
    """What an error says, without its details; of one that says nothing, the line of code that
    raised it.
    """
    line = str(error).strip().split("\n")[0]
    if line:
        return line
    frames = traceback.extract_tb(error.__traceback__)
    return (frames[-1].line or "").strip() if frames else ""


def _difference(expected: Sequence[Tensor], got: Sequence[Tensor]) -> tuple[str, float]:
    """What is wrong with the shapes, or empty; and the largest difference relative to each output's
    largest entry.
    """
    if len(expected) != len(got):
        return f"it gives {len(got)} outputs, the masked model {len(expected)}", float("inf")
    largest = 0.0
    for i, (a, b) in enumerate(zip(expected, got, strict=True)):
        if a.shape != b.shape:
            return (
                f"output {i} has shape {tuple(b.shape)}, the masked model's has {tuple(a.shape)}",
                float("inf"),
            )
        if a.is_floating_point() and a.numel():
            largest = max(largest, _largest_gap(a, b))
    return "", largest


def _largest_gap(expected: Tensor, got: Tensor) -> float:
    """The largest difference of two outputs, relative to the largest finite entry of the first.

    Piece by piece: logits over a large vocabulary are large themselves.
    """
    gap, scale = 0.0, 0.0
    pairs = zip(expected.reshape(-1).split(_PIECE), got.reshape(-1).split(_PIECE), strict=True)
    for a, b in pairs:
        apart = (a - b).abs()
        if not bool(apart.isfinite().all()):  # infinities of a mask, for instance
            same = (a == b) | (a.isnan() & b.isnan())
            apart = torch.where(same, 0, apart)
            a = a[a.isfinite()]
        worst = float(apart.max())
        gap = max(gap, math.inf if math.isnan(worst) else worst)
        scale = max(scale, float(a.abs().max()) if a.numel() else 0.0)
    return gap / (scale or 1.0)


# ---- float64 -------------------------------------------------------------------------------------


def _widened(x: Any) -> Any:
    """Tensors and types of single and half precision in double; anything else as it is."""
    return widened(x, _WIDE)


def _stand_in(x: Tensor, copied: bool) -> Tensor:
    """A parameter for a run in double.

    Matrices of large models, or in half precision, are left to be converted when an operation reads
    them: a model that is kept in it may be too large for a wider copy.
    """
    if x.ndim < 2:
        return widened(x, _WIDE)
    return widened(x, _COPIED) if copied else x


class _InDouble(TorchDispatchMode):
    """Every operation in float64, whatever type the model's code asks for (``x.to(torch.float32)``
    in a norm).
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here, and asking for the compiler would import it: two seconds."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if kind_of(func) not in FAMILIES["look-up"]:  # these read a few rows of a large table
            args, kwargs = tree_map(_widened, (args, kwargs or {}))
        return tree_map(_widened, func(*args, **(kwargs or {})))


def _wide_gap(twin: Masked, small: nn.Module, inputs: Inputs) -> float | None:
    """The difference in float64; None where the model or its record cannot run so.

    A module that is run as a whole keeps its own tensors in the record, so its precision is not
    ours to choose.
    """
    if twin.program.opaque:
        return None
    try:
        tensors = Changed(twin.tensors, lambda name, x: _stand_in(x, copied=False))
        with _same_draws(), _InDouble(), torch.no_grad():
            expected = Masked(twin.program, tensors, twin.override)(tree_map(_widened, inputs))
        got = model_outputs(small, inputs, wide=True)
    except Exception:  # a device without float64, a type that the code insists on
        return None
    if any(x.dtype in HALF for x in (*expected, *got)):
        return None
    problem, gap = _difference(expected, got)
    return None if problem else gap


# ---- rounding noise ------------------------------------------------------------------------------


def _noise(twin: Masked, inputs: Inputs, expected: Sequence[Tensor]) -> float:
    """The largest of a few moves of the twin's outputs by a nudge of all weights and inputs."""
    largest = 0.0
    for draw in range(_DRAWS):
        tensors = Changed(twin.tensors, functools.partial(_nudged, draw))
        with _same_draws():
            there = [_nudged(draw, f"input {i}", x) for i, x in enumerate(tree_flatten(inputs)[0])]
            nudged = tree_unflatten(there, tree_flatten(inputs)[1])
            moved = Masked(twin.program, tensors, twin.override)(nudged)
        largest = max(largest, _difference(expected, moved)[1])
    return largest


def _nudged(draw: int, name: str, x: Any) -> Any:
    """One unit in the last place up or down, at random, for every entry of a tensor; the same
    whenever it is asked for.
    """
    if not isinstance(x, Tensor) or not x.is_floating_point():
        return x
    generator = torch.Generator().manual_seed(zlib.crc32(f"{draw} {name}".encode()))
    sign = torch.randint(0, 2, x.shape, generator=generator).to(x) * 2 - 1
    return x * (1 + torch.finfo(x.dtype).eps * sign)
