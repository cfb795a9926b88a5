"""Cutting units out of a model: tensors get smaller, and module attributes follow."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from subprune.cutting.attributes import sync_attributes, sync_modules
from subprune.cutting.masking import Keep, check_structure, keep_mask, kept_together, mask
from subprune.cutting.twin import TOLERANCE, Few, Match, first_line, match
from subprune.errors import BudgetError, OptionError, StructureError
from subprune.program.borrow import reachable, undisturbed
from subprune.program.shelf import keeper
from subprune.structure.groups import Group, Structure

if TYPE_CHECKING:
    from subprune.program.program import Inputs, Program

__all__ = ["Cut", "attempt", "broken", "cut", "cut_in_place", "duplicate", "prove", "set_tensors"]


def cut(
    model: nn.Module,
    group: Group | Structure,
    kept: Sequence[int] | Mapping[str, Sequence[int]],
    *,
    inplace: bool = False,
) -> nn.Module:
    """The model without the group's other units; physically smaller, otherwise ordinary: the twin
    of `mask`.

    `group` comes from `find_groups` on this model, `kept` are unit numbers; or give all of what
    `find_groups` returned and ``{group name: unit numbers}``, as for `mask`. Works on a copy unless
    ``inplace=True``. Tied parameters and norms without parameters follow.
    """
    check_structure(group, group=True)
    keeps: list[tuple[Group, Keep]]
    if isinstance(group, Structure):
        if not isinstance(kept, Mapping):
            raise BudgetError(
                "kept must be a dict such as {'conv1': [0, 2]} for several "
                f"groups, got {kept!r:.60}"
            )
        keeps = [(group[n], keep_mask(group[n], units)) for n, units in kept.items()]
    else:
        keeps = [(group, keep_mask(group, [int(u) for u in kept]))]
    target = model if inplace else duplicate(model)
    cut_in_place(target, keeps, group.program)
    return target


def duplicate(model: nn.Module, *, share: bool | Collection[str] = False) -> nn.Module:
    """A deep copy; tensors that a forward run left on modules (old-style weight norm, caches) are
    copied as data. Copies of a large model's weights lie in files.

    With `share`, parameters and buffers, or those with these names, are the model's own: cutting
    replaces them and never writes into them. Scripted functions, which have no state, are shared in
    any case.
    """
    with undisturbed():
        known: dict[int, Any] = {
            id(x): x.detach().clone() for x in reachable(model)[1] if not x.is_leaf
        }
        named = [*model.named_parameters(), *model.named_buffers()]
        mine = {id(x): x for name, x in named if share is True or (share and name in share)}
        keep = keeper(model)
        for x in (*model.parameters(), *model.buffers()):
            copied = x if id(x) in mine or type(x) not in _PLAIN else keep(x.detach())
            if copied.data_ptr() != x.data_ptr():
                known[id(x)] = _like(x, copied)
        known |= mine
        held = [x for module in model.modules() for x in vars(module).values()]
        known |= {id(x): x for x in held if isinstance(x, torch.jit.ScriptFunction)}
        try:
            return copy.deepcopy(model, dict(known))
        except Exception as error:
            raise OptionError(_not_copied(model, known, error)) from error


_PLAIN = (Tensor, nn.Parameter)


def _like(old: Tensor, new: Tensor) -> Tensor:
    """A tensor as a parameter, if it takes the place of one."""
    return nn.Parameter(new, old.requires_grad) if isinstance(old, nn.Parameter) else new


def _not_copied(model: nn.Module, known: dict[int, Any], error: Exception) -> str:
    """In words, what of the model cannot be copied."""
    for name, module in model.named_modules():
        for key, x in vars(module).items():
            if key.startswith("_") and isinstance(x, dict | set):  # PyTorch's own tables
                continue
            try:
                copy.deepcopy(x, dict(known))
            except Exception:
                place = f"{name}.{key}" if name else key
                return (
                    f"the model cannot be copied, because of its attribute {place!r} of type "
                    f"{type(x).__name__} ({first_line(error)}); remove it before pruning, or give "
                    "its class a __deepcopy__"
                )
    return (
        "the model cannot be copied with copy.deepcopy: "
        f"{type(error).__name__}: {first_line(error)}"
    )


def cut_in_place(
    model: nn.Module,
    keeps: Sequence[tuple[Group, Keep]],
    program: Program,
    *,
    eager: bool = False,
) -> None:
    """Shrink the tensors of groups, all at once, and everything that follows from it."""
    _cut_tensors(model, keeps)
    sync_modules(model, keeps, program)
    for group, keep in keeps:
        sync_attributes(model, group, keep, eager=eager)


def set_tensors(model: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Replace parameters and buffers by name, wherever the model holds the same object (tied
    weights).
    """
    places: dict[int, list[tuple[Any, str]]] = {}
    for module in model.modules():
        for entries in (module._parameters, module._buffers):
            for key, x in entries.items():
                if x is not None:
                    places.setdefault(id(x), []).append((entries, key))
    for name, value in values.items():
        owner, _, leaf = name.rpartition(".")
        module = model.get_submodule(owner)
        old: Any = module._parameters[leaf] if leaf in module._parameters else module._buffers[leaf]
        new = _like(old, value.contiguous())
        for entries, key in places[id(old)]:
            entries[key] = new


def _cut_tensors(model: nn.Module, keeps: Sequence[tuple[Group, Keep]]) -> None:
    kept = kept_together(
        (slot.tensor, slot.dim, slot.units, keep) for group, keep in keeps for slot in group.slots
    )
    named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    new: dict[str, Tensor] = {}
    keep_it = keeper(model)
    for name, dims in kept.items():
        x = named[name].detach()
        for dim, on in dims.items():
            if x.shape[dim] != on.size:
                raise StructureError(
                    f"{name} has {x.shape[dim]} positions along dimension {dim}, but its group "
                    f"was found on a model with {on.size}. Run find_groups again after a cut, "
                    "or cut all groups at once."
                )
            x = x.index_select(dim, torch.as_tensor(np.flatnonzero(on), device=x.device))
        new[name] = keep_it(x)
    set_tensors(model, new)


@dataclass(frozen=True)
class Cut:
    """A cut copy of a model, and how it compares with the masked twin."""

    model: nn.Module
    eager: bool  # whether widths that hand-written modules keep about themselves had to change
    match: Match


def attempt(
    model: nn.Module,
    structure: Structure,
    kept: Mapping[str, Sequence[int]],
    inputs: Inputs,
    tolerance: float = TOLERANCE,
    *,
    program: Program | None = None,
    wide: bool = False,
    share: bool = False,
    few: Callable[[], Few] | None = None,
) -> Cut:
    """Cut a copy of the model and compare it with the masked twin on `inputs`; the model given is
    not touched.

    `program` is the record for inputs of another shape than the structure's own; `wide` compares in
    float64 in any case; with `share`, what is not cut stays the given model's (for a copy that is
    thrown away again); `few` gives inputs for closer looks, see `subprune.cutting.twin.match`.
    """
    twin = mask(model, structure, kept, program)
    keeps = [(structure[name], keep_mask(structure[name], units)) for name, units in kept.items()]
    cut_off = {slot.tensor for group, _ in keeps for slot in group.slots}
    first: Cut | None = None
    for eager in (False, True):
        small = duplicate(model, share=share or cut_off)
        try:
            cut_in_place(small, keeps, structure.program, eager=eager)
        except Exception as error:  # numbers that a module keeps about itself and cannot change
            outcome = Match(f"while cutting: {type(error).__name__}: {first_line(error)}")
        else:
            outcome = match(twin, small, inputs, tolerance, wide=wide, few=few)
        if not outcome.problem:
            return Cut(small, eager, outcome)
        first = first or Cut(small, eager, outcome)
    assert first is not None
    return first


def prove(
    model: nn.Module,
    structure: Structure,
    kept: Mapping[str, Sequence[int]],
    inputs: Inputs,
    tolerance: float = TOLERANCE,
) -> nn.Module:
    """Cut a copy of the model and check that it equals the masked twin on `inputs`; return the
    copy.

    Raises `StructureError` with the name of the group and the operation that broke it. The model
    given is not touched.
    """
    result = attempt(model, structure, kept, inputs, tolerance)
    if result.match.problem:
        raise StructureError(broken(structure, kept, result.match.problem))
    return result.model


def broken(structure: Structure, names: Iterable[str], problem: str) -> str:
    """In words, which groups cannot be cut and why."""
    chosen = list(names)
    ops = sorted(
        {structure.program.ops[n.op].where for name in chosen for n in structure[name].narrowings}
    )
    where = f" (norms or means on the way: {', '.join(ops[:3])})" if ops else ""
    shown = ", ".join(repr(n) for n in chosen)
    return f"group {shown} cannot be cut: {problem}{where}; the model was left as it is"
