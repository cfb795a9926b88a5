"""Which groups to prune: by default the inner ones; `only` and `ignore` take names, patterns, types
and modules.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Iterable, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

from subprune.errors import BudgetError, OptionError, closest
from subprune.messages import Message, joined

if TYPE_CHECKING:
    from subprune.structure.groups import Group, Structure

__all__ = ["as_items", "choose_groups", "some"]

_ALLOWED = (
    "a group name, a module name, one with wildcards (*, ?, […]), 're:' and a regular expression, "
    "a module type, a module, or a list of these"
)


_KINDS = ("head", "neuron", "channel", "stream")


def as_items(option: Any) -> tuple[Any, ...]:
    """What `only` or `ignore` hold, one by one; a set in a fixed order, so that plans do not depend
    on hashes.
    """
    if option is None:
        return ()
    if isinstance(option, str | type | nn.Module) or not isinstance(option, Iterable):
        return (option,)
    return tuple(sorted(option, key=str)) if isinstance(option, Set) else tuple(option)


def choose_groups(
    structure: Structure,
    model: nn.Module,
    only: Any = None,
    ignore: Any = None,
    budgets: Collection[str] | None = None,
    goal: str = "budgets",
    streams: bool = False,
) -> tuple[Group, ...]:
    """The groups to prune, in forward order.

    Without `only`, the inner groups and those that `budgets`, or another goal, names. With it, what
    it names; residual streams only where they are named themselves, or where `streams` says that
    they are groups as others are. What `ignore` names is left out in any case. A module, however it
    was found, stands for the groups whose units it makes; a container for those of all layers in it.
    """
    if only is None:
        named = budgets or ()
        _check_named(structure, named, goal)
        chosen = {
            g.name
            for g in structure.groups
            if not _obstacle(g, streams) or _in_budgets(g, named, goal)
        }
    else:
        chosen = {
            name for item in as_items(only) for name in _asked(item, structure, model, streams)
        }
    barred = [_match(item, structure, model, "ignore") for item in as_items(ignore)]
    return tuple(
        g for g in structure.groups if g.name in chosen and not any(b.takes(g) for b in barred)
    )


def _check_named(structure: Structure, named: Collection[str], goal: str) -> None:
    """Refuse a layer by name that makes no group, with the reason. Where a layer has the name of a
    kind of groups, such as "head", the kind is meant.
    """
    makers = {name for g in structure.groups for name in (g.name, *g.producers)}
    for name in named:
        if name in structure.refused and name not in makers and name not in _KINDS:
            why = f"{{{goal}=}} names {{name!r}}, which cannot be pruned: {{reason}}; omit it"
            raise BudgetError(Message(why, name=name, reason=structure.refused[name]))


def _obstacle(group: Group, streams: bool) -> str:
    """Why a group that is not named itself stays whole; empty if it does not."""
    return group.barrier if streams and group.kind == "stream" else group.obstacle


def _in_budgets(group: Group, budgets: Collection[str], goal: str) -> bool:
    if group.name not in budgets and not (group.kind == "stream" and "stream" in budgets):
        return False
    if group.barrier:
        why = f"{{{goal}=}} names {{group!r}}, which cannot be pruned: {{barrier}}"
        raise BudgetError(Message(why, group=group.name, barrier=group.barrier))
    return True


@dataclass(frozen=True)
class _Match:
    """What one item of `only` or `ignore` fits."""

    groups: frozenset[str]
    modules: frozenset[str]

    def takes(self, group: Group) -> bool:
        return group.name in self.groups or any(self.holds(layer) for layer in group.producers)

    def holds(self, layer: str) -> bool:
        """Whether the layer is one of the modules or inside one."""
        return any(layer == m or layer.startswith(m + ".") or not m for m in self.modules)


def _asked(item: Any, structure: Structure, model: nn.Module, streams: bool) -> set[str]:
    """Groups that an item of `only` asks for: one that it names itself, if that can go at all;
    inner ones, where it covers several. An item that finds none is refused.
    """
    match = _match(item, structure, model, "only")
    stay = {
        g.name: g.barrier if g.name == item else _obstacle(g, streams)
        for g in structure.groups
        if match.takes(g)
    }
    chosen = {name for name, why in stay.items() if not why}
    if chosen:
        return chosen
    stay |= {name: why for name, why in structure.refused.items() if match.holds(name)}
    shown = [Message("{name}: {why}", name=name, why=why) for name, why in stay.items()]
    reasons = joined([*shown[:5], *(["…"] if len(shown) > 5 else [])])
    raise BudgetError(
        Message(
            "{only=} holds {item}, and nothing it matches can be pruned: {reasons}",
            item=_shown(item),
            reasons=reasons or "no layer of it makes units that another layer reads",
        )
    )


def _match(item: Any, structure: Structure, model: nn.Module, option: str) -> _Match:
    """The groups and modules an item fits, whatever it is; one that fits none is refused."""
    modules = dict(model.named_modules())
    if isinstance(item, str):
        return _text(item, structure, [n for n in modules if n], option)
    if isinstance(item, type) and issubclass(item, nn.Module):
        names = {n for n, m in modules.items() if n and isinstance(m, item)}
        kinds = sorted({type(m).__name__ for n, m in modules.items() if n})
        trouble = (
            "and no module in the model is one; "
            f"{closest(item.__name__, kinds)}there are {', '.join(kinds)}"
        )
    elif isinstance(item, nn.Module):
        names = {n for n, m in modules.items() if m is item}
        trouble = "which is not a module of this model; give one that is"
    else:
        kind = type(item).__name__
        raise _wrong(option, f"holds {item!r} of type {kind}; allowed is {_ALLOWED}")
    if not names:
        raise _wrong(option, f"holds {_shown(item)}, {trouble}")
    return _Match(frozenset(), frozenset(names))


def _text(text: str, structure: Structure, modules: list[str], option: str) -> _Match:
    """A name, a regular expression found anywhere in one, or wildcards that fit the whole of it."""
    names = [*structure.names, *modules]
    if text in names:
        # not what a container of that name holds
        exactly = option == "only" and text in structure.names
        return _Match(frozenset({text}), frozenset() if exactly else frozenset({text}))
    if not text.startswith("re:") and not any(c in text for c in "*?["):
        hint = closest(text, structure.names) or closest(text, modules)
        what = f"names {text!r}, which is neither a group nor a module"
        raise _wrong(option, f"{what}; {hint}{_known(structure)}; allowed is {_ALLOWED}")
    try:
        pattern = re.compile(text[3:] if text.startswith("re:") else fnmatch.translate(text))
    except re.error as error:
        what = f"holds {text!r}, which is not a regular expression: {error}"
        raise _wrong(option, what) from None
    groups, matching = (frozenset(filter(pattern.search, x)) for x in (structure.names, modules))
    if not groups and not matching:
        what = f"holds {text!r}, which matches no group and no module"
        raise _wrong(option, f"{what}; {_known(structure)}")
    return _Match(groups, matching)


def _known(structure: Structure) -> str:
    return f"the groups are {some(structure.names)}"


def some(names: Sequence[str]) -> str:
    """The first of them."""
    return ", ".join([*names[:8], *(["…"] if len(names) > 8 else [])])


def _wrong(option: str, what: str) -> OptionError:
    return OptionError(Message(f"{{{option}=}} {{what}}", what=what))


def _shown(item: Any) -> str:
    if isinstance(item, type):
        return f"the type {item.__name__}"
    return repr(item) if isinstance(item, str) else f"a {type(item).__name__}"
