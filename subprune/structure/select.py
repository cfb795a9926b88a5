"""Which groups to prune: by default the inner ones; `only` and `ignore` take names, patterns, types and modules."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from subprune.errors import OptionError, closest
from subprune.structure.groups import Group, Structure

__all__ = ["choose_groups"]

Test = Callable[[Group], bool]
_ALLOWED = (
    "a group name, a module name, one with wildcards (*, ?, […]), 're:' and a regular expression, a module type, "
    "a module, or a list of these"
)


def choose_groups(structure: Structure, model: nn.Module, only: Any = None, ignore: Any = None) -> tuple[Group, ...]:
    """The groups to prune, in forward order.

    Without `only`, the inner groups. With it, the groups it names, residual streams too where they are named
    themselves. What `ignore` names is left out in any case. A module stands for the groups whose units it
    makes; a container for those of all layers in it.
    """
    chosen = list(structure.inner())
    if only is not None:
        tests = [_test(x, structure, model, "only") for x in _items(only)]
        chosen = [g for g in structure.groups if any(t(g) for t in tests) and _can_go(g, only)]
    barred = [_test(x, structure, model, "ignore") for x in _items(ignore)]
    return tuple(g for g in chosen if not any(t(g) for t in barred))


def _items(given: Any) -> list[Any]:
    if given is None:
        return []
    if isinstance(given, str | type | nn.Module) or not isinstance(given, Iterable):
        return [given]
    return list(given)


def _can_go(group: Group, only: Any) -> bool:
    """Named itself, a group may be anything with units to spare; caught by something wider, it must be inner."""
    return group.n_units > 1 if group.name in _items(only) else group.inner


def _test(item: Any, structure: Structure, model: nn.Module, option: str) -> Test:
    if isinstance(item, str):
        known = {*structure.names, *(n for n, _ in model.named_modules())}
        wild = item not in known and any(c in item for c in "*?[")
        find = _pattern if item.startswith("re:") or wild else _name
        return find(item, structure, model, option)
    modules = dict(model.named_modules())
    if isinstance(item, type) and issubclass(item, nn.Module):
        return _makes({n for n, m in modules.items() if isinstance(m, item)})
    if isinstance(item, nn.Module):
        names = {n for n, m in modules.items() if m is item}
        if not names:
            raise OptionError(
                f"{option}= holds a {type(item).__name__} that is no module of this model; give one that is"
            )
        return _within(names)
    raise OptionError(f"{option}= holds {item!r} of type {type(item).__name__}; allowed is {_ALLOWED}")


def _name(name: str, structure: Structure, model: nn.Module, option: str) -> Test:
    if name in structure.names:
        inside = _within({name}) if option == "ignore" else None
        return lambda g: g.name == name or (inside is not None and inside(g))
    modules = [n for n, _ in model.named_modules() if n]
    if name in modules:
        return _within({name})
    hint = closest(name, [*structure.names, *modules])
    raise OptionError(f"{option}= names {name!r}, which is neither a group nor a module; {hint}allowed is {_ALLOWED}")


def _pattern(text: str, structure: Structure, model: nn.Module, option: str) -> Test:
    """A regular expression found anywhere in a name, or wildcards that fit the whole of it."""
    try:
        pattern = re.compile(text[3:] if text.startswith("re:") else fnmatch.translate(text))
    except re.error as error:
        raise OptionError(f"{option}= holds {text!r}, which is not a regular expression: {error}") from None
    names = {n for n, _ in model.named_modules()}
    if not any(pattern.search(n) for n in [*structure.names, *names]):
        shown = ", ".join([*structure.names[:8], *(["…"] if len(structure.names) > 8 else [])])
        raise OptionError(f"{option}= holds {text!r}, which matches no group and no module; the groups are {shown}")
    made = _makes({n for n in names if n and pattern.search(n)})
    return lambda g: bool(pattern.search(g.name)) or made(g)


def _makes(modules: set[str]) -> Test:
    return lambda g: any(p in modules for p in g.producers)


def _within(modules: set[str]) -> Test:
    """Groups made by these modules or by layers inside them."""
    return lambda g: any(p == m or p.startswith(m + ".") or not m for p in g.producers for m in modules)
