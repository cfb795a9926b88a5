"""A model is borrowed for a run and given back as it was; so is the state of the process.

`borrowed` is the only way in which a caller's model is run. The run sees the caller's modules, but
private copies of their tensors and containers: whatever it writes is written into copies, and
afterwards every reference is put back. Values therefore never need to be restored, and parameters
keep their identity, gradients and versions. Of a large model, whose copy might not fit beside it,
the numbers themselves are lent: an operation that is about to overwrite some, which hardly any model
has, leaves a copy of them that is put back. `given_back` stands around every public function and puts
everything back once more, whatever ended the call.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import random
import sys
import threading
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from subprune.program import parallel
from subprune.program.process import ProcessState
from subprune.program.shelf import SMALL, is_large

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
# the first that fits knows how to fill a subclass
_SUBCLASSED = (OrderedDict, dict, list, deque, set)
_FOREIGN = (sys.stdlib_module_names - {"types", "collections"}) | {"torch", "numpy"}
_DEPTH = 2  # objects of a module, and objects of those

_one_at_a_time = threading.RLock()  # lent to two threads at once, it could be restored for neither
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
    `stand_ins` has for them by their ``id``. Objects of other classes keep their identity, and
    their attributes and entries are lent in the same way: those of Python's own classes and
    PyTorch's are not looked into.
    """
    with _one_at_a_time:
        snapshot = _Snapshot(model)
        own = (x for x in snapshot.tensors if id(x) not in stand_ins)
        copies = _Copies(stand_ins, whole=not is_large(own))
        try:
            snapshot.lend(copies)
            model.eval()
            with _Unwritten(copies.lent) if copies.lent else contextlib.nullcontext():
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
            try:
                snapshot.restore()
            except KeyboardInterrupt:  # before it could begin
                snapshot.restore()
                raise


def given_back(function: Callable[Given, Answer]) -> Callable[Given, Answer]:
    """A public function that gets a model first, or an object with one, and leaves it as it was."""
    first = next(iter(inspect.signature(function).parameters))

    @functools.wraps(function)
    def call(*args: Given.args, **kwargs: Given.kwargs) -> Answer:
        holder: Any = args[0] if args else kwargs.get(first)
        model = holder if isinstance(holder, nn.Module) else getattr(holder, "model", None)
        with _kept(model):
            return function(*args, **kwargs)

    return call


class _Snapshot:
    """The process, and every reference that the modules of a model hold, to be put back."""

    def __init__(self, model: nn.Module | None) -> None:
        self.process = ProcessState()
        held = _Held() if model is None else _held(model)
        self.tensors = held.tensors
        self.modules = [(m, type(m), m.training, dict(vars(m)), _tables(m)) for m in held.modules]
        self.objects = [(vars(x), dict(vars(x))) for x in held.objects]
        self.containers = [
            (x, kind, kind(_entries(kind, x))) for x in held.containers for kind in [_kind(x)]
        ]
        self.numbers = [(write, read()) for read, write in map(_numbers, held.generators)]

    def lend(self, copies: _Copies) -> None:
        """Put copies in the place of tensors and of containers."""
        for module, _, _, attributes, tables in self.modules:
            for name, x in attributes.items():
                if name not in tables:
                    _put(vars(module), name, copies.of(x))
            for name, entries in tables.items():
                for key in entries if isinstance(entries, dict) else ():
                    _put(vars(module)[name], key, copies.of(entries[key]))
        for attributes, before in self.objects:
            for name, x in before.items():
                _put(attributes, name, copies.of(x))
        for container, kind, before in self.containers:
            _fill(container, kind, copies.of(before))

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
        for attributes, before in self.objects:
            _refill(attributes, before)
        for container, kind, before in self.containers:
            _fill(container, kind, before)
        for write, state in self.numbers:
            write(state)
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


def _fill(container: Any, kind: Any, entries: Any) -> None:
    """The same for an object of a subclass, past whatever the subclass does when it is
    written to.
    """
    if _same(kind, container, entries):
        return
    kind.clear(container)
    (kind.extend if kind in _LISTS else kind.update)(container, entries)


def _same(kind: Any, container: Any, entries: Any) -> bool:
    """Whether these are the same objects in the same order."""
    now, before = (list(_entries(kind, x)) for x in (container, entries))
    if issubclass(kind, dict):
        now, before = ([x for pair in pairs for x in pair] for pairs in (now, before))
    return [id(x) for x in now] == [id(x) for x in before]


def _entries(kind: Any, container: Any) -> Any:
    return kind.items(container) if issubclass(kind, dict) else kind.__iter__(container)


def reachable(model: nn.Module) -> tuple[list[nn.Module], list[Tensor]]:
    """The modules and tensors of a model, and those that it keeps in lists,
    attributes and objects.
    """
    held = _held(model)
    return held.modules, held.tensors


@dataclass
class _Held:
    """What a model holds, directly or through what it holds."""

    modules: list[nn.Module] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    objects: list[Any] = field(default_factory=list)  # of classes of the caller's or of libraries
    # of subclasses of dict, list, deque and set
    containers: list[Any] = field(default_factory=list)
    generators: list[Any] = field(default_factory=list)  # of random numbers


def _held(model: nn.Module) -> _Held:
    held = _Held()
    visited: set[int] = set()
    waiting: deque[tuple[Any, int]] = deque([(model, 0)])
    while waiting:
        x, depth = waiting.pop()
        if id(x) in visited or type(x) in _SIMPLE:
            continue
        inside, deeper = _look(x, depth, held)
        if inside is not None:
            visited.add(id(x))
            waiting.extend((value, depth + deeper) for value in inside)
    return held


def _look(x: Any, depth: int, held: _Held) -> tuple[list[Any] | None, int]:
    """Note down what this is; what is inside (None: not looked into), and whether that is a level
    deeper.
    """
    if isinstance(x, nn.Module):
        held.modules.append(x)
        return [*vars(x).values(), *x.children()], -depth  # depth is counted from each module
    if isinstance(x, Tensor):
        held.tensors.append(x)
        return [], 0
    if _is_generator(x):
        held.generators.append(x)
        return [], 0
    if type(x) in _MAPPINGS:
        return list(x.values()), 0
    if type(x) in (*_LISTS, tuple, set):
        return list(x), 0
    return (_look_inside(x, held), 1) if depth < _DEPTH and _is_object(x) else (None, 0)


def _attributes(x: Any) -> Any:
    """What an object keeps under names; None for one with slots alone."""
    try:
        return vars(x)
    except TypeError:
        return None


def _look_inside(x: Any, held: _Held) -> list[Any]:
    inside: list[Any] = []
    attributes = _attributes(x)
    if type(attributes) is dict:
        held.objects.append(x)
        inside.extend(attributes.values())
    kind = _kind(x)
    if kind is not None:
        held.containers.append(x)
        inside.extend(kind.values(x) if issubclass(kind, dict) else _entries(kind, x))
    return inside


def _kind(x: Any) -> Any:
    """The class of containers that this is a subclass of, if any."""
    return next((kind for kind in _SUBCLASSED if isinstance(x, kind)), None)


def _is_object(x: Any) -> bool:
    """Whether it is the caller's or a library's: not a class, a function, a lock, or data to be
    read.
    """
    if isinstance(x, type | torch.utils.data.Dataset | torch.utils.data.DataLoader):
        return False
    return type(x).__module__.partition(".")[0] not in _FOREIGN


def _is_generator(x: Any) -> bool:
    kinds = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)
    return isinstance(x, kinds) and not isinstance(x, random.SystemRandom)


def _numbers(generator: Any) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    """How to read and to write where a source of random numbers stands."""
    if isinstance(generator, random.Random):
        return generator.getstate, generator.setstate
    if isinstance(generator, np.random.Generator):
        bits = generator.bit_generator
        return (lambda: bits.state), functools.partial(setattr, bits, "state")
    return generator.get_state, generator.set_state


class _Copies:
    """Private copies of tensors and containers.

    What was one object is one copy, and what shared memory still does. Unless all is to be `whole`,
    large storages are not copied but lent.
    """

    def __init__(self, stand_ins: Mapping[int, Tensor], whole: bool) -> None:
        self.made: dict[int, Any] = dict(stand_ins)  # by id of the original, which is kept alive
        self.storages: dict[int, Any] = {}
        self.whole = whole
        self.lent: dict[int, Any] = {}

    def of(self, x: Any) -> Any:
        """The copy of a tensor or container; anything else is passed through."""
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
            lend = not self.whole and x.device.type == "cpu" and storage.nbytes() >= SMALL
            self.storages[storage._cdata] = storage if lend else storage.clone()
            self.lent |= {storage._cdata: storage} if lend else {}
        new = self.storages[storage._cdata]
        with torch.no_grad():
            empty = torch.empty(0, dtype=x.dtype, device=x.device)
            return empty.set_(new, x.storage_offset(), x.shape, x.stride())


class _Unwritten(TorchDispatchMode):
    """What is written into storages inside is put back at the end, whatever ends it."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here, and asking for the compiler would import it: two seconds."""
        return False

    supports_higher_order_operators = True

    def __init__(self, storages: Mapping[int, Any]) -> None:
        super().__init__()
        self.storages = storages
        self.before: dict[int, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        schema = getattr(func, "_schema", None)
        if schema is None or schema.is_mutable:
            for x in tree_flatten((args, kwargs))[0]:
                if isinstance(x, Tensor) and x.layout is torch.strided:
                    self._keep(x.untyped_storage()._cdata)
        return func(*args, **kwargs)

    def _keep(self, storage: int) -> None:
        if storage in self.storages and storage not in self.before:
            self.before[storage] = self.storages[storage].clone()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for storage, content in self.before.items():
            self.storages[storage].copy_(content)


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
