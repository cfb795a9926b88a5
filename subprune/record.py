"""One forward run of a model, written down as a list of ATen operations.

The run happens on fake tensors: shapes only, no memory and no arithmetic, so a model of any size is
recorded in about a second. The resulting `Program` is what structure discovery reads, and it can be
replayed on real tensors from any point to any other, with any values for the parameters.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from subprune.errors import StructureError

__all__ = ["Inputs", "Op", "Program", "Ref", "Value", "eval_mode", "record"]

Inputs = tuple[tuple[Any, ...], dict[str, Any]]

# Recorded as one operation each, although they may decompose differently from run to run.
_WHOLE = {
    "linear": torch.ops.aten.linear.default,
    "scaled_dot_product_attention": torch.ops.aten.scaled_dot_product_attention.default,
}
_SILENT = ("prim.device", "aten.sym_size", "aten.is_same_size", "aten._has_compatible")


@dataclass(frozen=True)
class Ref:
    """Stands for a recorded value among the arguments of an operation."""

    id: int


@dataclass(eq=False)
class Value:
    """A tensor of the recorded run: its shape, and where it comes from."""

    id: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    source: str  # "param", "buffer", "input", "constant" or "op"
    name: str = ""  # qualified name of a parameter or buffer, path of an input
    storage: int = 0
    constant: Tensor | None = None


@dataclass(eq=False)
class Op:
    """One recorded operation. Tensors among `args` and `kwargs` are replaced by `Ref`."""

    index: int
    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outs: tuple[int, ...]  # value ids of the tensors it returns, flattened
    module: str  # innermost module that was running
    mutates: tuple[int, ...] = ()  # value ids overwritten in place, when it has to stay in place
    inputs: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """Short name such as ``aten.add.Tensor``."""
        return str(self.func)

    @property
    def kind(self) -> str:
        """Name without namespace and overload: ``add``."""
        parts = str(self.func).split(".")
        return parts[1] if len(parts) > 1 else parts[0]

    @property
    def where(self) -> str:
        """For messages: the operation and the module it ran in."""
        return f"{self.name} in {self.module!r}" if self.module else f"{self.name} in the model's own forward"


@dataclass
class Program:
    """The record of one forward run; see the module's text."""

    ops: list[Op]
    values: dict[int, Value]
    inputs: list[int]  # value ids of the tensors among the inputs, flattened
    outputs: list[int]  # value ids of the tensors among the outputs, flattened
    tensors: dict[str, int]  # value id of every parameter and buffer that was used
    aliases: dict[str, str]  # other names of tied parameters → the name used here
    opaque: dict[str, str] = field(default_factory=dict)  # modules run as a whole, with the reason
    _last_use: dict[int, int] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        for op in self.ops:
            for ref in op.inputs:
                self._last_use[ref] = op.index
        for out in self.outputs:
            self._last_use[out] = len(self.ops)

    def last_use(self, value: int) -> int:
        """Index of the last operation that reads the value; ``len(ops)`` for outputs; -1 for none."""
        return self._last_use.get(value, -1)

    def bind(self, inputs: Inputs) -> dict[int, Tensor]:
        """Real tensors for the program's inputs, checked against the recorded shapes."""
        flat = [x for x in tree_flatten(inputs)[0] if isinstance(x, Tensor)]
        env: dict[int, Tensor] = {}
        for vid, x in zip(self.inputs, flat, strict=True):
            want = self.values[vid].shape
            if tuple(x.shape) != want:
                raise StructureError(f"the program was recorded for an input of shape {want}, got {tuple(x.shape)}")
            env[vid] = x
        return env

    def run(
        self,
        env: dict[int, Tensor],
        tensors: Mapping[str, Tensor],
        start: int = 0,
        stop: int | None = None,
        *,
        keep: Callable[[int], bool] | None = None,
        override: Mapping[int, Callable[[Op, tuple[Any, ...], dict[str, Any]], Any]] | None = None,
    ) -> dict[int, Tensor]:
        """Execute operations ``start`` … ``stop - 1`` on `env` (value id → tensor), which is updated.

        Values that no later operation reads are dropped, unless ``keep(value id)``. `override` replaces
        single operations, by index. The result is `env`; outputs are ``[env[i] for i in outputs]``.
        """
        stop = len(self.ops) if stop is None else stop

        def fetch(x: Any) -> Any:
            if not isinstance(x, Ref):
                return x
            value = self.values[x.id]
            if value.source in ("param", "buffer"):
                return tensors[value.name]
            return value.constant if value.source == "constant" else env[x.id]

        with torch.no_grad():
            for op in self.ops[start:stop]:
                args, kwargs = _map_refs(op.args, fetch), _map_refs(op.kwargs, fetch)
                special = override.get(op.index) if override else None
                result = special(op, args, kwargs) if special else op.func(*args, **kwargs)
                for vid, x in zip(op.outs, _flat_tensors(result), strict=True):
                    if self.last_use(vid) > op.index or (keep is not None and keep(vid)):
                        env[vid] = x
                for ref in op.inputs:
                    if self.last_use(ref) == op.index and not (keep is not None and keep(ref)):
                        env.pop(ref, None)
        return env

    def call(self, inputs: Inputs, tensors: Mapping[str, Tensor], **options: Any) -> list[Tensor]:
        """Run the whole program and return its output tensors, flattened."""
        env = self.run(self.bind(inputs), tensors, **options)
        return [self.fetch_output(i, env, tensors) for i in self.outputs]

    def fetch_output(self, vid: int, env: Mapping[int, Tensor], tensors: Mapping[str, Tensor]) -> Tensor:
        """An output value, which may be a parameter or an input handed through."""
        value = self.values[vid]
        if value.source in ("param", "buffer"):
            return tensors[value.name]
        return value.constant if value.constant is not None else env[vid]


def _map_refs(tree: Any, fetch: Callable[[Any], Any]) -> Any:
    if isinstance(tree, tuple):
        return tuple(_map_refs(x, fetch) for x in tree)
    if isinstance(tree, list):
        return [_map_refs(x, fetch) for x in tree]
    if isinstance(tree, dict):
        return {k: _map_refs(x, fetch) for k, x in tree.items()}
    return fetch(tree)


def _flat_tensors(tree: Any) -> list[Tensor]:
    if isinstance(tree, Tensor):
        return [tree]
    return [x for x in tree_flatten(tree)[0] if isinstance(x, Tensor)]


@contextlib.contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Borrow the model in eval mode; give every module its own mode back."""
    modes = [(m, m.training) for m in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


class _Recorder(TorchDispatchMode):
    """Writes down every operation that reaches the dispatcher."""

    def __init__(self, names: dict[int, str]) -> None:
        super().__init__()
        self.ops: list[Op] = []
        self.values: dict[int, Value] = {}
        self.current: dict[int, int] = {}  # id(tensor) → value id
        self.alive: list[Any] = []  # keeps ids of tensors unique
        self.names = names  # id(module) → qualified name
        self.stack: list[str] = []
        self.paused = 0

    def add(self, x: Tensor, source: str, name: str = "", constant: Tensor | None = None) -> int:
        vid = len(self.values)
        storage = x.untyped_storage()._cdata if isinstance(x, FakeTensor) else id(x)
        self.values[vid] = Value(vid, tuple(x.shape), x.dtype, source, name, storage, constant)
        self.current[id(x)] = vid
        self.alive.append(x)
        return vid

    def ref(self, x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        if id(x) not in self.current:
            self.add(x, "constant", constant=None if isinstance(x, FakeTensor) else x)
        return Ref(self.current[id(x)])

    def write(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        refs, krefs = tree_map(self.ref, tuple(args)), tree_map(self.ref, dict(kwargs))
        inputs = tuple(dict.fromkeys(r.id for r in tree_flatten((refs, krefs))[0] if isinstance(r, Ref)))
        outs, mutated = [], []
        for x in _flat_tensors(result):
            if id(x) in self.current:  # returned one of its inputs: written in place
                mutated.append(self.current[id(x)])
            outs.append(self.add(x, "op"))
        module = self.stack[-1] if self.stack else ""
        op = Op(len(self.ops), func, refs, krefs, tuple(outs), module, tuple(mutated), inputs)
        self.ops.append(op)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if not self.paused and not str(func).startswith(_SILENT) and _flat_tensors(result):
            self.write(func, args, kwargs, result)
        return result

    def whole(self, func: Any, original: Callable[..., Any]) -> Callable[..., Any]:
        """A stand-in for a function of `torch.nn.functional`, recorded as one operation."""

        def call(*args: Any, **kwargs: Any) -> Any:
            self.paused += 1
            try:
                result = original(*args, **kwargs)
            finally:
                self.paused -= 1
            if not self.paused:
                self.write(func, args, kwargs, result)
            return result

        return call

    def opaque(self, module: nn.Module, name: str, reason: str) -> Callable[..., Any]:
        """A stand-in for a module's forward that cannot be looked into, recorded as one operation."""
        forward = module.forward

        def call(*args: Any, **kwargs: Any) -> Any:
            self.paused += 1
            try:
                result = forward(*args, **kwargs)
            finally:
                self.paused -= 1
            if not self.paused:
                self.write(_Opaque(module, name, reason), args, kwargs, result)
            return result

        return call

    def enter(self, module: nn.Module, args: Any) -> None:
        self.stack.append(self.names.get(id(module), type(module).__name__))

    def leave(self, module: nn.Module, args: Any, result: Any) -> None:
        self.stack.pop()


class _Opaque:
    """A whole module as one operation."""

    def __init__(self, module: nn.Module, name: str, reason: str) -> None:
        self.module, self.name, self.reason = module, name, reason

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def __str__(self) -> str:
        return f"subprune.opaque({self.name})"


def record(model: nn.Module, inputs: Inputs, *, fake: bool = True) -> Program:
    """Run the model once in eval mode and return the `Program`.

    A module whose forward depends on the data's values (``if x.sum() > 0``) cannot run on fake tensors;
    it is then run as a whole, on the real inputs, and nothing that touches it can be pruned. If the
    model's own forward does so, `StructureError` says where.
    """
    opaque = {
        name: "recurrent layers are run as a whole"
        for name, module in model.named_modules()
        if isinstance(module, nn.RNNBase | nn.RNNCellBase)
    }
    real = False
    while True:
        try:
            return _record_once(model, inputs, fake and not real, opaque)
        except (DataDependentOutputException, GuardOnDataDependentSymNode) as error:
            place = getattr(error, "subprune_module", "")
            reason = f"its forward depends on the values of the data ({_first_line(error)})"
            if not place or place in opaque:
                raise StructureError(
                    f"{type(model).__name__}.forward cannot be recorded: {reason}. "
                    "Move the data-dependent branch into a submodule of its own; everything else then stays prunable."
                ) from error
            opaque[place], real = reason, True


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0][:120]


def _record_once(model: nn.Module, inputs: Inputs, fake: bool, opaque: Mapping[str, str]) -> Program:
    names = {id(m): n for n, m in model.named_modules()}
    recorder = _Recorder(names)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    state, aliases = _state(model)
    shadow = {n: _shadow(mode, t, fake) for n, t in state.items()}
    parameters = {n for n, _ in model.named_parameters(remove_duplicate=False)}
    args, kwargs = tree_map(lambda x: _shadow(mode, x, fake) if isinstance(x, Tensor) else x, inputs)
    for name, x in shadow.items():
        recorder.add(x, "param" if name in parameters else "buffer", name)
    taken = [recorder.add(x, "input", f"input {i}") for i, x in enumerate(_flat_tensors((args, kwargs)))]
    with contextlib.ExitStack() as stack:
        stack.enter_context(eval_mode(model))
        stack.enter_context(_patches(recorder, model, opaque))
        stack.enter_context(torch.no_grad())
        if fake:
            stack.enter_context(mode)
        stack.enter_context(recorder)
        try:
            result = torch.func.functional_call(model, shadow, args, kwargs)
        except (DataDependentOutputException, GuardOnDataDependentSymNode) as error:
            error.subprune_module = recorder.stack[-1] if recorder.stack else ""  # type: ignore[union-attr]
            raise
    outputs = [recorder.ref(x).id for x in _flat_tensors(_plain(result))]
    used = {v.name: v.id for v in recorder.values.values() if v.source in ("param", "buffer")}
    _settle_mutations(recorder)
    return Program(recorder.ops, recorder.values, taken, outputs, used, aliases, dict(opaque))


def _state(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Parameters and buffers under one name each, and the other names of tied ones."""
    first: dict[int, str] = {}
    state: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    for name, x in named:
        if id(x) in first:
            aliases[name] = first[id(x)]
        else:
            first[id(x)] = name
            state[name] = x
    return state, aliases


def _shadow(mode: FakeTensorMode, x: Tensor, fake: bool) -> Tensor:
    """A fake tensor of the same shape; meta tensors are given a device, so that they mix with others."""
    if not fake:
        return x.detach()
    device = torch.device("cpu") if x.device.type == "meta" else x.device
    with mode:
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device)


def _plain(result: Any) -> Any:
    """Outputs of model libraries as ordinary containers."""
    if hasattr(result, "to_tuple"):
        return result.to_tuple()
    return result


@contextlib.contextmanager
def _patches(recorder: _Recorder, model: nn.Module, opaque: Mapping[str, str]) -> Iterator[None]:
    """Everything borrowed while recording: module hooks, two functions, and the attention fast path."""
    originals = {name: getattr(F, name) for name in _WHOLE}
    fastpath = torch.backends.mha.get_fastpath_enabled()
    hooks = [
        nn.modules.module.register_module_forward_pre_hook(recorder.enter),
        nn.modules.module.register_module_forward_hook(recorder.leave),
    ]
    replaced = [(model.get_submodule(name), name, reason) for name, reason in opaque.items()]
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        for name, func in _WHOLE.items():
            setattr(F, name, recorder.whole(func, originals[name]))
        for module, name, reason in replaced:
            module.forward = recorder.opaque(module, name, reason)
        yield
    finally:
        for module, _, _ in replaced:
            del module.forward
        for name, function in originals.items():
            setattr(F, name, function)
        for hook in hooks:
            hook.remove()
        torch.backends.mha.set_fastpath_enabled(fastpath)


def _settle_mutations(recorder: _Recorder) -> None:
    """Turn in-place operations into ordinary ones wherever nobody else looks at the overwritten memory."""
    readers: dict[int, int] = {}
    for op in recorder.ops:
        for vid in op.inputs:
            readers[vid] = op.index
    by_storage: dict[int, list[int]] = {}
    for value in recorder.values.values():
        by_storage.setdefault(value.storage, []).append(value.id)
    shared: set[int] = set()
    for op in recorder.ops:
        for old in op.mutates:
            storage = recorder.values[old].storage
            others = [v for v in by_storage[storage] if v < op.outs[0]]
            if recorder.values[old].source != "op" or any(readers.get(v, -1) > op.index for v in others):
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


def as_inputs(example: Any) -> Inputs:
    """A tensor, a tuple or list of arguments, or a dict of keyword arguments, as ``(args, kwargs)``."""
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
