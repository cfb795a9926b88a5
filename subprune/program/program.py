"""A forward run as data: the list of its operations, which can be replayed from any point to any
other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map

from subprune.errors import StructureError
from subprune.program.fuse import Chain, Folds, chains
from subprune.program.ops import argument, belongs, kind_of
from subprune.program.precision import widened

if TYPE_CHECKING:
    from subprune.program.layout import Layout

__all__ = [
    "Inputs",
    "Op",
    "Override",
    "Program",
    "Ref",
    "Value",
    "call",
    "flat_tensors",
    "input_count",
    "model_tensors",
]

Inputs = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class Ref:
    """Stands for a recorded value among the arguments of an operation."""

    id: int


@dataclass(eq=False, kw_only=True)
class Value:
    """A tensor of the recorded run: its shape, and where it comes from."""

    id: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    source: str  # "param", "buffer", "input", "constant" or "op"
    name: str = ""  # qualified name of a parameter or buffer, path of an input
    storage: int = 0
    constant: Tensor | None = None


@dataclass(eq=False, kw_only=True)
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
    flops: int = 0  # as PyTorch's own flop counter counts it, at the recorded shapes

    @property
    def name(self) -> str:
        """Short name such as ``aten.add.Tensor``."""
        return str(self.func)

    @property
    def kind(self) -> str:
        """Name without overload, and without namespace where that leaves no doubt: ``add``."""
        return kind_of(self.func)

    def value_at(self, name: str) -> int | None:
        """The value that stands as the argument of that name; None where it is not a tensor."""
        given = argument(self, name)
        return given.id if isinstance(given, Ref) else None

    @property
    def where(self) -> str:
        """For messages: the operation and the module it ran in, or the module that is one
        operation.
        """
        if self.kind.startswith("opaque("):
            return repr(self.func.name)
        return (
            f"{self.name} in {self.module!r}"
            if self.module
            else f"{self.name} in the model's own forward"
        )


Override = Callable[[Op, tuple[Any, ...], dict[str, Any]], Any]
"""Stands in for one operation of a replay: called with it, its arguments and keyword arguments."""


@dataclass(kw_only=True)
class Program:
    """The record of one forward run; see the module's text."""

    ops: list[Op]
    values: dict[int, Value]
    inputs: list[int]  # value ids of the tensors among the inputs, flattened
    outputs: list[int]  # value ids of the tensors among the outputs, flattened
    tensors: dict[str, int]  # value id of every parameter and buffer that was used
    aliases: dict[str, str]  # other names of tied parameters → the name used here
    opaque: dict[str, str] = field(default_factory=dict)  # modules run as a whole, with the reason
    # by value: where tokens lie in it, if some of them do not count
    layouts: Mapping[int, Layout] = field(default_factory=dict)
    # whether an operation writes into its inputs: these must stay where they are
    overwrites: bool = field(default=False, init=False, repr=False)
    _last_use: dict[int, int] = field(default_factory=dict, repr=False)
    # given values that are overwritten
    _written: frozenset[int] = field(default=frozenset(), repr=False)

    def __post_init__(self) -> None:
        written = {self.values[v].storage for op in self.ops for v in op.mutates}
        self.overwrites = bool(written)
        self._written = frozenset(
            v.id for v in self.values.values() if v.source != "op" and v.storage in written
        )
        for op in self.ops:
            for ref in op.inputs:
                self._last_use[ref] = op.index
        for out in self.outputs:
            self._last_use[out] = len(self.ops)

    @property
    def answer(self) -> int:
        """Value id of the output that is looked at: the first floating one, else the first."""
        floating = (v for v in self.outputs if self.values[v].dtype.is_floating_point)
        return next(floating, self.outputs[0])

    def last_use(self, value: int) -> int:
        """Index of the last operation that reads the value;
        ``len(ops)`` for outputs, -1 for none.
        """
        return self._last_use.get(value, -1)

    def bind(self, inputs: Inputs) -> dict[int, Tensor]:
        """Real tensors for the program's inputs, checked against the recorded shapes."""
        flat = [x for x in tree_flatten(inputs)[0] if isinstance(x, Tensor)]
        env: dict[int, Tensor] = {}
        for vid, x in zip(self.inputs, flat, strict=True):
            want = self.values[vid].shape
            if tuple(x.shape) != want:
                raise StructureError(
                    f"the program was recorded for an input of shape {want}, got {tuple(x.shape)}"
                )
            # What a module that is run as a whole does to its inputs, or to views, was not
            # recorded.
            env[vid] = x.clone() if vid in self._written or self.opaque else x
        return env

    def run(
        self,
        env: dict[int, Tensor],
        tensors: Mapping[str, Tensor],
        start: int = 0,
        stop: int | None = None,
        *,
        keep: Callable[[int], bool] | None = None,
        override: Mapping[int, Override] | None = None,
        grad: bool = False,
        fuse: Folds | None = None,
        wide: Mapping[torch.dtype, torch.dtype] | None = None,
    ) -> dict[int, Tensor]:
        """Execute operations ``start`` … ``stop - 1`` on `env` (value id → tensor), which is
        updated.

        Values that no later operation reads are dropped, unless ``keep(value id)``. `override`
        replaces single operations, by index. The result is `env`; outputs are ``[env[i] for i in
        outputs]``. With `grad`, operations on values that require gradients are recorded for
        autograd. With `fuse`, a dict to keep folded weights in, some operations run as one: faster,
        and equal up to rounding. With `wide`, tensors of the types in this table are converted,
        parameters when an operation reads them.
        """
        stop = len(self.ops) if stop is None else stop
        if wide is not None:
            env.update({vid: widened(x, wide) for vid, x in env.items()})

        def fetch(x: Any) -> Any:
            if not isinstance(x, Ref):
                return x
            value = self.values[x.id]
            if x.id in self._written and x.id not in env:
                env[x.id] = (
                    tensors[value.name] if value.constant is None else value.constant
                ).clone()
            if x.id in self._written:
                return env[x.id]
            if value.source in ("param", "buffer"):
                return tensors[value.name]
            return value.constant if value.source == "constant" else env[x.id]

        folds: Folds = {} if fuse is None else fuse
        # Inside a chain no value is made, so none can be kept, and no gradient goes back through it.
        fused = self.chains if fuse is not None and keep is None and not grad else {}
        done: set[int] = set()
        with torch.set_grad_enabled(grad):
            for op in self.ops[start:stop]:
                if op.index in done:
                    continue
                # A chain runs as one only if the run passes all of it, and nobody watches inside.
                chain = fused.get(op.index)
                if (
                    chain
                    and chain.ops[-1] < stop
                    and not any(override and i in override for i in chain.ops)
                ):
                    result = chain.run(fetch, folds)
                    if result is not None:
                        done.update(chain.ops)
                        self._store(chain, result, env)
                        continue
                args, kwargs = _map_refs(op.args, fetch), _map_refs(op.kwargs, fetch)
                if wide is not None:
                    args, kwargs = _widened(op, args, kwargs, wide)
                special = override.get(op.index) if override else None
                result = special(op, args, kwargs) if special else _execute(op, args, kwargs)
                for vid, x in zip(op.outs, flat_tensors(result), strict=True):
                    if self.last_use(vid) > op.index or (keep is not None and keep(vid)):
                        env[vid] = x
                # What was read for the last time is dropped: memory holds only what is alive.
                for ref in op.inputs:
                    if self.last_use(ref) == op.index and not (keep is not None and keep(ref)):
                        env.pop(ref, None)
        return env

    @cached_property
    def chains(self) -> dict[int, Chain]:
        """Operations that can run as one."""
        return chains(self)

    def _store(self, chain: Chain, result: Tensor, env: dict[int, Tensor]) -> None:
        """Keep the result of a chain and drop what was read for the last time."""
        for index in chain.ops:
            for ref in self.ops[index].inputs:
                if self.last_use(ref) == index:
                    env.pop(ref, None)
        if self.last_use(chain.out) > chain.ops[-1]:
            env[chain.out] = result

    def _fetch(
        self, env: Mapping[int, Tensor], tensors: Mapping[str, Tensor]
    ) -> Callable[[Any], Any]:
        """A function from `Ref` to the tensor it stands for; anything else is passed through."""

        def fetch(x: Any) -> Any:
            if not isinstance(x, Ref):
                return x
            value = self.values[x.id]
            if value.source in ("param", "buffer"):
                return tensors[value.name]
            return value.constant if value.source == "constant" else env[x.id]

        return fetch

    def arguments(
        self, op: Op, env: Mapping[int, Tensor], tensors: Mapping[str, Tensor]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What an operation would be called with, by position and by keyword."""
        fetch = self._fetch(env, tensors)
        return _map_refs(op.args, fetch), _map_refs(op.kwargs, fetch)

    def argument(
        self, op: Op, name: str, env: Mapping[int, Tensor], tensors: Mapping[str, Tensor]
    ) -> Any:
        """One of these, by its name in the operation's schema."""
        return _map_refs(argument(op, name), self._fetch(env, tensors))

    def call(self, inputs: Inputs, tensors: Mapping[str, Tensor], **options: Any) -> list[Tensor]:
        """Run the whole program and return its output tensors, flattened."""
        env = self.run(self.bind(inputs), tensors, **options)
        return [self.fetch_output(i, env, tensors) for i in self.outputs]

    def fetch_output(
        self, vid: int, env: Mapping[int, Tensor], tensors: Mapping[str, Tensor]
    ) -> Tensor:
        """An output value, which may be a parameter or an input passed through."""
        value = self.values[vid]
        if value.source in ("param", "buffer"):
            return tensors[value.name]
        return value.constant if value.constant is not None else env[vid]


def _execute(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run the operation; a view may become a copy, since real tensors can lie in memory in another
    order.
    """
    if belongs(op, "view"):
        return torch.ops.aten.reshape.default(*args, **kwargs)
    return op.func(*args, **kwargs)


def _widened(
    op: Op, args: tuple[Any, ...], kwargs: dict[str, Any], table: Mapping[torch.dtype, torch.dtype]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of an operation in the table's types."""
    if belongs(op, "look-up"):  # reads a few rows of a large table
        return args, kwargs
    return tree_map(lambda x: widened(x, table), (args, kwargs))


def _map_refs(tree: Any, fetch: Callable[[Any], Any]) -> Any:
    if isinstance(tree, tuple):
        return tuple(_map_refs(x, fetch) for x in tree)
    if isinstance(tree, list):
        return [_map_refs(x, fetch) for x in tree]
    if isinstance(tree, dict):
        return {k: _map_refs(x, fetch) for k, x in tree.items()}
    return fetch(tree)


def model_tensors(model: nn.Module, program: Program) -> dict[str, Tensor]:
    """The parameters and buffers a program reads, under the program's names."""
    named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {name: named[name].detach() for name in program.tensors}


def call(model: nn.Module, inputs: Inputs) -> Any:
    """What the model makes of copies of the inputs, into which it may write."""
    args, kwargs = tree_map(lambda x: x.clone() if isinstance(x, Tensor) else x, inputs)
    return model(*args, **kwargs)


def flat_tensors(tree: Any) -> list[Tensor]:
    if isinstance(tree, Tensor):
        return [tree]
    return [x for x in tree_flatten(tree)[0] if isinstance(x, Tensor)]


def input_count(inputs: Inputs) -> int:
    """How many inputs a call is about: the length of its first tensor."""
    first = flat_tensors(inputs)[0]
    return max(1, first.shape[0]) if first.ndim else 1
