"""One forward run of a model, written down as a list of ATen operations.

The run happens on fake tensors: shapes only, no memory and no arithmetic, so a model of any size is
recorded in about a second. The resulting `Program` is what structure discovery reads, and it can be
replayed on real tensors from any point to any other, with any values for the parameters.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.flop_counter import flop_registry

from subprune.errors import DataError, StructureError, SubpruneError
from subprune.program.borrow import borrowed, follow
from subprune.program.process import LOG, WHOLE
from subprune.program.program import Inputs, Op, Program, Ref, Value, flat_tensors
from subprune.program.recurrent import recurrent_flops
from subprune.program.values import DEPENDS, values_read

__all__ = ["MODULES", "as_inputs", "not_taken", "plain", "record", "record_given"]

# Recorded as one operation each, although they may decompose differently from run to run.
_PACKETS = {"grouped_mm": "_grouped_mm"}  # operations of another name than their function
_WHOLE = {name: getattr(torch.ops.aten, _PACKETS.get(name, name)).default for name in WHOLE}
# What a run on fake tensors cannot know: values, and shapes that follow from them.
_SILENT = ("prim.device", "aten.sym_size", "aten.is_same_size", "aten._has_compatible")


class _Recorder(TorchDispatchMode):
    """Writes down every operation that reaches the dispatcher."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here, and asking for the compiler would import it: two seconds."""
        return False

    def __init__(self, stack: list[str]) -> None:
        super().__init__()
        self.ops: list[Op] = []
        self.values: dict[int, Value] = {}
        # id(tensor) → value id; an operation in place gives the same tensor a new value
        self.current: dict[int, int] = {}
        self.alive: list[Any] = []  # keeps ids of tensors unique
        self.stack = stack  # names of the modules that are running
        self.paused = 0  # depth of calls that are recorded as one operation
        self.pending = 0  # flops counted inside an operation recorded as a whole

    def add(self, x: Tensor, source: str, name: str = "", constant: Tensor | None = None) -> int:
        """A new value for what the tensor holds now; returns its id."""
        vid = len(self.values)
        storage = x.untyped_storage()._cdata if isinstance(x, FakeTensor) else id(x)
        self.values[vid] = Value(
            id=vid,
            shape=tuple(x.shape),
            dtype=x.dtype,
            source=source,
            name=name,
            storage=storage,
            constant=constant,
        )
        self.current[id(x)] = vid
        self.alive.append(x)
        return vid

    def ref(self, x: Any) -> Any:
        """The reference that stands for a tensor; anything else as it is."""
        if not isinstance(x, Tensor):
            return x
        # A tensor that was not made while recording: a constant of the model's code.
        if id(x) not in self.current:
            self.add(x, "constant", constant=None if isinstance(x, FakeTensor) else x)
        return Ref(self.current[id(x)])

    def write(self, func: Any, args: Any, kwargs: Any, result: Any, flops: int = 0) -> None:
        """Add an operation to the list, its tensors replaced by references."""
        # References first: outputs written in place are the same tensors with new values.
        refs, krefs = tree_map(self.ref, tuple(args)), tree_map(self.ref, dict(kwargs))
        inputs = tuple(
            dict.fromkeys(r.id for r in tree_flatten((refs, krefs))[0] if isinstance(r, Ref))
        )
        outs, mutated = [], []
        for x in flat_tensors(result):
            if id(x) in self.current:  # returned one of its inputs: written in place
                mutated.append(self.current[id(x)])
            outs.append(self.add(x, "op"))
        module = self.stack[-1] if self.stack else ""
        op = Op(
            index=len(self.ops),
            func=func,
            args=refs,
            kwargs=krefs,
            outs=tuple(outs),
            module=module,
            mutates=tuple(mutated),
            inputs=inputs,
            flops=flops,
        )
        self.ops.append(op)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self._check_shape(func, args)
        result = func(*args, **kwargs)
        count = flop_registry.get(getattr(func, "overloadpacket", None))
        flops = int(count(*args, **kwargs, out_val=result)) if count is not None else 0
        # Inside a call that is recorded as one operation, only FLOPs are noted.
        self.pending += flops if self.paused else 0
        if not self.paused and not str(func).startswith(_SILENT) and flat_tensors(result):
            self.write(func, args, kwargs, result, flops)
        return result

    def _check_shape(self, func: Any, args: Any) -> None:
        """In a run on real tensors, too, a module in which shapes follow from values is noticed:
        what it does for other values is not what would be written down.
        """
        real = not any(isinstance(x, FakeTensor) for x in flat_tensors(args))
        inside = self.stack and self.stack[-1] and not self.paused
        if real and inside and torch.Tag.dynamic_output_shape in getattr(func, "tags", ()):
            raise DynamicOutputShapeException(func)

    def whole(self, func: Any, original: Callable[..., Any]) -> Callable[..., Any]:
        """A stand-in for a function or a module's forward, recorded as the one operation `func`."""

        def call(*args: Any, **kwargs: Any) -> Any:
            if not self.paused:
                self.pending = 0
            before = self.pending
            self.paused += 1
            try:
                result = original(*args, **kwargs)
            finally:
                self.paused -= 1
            flops = (
                recurrent_flops(func.module, args, kwargs) if isinstance(func, _Opaque) else None
            )
            if flops is not None:  # some of its kernels are counted and others are not
                self.pending = before + flops
            if not self.paused:
                self.write(func, args, kwargs, result, self.pending)
            return result

        return call


MODULES: dict[type[nn.Module], Any] = {}
"""Classes whose instances are recorded as one operation, with the rule for its dimensions."""


class _Opaque:
    """A whole module as one operation; `rule` says what becomes of dimensions, if anything does."""

    def __init__(self, module: nn.Module, name: str, reason: str) -> None:
        self.module, self.name, self.reason = module, name, reason
        self.rule = None if reason else _rule_of(module)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with borrowed(self.module):
            return self.module(*args, **kwargs)

    def __str__(self) -> str:
        return f"subprune.opaque({self.name})"


def _rule_of(module: nn.Module) -> Any | None:
    """The rule that was registered for the class of a module, or for one that it comes from."""
    return next((MODULES[kind] for kind in type(module).__mro__ if kind in MODULES), None)


def record(model: nn.Module, inputs: Inputs, *, fake: bool = True) -> Program:
    """Run the model once in eval mode and return the `Program`.

    A module whose forward depends on the data's values (``if x.sum() > 0``) cannot run on fake
    tensors; it is then run as a whole, on the real inputs, and nothing that touches it can be
    pruned. If the model's own forward does so, `StructureError` says where.
    """
    opaque = {
        name: "recurrent layers are run as a whole"
        for name, module in model.named_modules()
        if isinstance(module, nn.RNNBase | nn.RNNCellBase)
    }
    opaque |= {
        name: "" for name, module in model.named_modules() if name and _rule_of(module) is not None
    }
    # Every failure names one more module to run as a whole, until the rest can be recorded.
    real = False
    while True:
        try:
            return _record_once(model, inputs, fake and not real, opaque)
        except DEPENDS as error:
            place = getattr(error, "subprune_module", "")
            reason = f"its forward depends on the values of the data ({values_read(error)})"
            if not place or (place in opaque and (real or opaque[place])):
                raise StructureError(
                    f"{type(model).__name__}.forward cannot be recorded: {reason}. Move what "
                    "depends on them into a submodule of its own; everything else then stays "
                    "prunable."
                ) from error
            opaque.setdefault(place, reason)  # one with a rule needs values, and keeps its rule
            real = True


def _record_once(
    model: nn.Module, inputs: Inputs, fake: bool, opaque: Mapping[str, str]
) -> Program:
    running: list[str] = []
    recorder = _Recorder(running)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    args, kwargs = tree_map(
        lambda x: _shadow(mode, x, fake) if isinstance(x, Tensor) else x, inputs
    )
    # The run sees fake parameters and buffers in the place of the real ones.
    shadows = {id(x): _shadow(mode, x, fake) for x in _state(model)[0].values()} if fake else {}
    with borrowed(model, shadows), follow(model, running), torch.no_grad():
        state, aliases = _state(model)  # as it is lent
        parameters = {n for n, _ in model.named_parameters(remove_duplicate=False)}
        for name, x in state.items():
            recorder.add(x, "param" if name in parameters else "buffer", name)
        taken = [
            recorder.add(x, "input", f"input {i}")
            for i, x in enumerate(flat_tensors((args, kwargs)))
        ]
        _patch(recorder, model, opaque)
        try:
            with mode if fake else contextlib.nullcontext(), recorder:
                result = model(*args, **kwargs)
        except DEPENDS as error:
            error.subprune_module = running[-1] if running else ""  # type: ignore[union-attr]
            raise
    outputs = [recorder.ref(x).id for x in flat_tensors(plain(result))]
    used = {v.name: v.id for v in recorder.values.values() if v.source in ("param", "buffer")}
    _settle_mutations(recorder)
    return Program(
        ops=recorder.ops,
        values=recorder.values,
        inputs=taken,
        outputs=outputs,
        tensors=used,
        aliases=aliases,
        opaque=dict(opaque),
    )


def _state(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Parameters and buffers under one name each, and the other names of tied ones.

    A module that is registered under two names is one module: the second name ties nothing.
    """
    first: dict[int, str] = {}
    state: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    modules = dict(model.named_modules())  # each once
    for table in ("_parameters", "_buffers"):
        for owner, module in modules.items():
            for leaf, x in getattr(module, table).items():
                name = f"{owner}.{leaf}" if owner else leaf
                if x is None:
                    continue
                if id(x) in first:
                    aliases[name] = first[id(x)]
                else:
                    first[id(x)] = name
                    state[name] = x
    return state, aliases


def _shadow(mode: FakeTensorMode, x: Tensor, fake: bool) -> Tensor:
    """A fake tensor of the same shape; meta tensors are given a device, so that they mix with
    others.

    Where the run has to be real it gets copies, since a model may write into these.
    """
    if not fake:
        return x.detach().clone()
    device = torch.device("cpu") if x.device.type == "meta" else x.device
    with mode:
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device)


def plain(result: Any) -> Any:
    """Outputs of model libraries as ordinary containers."""
    if hasattr(result, "to_tuple"):
        return result.to_tuple()
    return result


def _patch(recorder: _Recorder, model: nn.Module, opaque: Mapping[str, str]) -> None:
    """Replace two functions, opaque modules and the attention fast path; `borrowed` puts them back.

    PyTorch logs a traceback when a run on fake tensors fails; the error that is raised says it all.
    """
    logging.getLogger(LOG).setLevel(logging.CRITICAL)
    torch.backends.mha.set_fastpath_enabled(False)
    for name, func in _WHOLE.items():
        original = getattr(F, name)
        run = _grouped_shape(original) if name == "grouped_mm" else original
        setattr(F, name, recorder.whole(func, run))
    for name, reason in opaque.items():
        module = model.get_submodule(name)
        module.forward = recorder.whole(_Opaque(module, name, reason), module.forward)


def _grouped_shape(original: Callable[..., Any]) -> Callable[..., Any]:
    """The function, but for fake tensors, of which PyTorch takes those in bfloat16 only."""

    def run(mat_a: Tensor, mat_b: Tensor, **options: Any) -> Tensor:
        if not isinstance(mat_a, FakeTensor):
            result: Tensor = original(mat_a, mat_b, **options)
            return result
        return mat_a.new_empty(mat_a.shape[0], mat_b.shape[-1])

    return run


def _settle_mutations(recorder: _Recorder) -> None:
    """Turn in-place operations into ordinary ones wherever nobody else looks at the overwritten
    memory.
    """
    readers: dict[int, int] = {}  # the last operation that reads each value
    for op in recorder.ops:
        for vid in op.inputs:
            readers[vid] = op.index
    by_storage: dict[int, list[int]] = {}
    for value in recorder.values.values():
        by_storage.setdefault(value.storage, []).append(value.id)
    # Memory that is overwritten while an older value in it, a view for instance, is yet to be read.
    shared: set[int] = set()
    for op in recorder.ops:
        for old in op.mutates:
            storage = recorder.values[old].storage
            others = [v for v in by_storage[storage] if v < op.outs[0]]
            if any(readers.get(v, -1) > op.index for v in others):
                shared.add(storage)
    for op in recorder.ops:
        if op.mutates and all(recorder.values[v].storage not in shared for v in op.mutates):
            functional = _out_of_place(op.func)
            if functional is not None:
                op.func, op.mutates = functional, ()


def _out_of_place(func: Any) -> Any | None:
    """``aten.relu_`` → ``aten.relu``, with the same overload, if there is one."""
    namespace, name, overload = [*str(func).split("."), "default"][:3]
    packet = getattr(getattr(torch.ops, namespace), name.rstrip("_"), None)
    return getattr(packet, overload, None) if name.endswith("_") and packet is not None else None


def record_given(model: nn.Module, inputs: Inputs, what: str) -> Program:
    """`record` for inputs that the caller has brought; an error says so if the model does not take
    them.
    """
    try:
        return record(model, inputs)
    except SubpruneError:
        raise
    except Exception as error:
        raise DataError(not_taken(model, inputs, what, error)) from error


def not_taken(model: nn.Module, inputs: Inputs, what: str, error: BaseException) -> str:
    """In words, that the model cannot be called."""
    args, kwargs = inputs
    shapes = [tuple(x.shape) for x in (*args, *kwargs.values()) if isinstance(x, Tensor)]
    text = str(error).strip()
    first_line = text.splitlines()[0].rstrip(".") if text else repr(error)
    return (
        f"the model cannot be called with {what} (shapes {shapes}): "
        f"{type(error).__name__}: {first_line}; give inputs as its forward takes them, "
        "with the batch first"
        f"{_hint(model, inputs, first_line)}"
    )


def _hint(model: nn.Module, inputs: Inputs, text: str) -> str:
    """What is likely to be wrong, where inputs or the model's own words show it."""
    args, kwargs = inputs
    tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)]
    if any(x.ndim == 4 and x.shape[3] in (1, 3) and x.shape[1] not in (1, 3) for x in tensors):
        return (
            ": images are (batch, channels, height, width), and x.permute(0, 3, 1, 2) makes them so"
        )
    if "unexpected keyword argument" in text:
        return (
            f": arrays and dicts are passed by their names, here {', '.join(kwargs)}, and its "
            f"forward takes {_arguments(model) or 'nothing'}; rename them, or say with forward= "
            "which of them are its arguments"
        )
    if "argument #1 'indices'" in text:
        return ": it looks its inputs up in a table, such as that of its words; give whole numbers"
    whole = [x for x in tensors if not x.is_floating_point()]
    if whole and "index out of range" in text:
        return (
            ": a number in them is too large for a table that it is looked up in; tokens have to "
            "be those of the model's own tokenizer"
        )
    if whole and ("dtype" in text or "Input type" in text):
        bytes_ = ", for bytes of images x.float() / 255" if whole[0].dtype is torch.uint8 else ""
        return f": whole numbers may have to be made fractions, x.float(){bytes_}"
    return ""


def _arguments(model: nn.Module) -> str:
    """Names of what its forward takes, the first few of them."""
    names = list(inspect.signature(model.forward).parameters)
    return f"{', '.join(names[:6])}{', …' if len(names) > 6 else ''}"


def as_inputs(example: Any) -> Inputs:
    """A tensor, a tuple or list of arguments, or a dict of keyword arguments, as ``(args,
    kwargs)``.
    """
    if isinstance(example, Tensor):
        return (example,), {}
    if isinstance(example, Mapping):
        return (), dict(example)
    if isinstance(example, Sequence) and not isinstance(example, str):
        return tuple(example), {}
    raise StructureError(
        f"example inputs of type {type(example).__name__} cannot be passed to a model; "
        "give a tensor, a tuple of arguments or a dict of keyword arguments"
    )
