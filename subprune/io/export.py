"""`torch.export` and ONNX files of a pruned model, each run and compared with PyTorch before it is
kept.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from subprune.cutting.surgery import duplicate
from subprune.data.batches import examples
from subprune.errors import DataError, OptionError, StructureError, closest
from subprune.plan import history_of
from subprune.program.borrow import borrowed, given_back
from subprune.program.process import quiet
from subprune.program.program import Inputs, call, flat_tensors
from subprune.program.record import plain
from subprune.program.shapes import filled_inputs
from subprune.report.figures import Exported

if TYPE_CHECKING:
    from subprune.io.pruned import Pruned

__all__ = ["FORMATS", "export"]

FORMATS = {"onnx": ".onnx", "torch-export": ".pt2"}
_TOLERANCE = 1e-4  # of the largest entry of an output
_NOISE = 4  # a file may differ by this many times what PyTorch's float32 differs from float64,
_MOST = 1e-2  # but never by more than this, which rounding does not explain


@given_back
def export(
    result: Pruned | nn.Module, path: str | Path, *, format: str | None = None, example: Any = None
) -> Exported:
    """Write the model as ``.onnx`` or ``.pt2`` (torch.export), run the file, and compare it with
    PyTorch.

    Each output may differ by 1e-4 of its largest entry, or by four times what PyTorch's own float32
    differs from float64 where that is more; whole numbers must be equal but for as many as differ
    there.

    Args:
        result: the result of `prune`, or any model.
        path: where to write; the ending says the format unless `format` does.
        format: "onnx" or "torch-export".
        example: an example input; needed for models that `prune` or `load` did not make.

    A file that does not agree with PyTorch is not kept. ONNX needs ``pip install
    'subprune[export]'``.
    """
    model = result if isinstance(result, nn.Module) else result.model
    path = Path(path)
    kind = _format(path, format)
    small = duplicate(model).eval()
    arguments = examples(model, example) if example is not None else _example(model)
    write, run = (_write_onnx, _run_onnx) if kind == "onnx" else (_write_program, _run_program)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".") as folder:
        file = Path(folder) / path.name
        batch = _write(small, arguments, file, write)
        written = run(file)
        tests = (
            [_resized(arguments, n) for n in ((2, 3) if batch == "any" else (int(batch),))]
            if batch
            else [arguments]
        )
        gaps = [gap for x in tests for gap in _gaps(small, written, x)]
        worst = max(gaps, key=lambda gap: gap.file / gap.allowed)
        if worst.file > worst.allowed:
            raise StructureError(
                f"the {kind} file differs from PyTorch by {worst.file:.1e}, more than "
                f"{worst.allowed:.1e}{worst.why}; it was not kept"
            )
        latency = (
            _seconds(lambda: small(*arguments[0], **arguments[1])),
            _seconds(lambda: written(arguments)),
        )
        size = sum(f.stat().st_size for f in Path(folder).iterdir())
        os.replace(file, path)
    return Exported(
        path=path.name,
        format=kind,
        bytes=size,
        difference=max(gap.file for gap in gaps),
        batch=batch or "as given",
        latency=latency,
    )


def _format(path: Path, format: str | None) -> str:
    kind = format or next((k for k, ending in FORMATS.items() if path.suffix == ending), None)
    if kind not in FORMATS:
        near = closest(str(kind), FORMATS) if kind else ""
        given = f"the ending of {path.name!r} is not known" if format is None else f"{format=}"
        raise OptionError(f"{given}: {near}allowed are onnx (.onnx) and torch-export (.pt2)")
    return str(kind)


def _example(model: nn.Module) -> Inputs:
    """Inputs of the shapes the model was pruned with: normal numbers, and zeros and ones where
    integers go.
    """
    history = history_of(model)
    if not history:
        raise DataError(
            f"this {type(model).__name__} was not made by subprune.prune; "
            "pass example= to export it"
        )
    return _resized(filled_inputs(dict(history[-1]["inputs"])), 2)


def _resized(inputs: Inputs, batch: int) -> Inputs:
    """The inputs with another number of samples, repeated or cut, where all tensors have the same
    number.
    """
    sizes = {x.shape[0] if x.ndim else 0 for x in flat_tensors(inputs)}
    if len(sizes) != 1 or 0 in sizes:
        return inputs

    def resize(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        return x[torch.arange(batch) % x.shape[0]].contiguous()

    return tree_map(resize, inputs)


def _root(error: BaseException) -> str:
    """The error that others were raised from, in one line without colours: exporters wrap it in
    advice on whom to write to. A known one has a remedy.
    """
    while error.__cause__ is not None:
        error = error.__cause__
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip().split("\n")[0][:300]
    words = f"{type(error).__name__}: {text}"
    if name := re.search(r"references nonexistent attribute \S+ of (\w+)$", text):
        words += f"; it cannot export a submodule named {name[1]!r}: rename it"
    return words


Writer = Callable[[nn.Module, Inputs, Path, Any], None]


def _write(model: nn.Module, inputs: Inputs, file: Path, write: Writer) -> str:
    """Write for any batch size if the model allows it, else for the example's; returns which."""
    sizes = {x.shape[0] if x.ndim else 0 for x in flat_tensors(inputs)}
    same = len(sizes) == 1 and 0 not in sizes
    attempts: list[tuple[str, Inputs, Any]] = []
    if same:
        shapes = tree_map(
            lambda x: {0: torch.export.Dim.AUTO} if isinstance(x, Tensor) else None, inputs
        )
        attempts.append(("any", _resized(inputs, 2), shapes))
        attempts.append((str(next(iter(sizes))), inputs, None))
    else:
        attempts.append(("", inputs, None))
    for i, (batch, arguments, shapes) in enumerate(attempts):
        try:
            with _quiet():
                write(model, arguments, file, shapes)
            if batch == "any" and not _takes_any(file, write, inputs):
                continue
            return batch
        except (DataError, OptionError):
            raise
        except Exception as error:
            if i == len(attempts) - 1:
                raise StructureError(
                    f"PyTorch's exporter cannot write this model: {_root(error)}"
                ) from error
    raise StructureError("PyTorch's exporter cannot write this model")


def _takes_any(file: Path, write: Writer, inputs: Inputs) -> bool:
    """Whether the file really runs with another number of inputs;
    a fixed size may have slipped in.
    """
    call = (_run_onnx if write is _write_onnx else _run_program)(file)
    try:
        call(_resized(inputs, 3))
    except Exception:
        return False
    return True


# ---- the two formats -----------------------------------------------------------------------------


def _write_program(model: nn.Module, inputs: Inputs, file: Path, shapes: Any) -> None:
    program = torch.export.export(
        model, inputs[0], inputs[1] or None, dynamic_shapes=_by_name(model, inputs, shapes)
    )
    torch.export.save(program, file)


def _run_program(file: Path) -> Callable[[Inputs], list[Tensor]]:
    with _quiet():
        module = torch.export.load(file).module()

    def call(inputs: Inputs) -> list[Tensor]:
        with torch.no_grad():
            return flat_tensors(plain(module(*inputs[0], **inputs[1])))

    return call


def _write_onnx(model: nn.Module, inputs: Inputs, file: Path, shapes: Any) -> None:
    _need("onnx", "onnxscript", "onnxruntime")
    program = torch.onnx.export(
        model,
        inputs[0],
        kwargs=inputs[1] or None,
        dynamo=True,
        dynamic_shapes=_by_name(model, inputs, shapes),
        verbose=False,
    )
    if program is None:
        raise StructureError("PyTorch's exporter gave nothing back")
    program.save(file, external_data=False)


def _run_onnx(file: Path) -> Callable[[Inputs], list[Tensor]]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    names = [x.name for x in session.get_inputs()]

    def call(inputs: Inputs) -> list[Tensor]:
        tensors = flat_tensors(inputs)
        feed = {n: x.detach().cpu().numpy() for n, x in zip(names, tensors, strict=True)}
        return [torch.from_numpy(y) for y in session.run(None, feed)]

    return call


def _need(*packages: str) -> None:
    import importlib.util

    missing = [p for p in packages if importlib.util.find_spec(p) is None]
    if missing:
        raise OptionError(
            f"ONNX needs {', '.join(missing)}, which cannot be imported: pip "
            "install 'subprune[export]'"
        )


def _by_name(model: nn.Module, inputs: Inputs, shapes: Any) -> Any:
    """Dynamic shapes in the order of the forward's own arguments."""
    if shapes is None:
        return None
    import inspect

    names = list(inspect.signature(model.forward).parameters)
    return {**dict(zip(names, shapes[0], strict=False)), **shapes[1]}


# ---- checks --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Gap:
    """How far one output of a file, and of PyTorch in float32, is off; relative to its largest
    entry.
    """

    file: float
    noise: float = 0.0  # of PyTorch itself, 0 if it cannot be run in float64

    @property
    def allowed(self) -> float:
        return min(max(_TOLERANCE, _NOISE * self.noise), _MOST)

    @property
    def why(self) -> str:
        return (
            f" (PyTorch's own rounding makes {self.noise:.1e})"
            if self.noise > _TOLERANCE / _NOISE
            else ""
        )


def _gaps(
    model: nn.Module, written: Callable[[Inputs], list[Tensor]], inputs: Inputs
) -> list[_Gap]:
    """The differences of all outputs."""
    expected, answers = _outputs(model, inputs), written(inputs)
    if [x.shape for x in expected] != [x.shape for x in answers]:
        return [_Gap(float("inf"))]
    gaps = [relative_gap(a, b) for a, b in zip(expected, answers, strict=True)] or [0.0]
    exact = _outputs_in_double(model, inputs)
    if [x.shape for x in expected] != [x.shape for x in exact]:
        return [_Gap(gap) for gap in gaps]
    noise = [relative_gap(a, b) for a, b in zip(exact, expected, strict=True)] or [0.0]
    return [_Gap(gap, rounding) for gap, rounding in zip(gaps, noise, strict=True)]


def _outputs(model: nn.Module, inputs: Inputs) -> list[Tensor]:
    with borrowed(model), torch.no_grad():
        return flat_tensors(plain(call(model, inputs)))


def _outputs_in_double(model: nn.Module, inputs: Inputs) -> list[Tensor]:
    """The same in float64; nothing if the model has float32 written into its code."""

    def cast(x: Any) -> Any:
        return x.double() if isinstance(x, Tensor) and x.is_floating_point() else x

    try:
        return _outputs(duplicate(model).double(), tree_map(cast, inputs))
    except Exception:
        return []


def relative_gap(a: Tensor, b: Tensor) -> float:
    """The largest difference of two outputs, relative to the largest entry of the first.

    Infinite entries, NaN and masks (numbers near the largest there are) must be where they are in
    the other and set no scale. Of whole numbers it is the share that differ.
    """
    if not a.numel():
        return 0.0
    if not a.is_floating_point() and not a.is_complex():
        return float((a != b).double().mean())
    if a.is_complex():
        a, b = torch.view_as_real(a), torch.view_as_real(b)
    limit = 1e-2 * min(torch.finfo(x.dtype).max for x in (a, b))
    x, y = a.double(), b.double()
    ordinary, others = _ordinary(x, limit), _ordinary(y, limit)
    marks = [torch.where(z.isnan(), 2.0, z.sign())[~ordinary] for z in (x, y)]
    if not torch.equal(ordinary, others) or not torch.equal(*marks):
        return float("inf")
    if not bool(ordinary.any()):
        return 0.0
    largest = float(x[ordinary].abs().max())
    scale = largest if largest > torch.finfo(torch.float32).tiny else 1.0
    return float((x - y)[ordinary].abs().max()) / scale


def _ordinary(x: Tensor, limit: float) -> Tensor:
    return x.isfinite() & (x.abs() < limit)


def _seconds(call: Callable[[], Any], repeats: int = 9) -> float:
    times = []
    with torch.no_grad():
        for i in range(repeats + 2):
            started = time.perf_counter()
            call()
            if i > 1:
                times.append(time.perf_counter() - started)
    return median(times)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The exporters talk a lot: to standard output, through warnings and through logging."""
    with quiet(logging.WARNING), contextlib.redirect_stdout(io.StringIO()):
        yield
