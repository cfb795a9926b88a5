"""Dataclasses from JSON, every value checked against its declared type; no file is trusted."""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any, TypeVar

from subprune.errors import DataError

__all__ = ["decode"]

T = TypeVar("T")
_DEEPEST = 8


def decode(kind: type[T], value: Any, where: str) -> T:
    """An instance of the dataclass `kind` from plain data,
    or a `DataError` that names the place.
    """
    if not isinstance(value, dict):
        raise DataError(f"{where} must be an object, got {_shown(value)}")
    hints = typing.get_type_hints(kind)
    fields = {f.name: f for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    unknown = sorted(value.keys() - fields.keys())
    if unknown:
        raise DataError(
            f"{where} has the unknown entry {_shown(unknown[0])}; it was "
            "not written by this version"
        )
    values = {name: _value(hints[name], x, f"{where}.{name}") for name, x in value.items()}
    needed = [
        f.name
        for f in fields.values()
        if f.name not in values
        and f.default is dataclasses.MISSING
        and f.default_factory is dataclasses.MISSING
    ]
    if needed:
        raise DataError(
            f"{where} lacks {', '.join(needed)}; it was not written by subprune, or is damaged"
        )
    return kind(**values)


def _value(kind: Any, x: Any, where: str) -> Any:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return _plain(x, where)
    if origin in (typing.Union, types.UnionType):
        return (
            None if x is None else _value(next(k for k in inner if k is not type(None)), x, where)
        )
    if dataclasses.is_dataclass(kind):
        return decode(typing.cast(type, kind), x, where)
    if origin is tuple:
        return _tuple(inner, x, where)
    if origin is dict:
        if not isinstance(x, dict):
            raise DataError(f"{where} must be an object, got {_shown(x)}")
        return {str(k): _value(inner[1], v, f"{where}[{k!r:.40}]") for k, v in x.items()}
    if kind is float and x is None:
        return float("nan")
    wanted = (int, float) if kind is float else kind
    if not isinstance(x, wanted) or (isinstance(x, bool) and kind is not bool):
        raise DataError(f"{where} must be {kind.__name__}, got {_shown(x)}")
    if kind in (int, float) and abs(x) > 1e300:
        raise DataError(f"{where} is out of range")
    return kind(x)


def _tuple(inner: tuple[Any, ...], x: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(x, list | tuple):
        raise DataError(f"{where} must be a list, got {_shown(x)}")
    if len(inner) == 2 and inner[1] is Ellipsis:
        return tuple(_value(inner[0], v, f"{where}[{i}]") for i, v in enumerate(x))
    if len(x) != len(inner):
        raise DataError(f"{where} must have {len(inner)} entries, got {len(x)}")
    return tuple(
        _value(k, v, f"{where}[{i}]") for i, (k, v) in enumerate(zip(inner, x, strict=True))
    )


def _plain(x: Any, where: str, depth: int = 0) -> Any:
    """Any JSON value of moderate depth."""
    if depth > _DEEPEST:
        raise DataError(f"{where} is nested too deeply")
    if isinstance(x, dict):
        return {k: _plain(v, where, depth + 1) for k, v in x.items()}
    if isinstance(x, list):
        return [_plain(v, where, depth + 1) for v in x]
    return x


def _shown(x: Any) -> str:
    text = repr(x)
    return text if len(text) <= 40 else f"{text[:40]}…"
