"""A model is borrowed for a run and given back as it was; so is the state of the process.

`borrowed` is the only way in which a caller's model is run. The run sees the caller's modules, but
private copies of their tensors and containers: whatever it writes is written into copies, and
afterwards every reference is put back. Values therefore never need to be restored, and parameters
keep their identity, gradients and versions. `given_back` stands around every public function and
puts everything back once more, whatever ended the call.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import threading
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, nn

from subprune.program import parallel
from subprune.program.process import ProcessState

__all__ = ["borrowed", "follow", "given_back", "reachable", "undisturbed"]

Given = ParamSpec("Given")
Answer = TypeVar("Answer")

# Dicts and sets that PyTorch itself keeps in every module: tensors, children, hooks. Others may
# hold
# references to them (the handle of a hook does), so they are changed and restored in place.
_TABLES = frozenset(name for name, x in vars(nn.Module()).items() if isinstance(x, dict | set))
_MAPPINGS = (dict, OrderedDict, defaultdict)
_LISTS = (list, deque)
_SIMPLE = frozenset({type(None), bool, int, float, str})

_one_at_a_time = threading.RLock()  # lent to two threads at once, it would be given back to neither
_NONE: Mapping[int, Tensor] = MappingProxyType({})


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """No other thread has borrowed a model meanwhile."""
    with _one_at_a_time:
        yield


@contextlib.contextmanager
def borrowed(model: nn.Module, stand_ins: Mapping[int, Tensor] = _NONE) -> Iterator[None]:
    """Lend the model, in eval mode, for runs that leave no trace.

    Inside, parameters, buffers and other tensors of the modules are copies, or those that
    `stand_ins` has for them by their ``id``. Objects of other classes that hold tensors are not
    looked into.
    """
    with _one_at_a_time:
        snapshot = _Snapshot(model)
        try:
            snapshot.lend(_Copies(stand_ins))
            model.eval()
            yield
        finally:
            snapshot.restore()


@contextlib.contextmanager
def _kept(model: object) -> Iterator[None]:
    """Whatever happens inside, model and process are afterwards as before; nothing is copied."""
    with _one_at_a_time:  # while nobody has borrowed it
        snapshot = _Snapshot(model if isinstance(model, nn.Module) else None)
    try:
        with parallel.settled():
            yield
    finally:
        with _one_at_a_time:
            snapshot.restore()


def given_back(function: Callable[Given, Answer]) -> Callable[Given, Answer]:
    """A public function that gets a model first, or an object with one, and leaves it as it was."""
    first = next(iter(inspect.signature(function).parameters))

    @functools.wraps(function)
    def call(*args: Given.args, **kwargs: Given.kwargs) -> Answer:
        given: Any = args[0] if args else kwargs.get(first)
        model = given if isinstance(given, nn.Module) else getattr(given, "model", None)
        with _kept(model):
            return function(*args, **kwargs)

    return call


class _Snapshot:
    """The process, and every reference that the modules of a model hold, to be put back."""

    def __init__(self, model: nn.Module | None) -> None:
        self.process = ProcessState()
        modules = [] if model is None else reachable(model)[0]
        self.modules = [(m, type(m), m.training, dict(vars(m)), _tables(m)) for m in modules]

    def lend(self, copies: _Copies) -> None:
        """Put copies in the place of tensors and of containers."""
        for module, _, _, attributes, tables in self.modules:
            for name, x in attributes.items():
                if name not in tables:
                    _put(vars(module), name, copies.of(x))
            for name, entries in tables.items():
                for key in entries if isinstance(entries, dict) else ():
                    _put(vars(module)[name], key, copies.of(entries[key]))

    def restore(self) -> None:
        """Put everything back; Ctrl-C in the middle of it is heeded afterwards."""
        try:
            self._restore()
        except KeyboardInterrupt:
            self._restore()
            raise

    def _restore(self) -> None:
        for module, kind, training, attributes, tables in self.modules:
            if type(module) is not kind:
                module.__class__ = kind  # lazy modules become others in their first run
            _refill(vars(module), attributes)
            for name, entries in tables.items():
                _refill(vars(module)[name], entries)
            if module.training != training:  # of a scripted module, which keeps it elsewhere
                module.training = training
        self.process.restore()


def _tables(module: nn.Module) -> dict[str, Any]:
    """Copies of the module's own dicts and sets; a scripted module has others in their place."""
    named = {name: vars(module)[name] for name in _TABLES if name in vars(module)}
    return {name: x.copy() for name, x in named.items() if isinstance(x, dict | set)}


def _put(holder: dict[Any, Any], key: Any, x: Any) -> None:
    if holder[key] is not x:
        holder[key] = x


def _refill(holder: Any, entries: Any) -> None:
    """The same entries in the same order; nothing is written where nothing has changed."""
    if isinstance(entries, dict) and list(holder) == list(entries):
        for key, x in entries.items():
            _put(holder, key, x)
    elif isinstance(entries, dict) or holder != entries:
        holder.clear()
        holder.update(entries)


def reachable(model: nn.Module) -> tuple[list[nn.Module], list[Tensor]]:
    """The modules and tensors of a model, and those that it keeps in plain lists and attributes."""
    modules: list[nn.Module] = []
    tensors: list[Tensor] = []
    seen: set[int] = set()
    waiting: list[Any] = [model]
    while waiting:
        x = waiting.pop()
        if id(x) in seen:
            continue
        if isinstance(x, nn.Module):
            modules.append(x)
            waiting.extend(value for value in vars(x).values() if type(value) not in _SIMPLE)
            waiting.extend(x.children())
        elif isinstance(x, Tensor):
            tensors.append(x)
        elif type(x) in _MAPPINGS:
            waiting.extend(x.values())
        elif type(x) in (*_LISTS, tuple, set):
            waiting.extend(x)
        else:
            continue
        seen.add(id(x))
    return modules, tensors


class _Copies:
    """Private copies of tensors and containers.

    What was one object is one copy, and what shared memory still does.
    """

    def __init__(self, stand_ins: Mapping[int, Tensor]) -> None:
        self.made: dict[int, Any] = dict(stand_ins)  # by id of the original, which is kept alive
        self.storages: dict[int, Any] = {}

    def of(self, x: Any) -> Any:
        """The copy of a tensor or container; anything else is handed through."""
        if id(x) in self.made:
            return self.made[id(x)]
        if isinstance(x, Tensor):
            self.made[id(x)] = self._tensor(x)
        elif type(x) in _MAPPINGS:
            self.made[id(x)] = new = copy.copy(x)
            new.update({key: self.of(value) for key, value in x.items()})
        elif type(x) in _LISTS:
            self.made[id(x)] = new = copy.copy(x)
            new.clear()
            new.extend(self.of(value) for value in x)
        elif type(x) is tuple:
            self.made[id(x)] = tuple(self.of(value) for value in x)
        elif type(x) is set:
            self.made[id(x)] = set(x)
        return self.made.get(id(x), x)

    def _tensor(self, x: Tensor) -> Tensor:
        new = x.data if x.is_meta else self._memory(x)
        if isinstance(x, nn.Parameter) and not isinstance(new, nn.Parameter):
            new = nn.Parameter(new, x.requires_grad)
        vars(new).update(vars(x))  # what people note down on their parameters
        return new

    def _memory(self, x: Tensor) -> Tensor:
        """The same numbers in other memory, laid out as before."""
        if type(x) not in (Tensor, nn.Parameter) or x.layout is not torch.strided or x.is_quantized:
            return copy.deepcopy(x) if x.is_leaf else x.detach().clone()
        if x.is_conj() or x.is_neg():
            return x.detach().clone()
        storage = x.untyped_storage()
        if storage._cdata not in self.storages:
            self.storages[storage._cdata] = storage.clone()
        new = self.storages[storage._cdata]
        with torch.no_grad():
            empty = torch.empty(0, dtype=x.dtype, device=x.device)
            return empty.set_(new, x.storage_offset(), x.shape, x.stride())


@contextlib.contextmanager
def follow(model: nn.Module, running: list[str]) -> Iterator[None]:
    """Keep the names of the modules that are running in a list; after an error it says where."""
    names = {id(m): n for n, m in model.named_modules()}

    def enter(module: nn.Module, args: Any) -> None:
        running.append(names.get(id(module), type(module).__name__))

    def leave(module: nn.Module, args: Any, result: Any) -> None:
        running.pop()

    hooks = [nn.modules.module.register_module_forward_pre_hook(enter)]
    try:
        hooks.append(nn.modules.module.register_module_forward_hook(leave))
        yield
    finally:
        for hook in hooks:
            hook.remove()
