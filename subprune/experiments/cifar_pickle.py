"""CIFAR-10's python version, read without unpickling anything.

Its files are pickles, and a pickle may run any code. `pickletools` takes a file apart into opcodes
and runs nothing. Only the opcodes that such a file consists of are followed, on a stack of texts,
numbers, lists, tuples and dicts; numpy's constructors appear on it by name alone and are never
called.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from subprune.errors import DataError
from subprune.experiments import readers

__all__ = ["cifar_pickle_sizes", "parse_cifar_pickle", "read_cifar_pickle"]

_PROTOCOLS = range(2, 6)
_RECONSTRUCT = ("numpy.core.multiarray._reconstruct", "numpy._core.multiarray._reconstruct")
_FROMBUFFER = ("numpy.core.numeric._frombuffer", "numpy._core.numeric._frombuffer")
_ALLOWED = (*_RECONSTRUCT, *_FROMBUFFER, "numpy.ndarray", "numpy.dtype", "_codecs.encode")


def read_cifar_pickle(path: Path) -> tuple[Tensor, Tensor]:
    """Read one file of CIFAR-10's python version: images [N, 3, 32, 32] and labels [N]."""
    return parse_cifar_pickle(path, readers.file_bytes(path, cifar_pickle_sizes()))


def cifar_pickle_sizes() -> tuple[int, int]:
    """The smallest and largest file there can be: a pixel takes two bytes where Python 3 wrote it
    as text.
    """
    pixels = int(np.prod(_shape()))
    return pixels + 2 * readers.CIFAR_RECORDS, 2 * pixels + 200 * readers.CIFAR_RECORDS + 2_000


def parse_cifar_pickle(name: Path | str, content: bytes) -> tuple[Tensor, Tensor]:
    """Images and labels of one batch; `name` is what messages call it."""
    try:
        batch = _walk(content)
        images, labels = _pixels(batch), _labels(batch)
    # A Warning where warnings are errors: pickletools may warn of an odd escape in an opcode we
    # refuse.
    except (ValueError, Warning) as error:
        raise DataError(
            f"{name} is not a batch of CIFAR-10's python version: {str(error)[:700]}. Nothing in it was run. "
            "Use the files of cifar-10-python.tar.gz, downloaded again if need be."
        ) from error
    return images, labels


def _shape() -> tuple[int, int]:
    return readers.CIFAR_RECORDS, int(np.prod(readers.CIFAR_SHAPE))


# ---- opcodes


@dataclass(frozen=True, eq=False)
class _Name:
    """A constructor that the file names."""

    text: str


@dataclass(eq=False)
class _Call:
    """What the file would have a constructor make."""

    name: str
    arguments: tuple[Any, ...]
    state: Any = None


def _walk(content: bytes) -> dict[str, Any]:
    """Follow the opcodes to the end of the file; returns the dict they describe."""
    stack, most = _Stack(len(content)), 20 * readers.CIFAR_RECORDS + 1_000
    for count, (opcode, argument, position) in enumerate(pickletools.genops(content)):
        if (count == 0) != (opcode.name == "PROTO") or (count == 0 and argument not in _PROTOCOLS):
            found = f"{opcode.name} {str(argument)[:20]!r}"
            raise ValueError(
                f"it has {found} at byte {position}; it must start with PROTO 2 to 5, and only there"
            )
        if count > most:
            raise ValueError(f"it has more than {most} opcodes")
        if opcode.name == "STOP":
            if position is not None and (behind := len(content) - position - 1):
                raise ValueError(f"{behind} bytes follow its end")
            return stack.result()
        stack.follow(opcode.name, argument)
    raise ValueError("it has no end")


def _name(text: str) -> _Name:
    if text not in _ALLOWED:
        raise ValueError(f"it names {text[:80]!r}; allowed are {', '.join(_ALLOWED)}")
    return _Name(text)


_PUSHED: dict[str, Callable[[Any], Any]] = {
    "NONE": lambda _: None,
    "NEWTRUE": lambda _: True,
    "NEWFALSE": lambda _: False,
    "EMPTY_LIST": lambda _: [],
    "EMPTY_DICT": lambda _: {},
    "EMPTY_TUPLE": lambda _: (),
    "GLOBAL": lambda text: _name(text.replace(" ", ".")),
    **dict.fromkeys(("BININT", "BININT1", "BININT2", "LONG1"), int),
    **dict.fromkeys(("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"), str),
    **dict.fromkeys(("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"), bytes),
    # Texts of Python 2 are bytes, which pickletools shows as latin-1.
    **dict.fromkeys(("BINSTRING", "SHORT_BINSTRING"), lambda text: text.encode("latin-1")),
}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_KEPT = ("BINPUT", "LONG_BINPUT", "MEMOIZE")
_FETCHED = ("BINGET", "LONG_BINGET")


class _Stack:
    """The stack of a pickle, with its marks and its memory, made of values that can do nothing."""

    def __init__(self, most: int) -> None:
        self._items: list[Any] = []
        self._outer: list[list[Any]] = []
        self._kept: dict[int, Any] = {}
        self._budget = most  # of characters to encode: one text may be named many times

    def follow(self, opcode: str, argument: Any) -> None:
        """One step; an opcode that CIFAR-10's files do not have is refused."""
        if opcode in _PUSHED:
            self._push(_PUSHED[opcode](argument))
        elif opcode in _TUPLES:
            self._push(tuple([self._pop() for _ in range(_TUPLES[opcode])][::-1]))
        elif opcode in _KEPT:
            self._kept[len(self._kept) if argument is None else argument] = self._top()
        elif opcode in _FETCHED:
            if argument not in self._kept:
                raise ValueError(f"it fetches the value {argument}, which was never kept")
            self._push(self._kept[argument])
        elif opcode in _FOLDS:
            _FOLDS[opcode](self)
        else:
            allowed = ", ".join(sorted([*_PUSHED, *_TUPLES, *_KEPT, *_FETCHED, *_FOLDS]))
            raise ValueError(f"it has the opcode {opcode}; allowed are {allowed}")

    def result(self) -> dict[str, Any]:
        """The one dict that is left at the end."""
        if self._outer or len(self._items) != 1 or not isinstance(self._items[0], dict):
            raise ValueError("it does not hold one dict")
        return self._items[0]

    def _push(self, value: Any) -> None:
        self._items.append(value)

    def _top(self) -> Any:
        if not self._items:
            raise ValueError("its opcodes do not fit together: a value is missing")
        return self._items[-1]

    def _pop(self) -> Any:
        top = self._top()
        del self._items[-1]
        return top

    def _mark(self) -> None:
        self._outer.append(self._items)
        self._items = []

    def _marked(self) -> list[Any]:
        """The values since the last mark."""
        if not self._outer:
            raise ValueError("its opcodes do not fit together: a mark is missing")
        found, self._items = self._items, self._outer.pop()
        return found

    def _append(self, values: list[Any]) -> None:
        if not isinstance(self._top(), list):
            raise ValueError("it appends to something that is no list")
        self._top().extend(values)

    def _set(self, values: list[Any]) -> None:
        entries = self._top()
        if not isinstance(entries, dict) or len(values) % 2:
            raise ValueError("it sets an entry that is not of a dict, or has no value")
        for key, value in zip(map(_text, values[::2]), values[1::2], strict=True):
            if key is None or key in entries:
                raise ValueError("it sets a key twice, or one that is no text")
            entries[key] = value

    def _global(self) -> None:
        name, module = self._pop(), self._pop()
        if not isinstance(name, str) or not isinstance(module, str):
            raise ValueError("it names something that is no text")
        self._push(_name(f"{module}.{name}"))

    def _reduce(self) -> None:
        """Note the call; the encoding of a text, which is how Python 3 writes bytes, is done here."""
        arguments, name = self._pop(), self._pop()
        if not isinstance(name, _Name) or not isinstance(arguments, tuple):
            raise ValueError("it calls something that is no constructor")
        encodes = name.text == "_codecs.encode"
        self._push(self._encoded(arguments) if encodes else _Call(name.text, arguments))

    def _encoded(self, arguments: tuple[Any, ...]) -> bytes:
        if (
            len(arguments) != 2
            or not isinstance(arguments[0], str)
            or _text(arguments[1]) != "latin1"
        ):
            raise ValueError(
                "it calls _codecs.encode with other arguments than a text and 'latin1'"
            )
        self._budget -= len(arguments[0])
        if self._budget < 0:
            raise ValueError("it encodes more text than it has")
        return arguments[0].encode("latin-1")

    def _build(self) -> None:
        state, made = self._pop(), self._top()
        if not isinstance(made, _Call) or made.state is not None:
            raise ValueError("it sets the state of something that is no new array or dtype")
        made.state = state


_FOLDS: dict[str, Callable[[_Stack], None]] = {
    "PROTO": lambda stack: None,
    "FRAME": lambda stack: None,
    "MARK": _Stack._mark,
    "TUPLE": lambda stack: stack._push(tuple(stack._marked())),
    "APPEND": lambda stack: stack._append([stack._pop()]),
    "APPENDS": lambda stack: stack._append(stack._marked()),
    "SETITEM": lambda stack: stack._set([stack._pop(), stack._pop()][::-1]),
    "SETITEMS": lambda stack: stack._set(stack._marked()),
    "STACK_GLOBAL": _Stack._global,
    "REDUCE": _Stack._reduce,
    "BUILD": _Stack._build,
}


# ---- what the opcodes describe


def _text(value: Any) -> str | None:
    """A text, whichever Python wrote it; None if it is none."""
    return (
        value.decode("latin-1")
        if isinstance(value, bytes)
        else value
        if isinstance(value, str)
        else None
    )


def _entry(batch: dict[str, Any], key: str) -> Any:
    if key not in batch:
        raise ValueError(
            f"it has the keys {[key[:20] for key in list(batch)[:9]]}; needed are 'data' and 'labels'"
        )
    return batch[key]


def _pixels(batch: dict[str, Any]) -> Tensor:
    """[N, 3, 32, 32] uint8: each row has the red plane, the green and the blue, row by row."""
    shape, dtype, order, content = _array(_entry(batch, "data"))
    if shape != _shape():
        raise ValueError(
            f"its data has the shape {str(_plain(shape))[:80]}; expected is {_shape()}"
        )
    if not _is_bytes(dtype):
        raise ValueError("its data has another dtype than 'u1', which is expected")
    if order != "C":
        raise ValueError("its data is in Fortran order; expected is C order")
    if not isinstance(content, bytes) or len(content) != shape[0] * shape[1]:
        found = (
            f"{len(content)} bytes" if isinstance(content, bytes) else f"a {type(content).__name__}"
        )
        raise ValueError(f"its data is {found}; expected are {shape[0] * shape[1]} bytes")
    return readers.as_tensor(content).reshape(-1, *readers.CIFAR_SHAPE)


def _array(made: Any) -> tuple[Any, Any, Any, Any]:
    """Shape, dtype, order and content of an array, in either of the two ways that numpy writes one."""
    if (
        isinstance(made, _Call)
        and made.name in _RECONSTRUCT
        and isinstance(made.state, tuple)
        and len(made.state) == 5
    ):
        _, shape, dtype, fortran, content = made.state
        return shape, dtype, "C" if fortran is False or _plain(fortran) == 0 else "F", content
    if (
        isinstance(made, _Call)
        and made.name in _FROMBUFFER
        and made.state is None
        and len(made.arguments) == 4
    ):
        content, dtype, shape, order = made.arguments
        return shape, dtype, _text(order), content
    raise ValueError("its entry 'data' is no numpy array")


def _is_bytes(dtype: Any) -> bool:
    """Whether this is numpy's unsigned byte, without fields or subarrays."""
    if (
        not isinstance(dtype, _Call)
        or dtype.name != "numpy.dtype"
        or not isinstance(dtype.state, tuple)
    ):
        return False
    plain = (
        len(dtype.state) == 8
        and _text(dtype.state[1]) == "|"
        and dtype.state[2:5] == (None, None, None)
    )
    return plain and len(dtype.arguments) == 3 and _text(dtype.arguments[0]) == "u1"


def _plain(value: Any) -> Any:
    """A number, or a tuple of numbers, as it is; of anything else only the name of its type."""
    if isinstance(value, tuple) and len(value) < 9 and all(type(item) is int for item in value):
        return value
    return value if type(value) is int else type(value).__name__


def _labels(batch: dict[str, Any]) -> Tensor:
    labels = _entry(batch, "labels")
    if not isinstance(labels, list) or len(labels) != readers.CIFAR_RECORDS:
        found = (
            f"{len(labels)} values" if isinstance(labels, list) else f"a {type(labels).__name__}"
        )
        raise ValueError(f"its labels are {found}; expected is a list of {readers.CIFAR_RECORDS}")
    for label in labels:
        if type(label) is not int or not 0 <= label < readers.CLASSES:
            raise ValueError(
                f"it has the label {str(_plain(label))[:80]}; allowed are 0 to {readers.CLASSES - 1}"
            )
    return torch.tensor(labels)
