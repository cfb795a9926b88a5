"""Cutting units out of a model: tensors get smaller, and module attributes follow."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from subprune.attributes import sync_attributes, sync_modules
from subprune.borrow import borrowed, follow, given_back, reachable
from subprune.errors import StructureError
from subprune.masking import Keep, keep_mask, mask
from subprune.program import Inputs, call, flat_tensors
from subprune.record import plain
from subprune.structure import Group, Structure

__all__ = ["cut", "cut_in_place", "duplicate", "prove", "prove_how", "set_tensors"]


def cut(
    model: nn.Module, group: Group, kept: Sequence[int], *, inplace: bool = False, program: Any = None
) -> nn.Module:
    """The model without the group's other units; physically smaller, otherwise ordinary.

    Works on a copy unless ``inplace=True``. `group` comes from `find_groups` on this model; pass the
    structure's ``program`` to have tied parameters and norms without parameters follow as well.
    """
    keep = keep_mask(group, kept)
    target = model if inplace else duplicate(model)
    cut_in_place(target, [(group, keep)], program)
    return target


def duplicate(model: nn.Module) -> nn.Module:
    """A deep copy; tensors that a forward run left on modules (old-style weight norm, caches) are copied as data."""
    left = [x for x in reachable(model)[1] if not x.is_leaf]
    return copy.deepcopy(model, {id(x): x.detach().clone() for x in left})


def cut_in_place(model: nn.Module, keeps: Sequence[tuple[Group, Keep]], program: Any, *, eager: bool = False) -> None:
    """Shrink the tensors of groups, all at once, and everything that follows from it."""
    _cut_tensors(model, keeps)
    sync_modules(model, keeps, program)
    for group, keep in keeps:
        sync_attributes(model, group, keep, eager=eager)


def set_tensors(model: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Replace parameters and buffers by name, wherever the model holds the same object (tied weights)."""
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
        new: Any = value.contiguous()
        if isinstance(old, nn.Parameter):
            new = nn.Parameter(new, requires_grad=old.requires_grad)
        for entries, key in places[id(old)]:
            entries[key] = new


def _cut_tensors(model: nn.Module, keeps: Sequence[tuple[Group, Keep]]) -> None:
    """A dimension may hold units of several groups (a concatenation): what all of them keep stays."""
    left: dict[str, dict[int, Keep]] = {}
    for group, keep in keeps:
        for slot in group.slots:
            on = (slot.units < 0) | keep[slot.units]
            dims = left.setdefault(slot.tensor, {})
            dims[slot.dim] = dims[slot.dim] & on if slot.dim in dims else on
    named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    new: dict[str, Tensor] = {}
    for name, dims in left.items():
        x = named[name].detach()
        for dim, on in dims.items():
            if x.shape[dim] != on.size:
                raise StructureError(
                    f"{name} has {x.shape[dim]} positions along dimension {dim}, but its group was found on a model "
                    f"with {on.size}. Run find_groups again after a cut, or cut all groups at once."
                )
            x = x.index_select(dim, torch.as_tensor(np.flatnonzero(on), device=x.device))
        new[name] = x
    set_tensors(model, new)


def prove(
    model: nn.Module,
    structure: Structure,
    kept: Mapping[str, Sequence[int]],
    inputs: Inputs,
    tolerance: float = 1e-5,
) -> nn.Module:
    """Cut a copy of the model and check that it equals the masked twin on `inputs`; return the copy.

    Raises `StructureError` with the name of the group and the operation that broke it. The model given is
    not touched.
    """
    return prove_how(model, structure, kept, inputs, tolerance)[0]


@given_back
def prove_how(
    model: nn.Module,
    structure: Structure,
    kept: Mapping[str, Sequence[int]],
    inputs: Inputs,
    tolerance: float = 1e-5,
) -> tuple[nn.Module, bool]:
    """`prove`, and whether widths that hand-written modules keep about themselves had to change (``eager``)."""
    expected = mask(model, structure, kept)(inputs)
    problem = ""
    for eager in (False, True):
        small = duplicate(model)
        keeps = [(structure[name], keep_mask(structure[name], units)) for name, units in kept.items()]
        cut_in_place(small, keeps, structure.program, eager=eager)
        try:
            problem = _difference(expected, _outputs(small, inputs), tolerance)
        except StructureError as error:
            problem = str(error)
        if not problem:
            return small, eager
    raise StructureError(_broken(structure, kept, problem))


def _outputs(model: nn.Module, inputs: Inputs) -> list[Tensor]:
    """Outputs of one run in eval mode that leaves neither the model nor the inputs changed."""
    running: list[str] = []
    try:
        with borrowed(model), follow(model, running), torch.no_grad():
            return flat_tensors(plain(call(model, inputs)))
    except Exception as error:
        where = repr(running[-1]) if running and running[-1] else "the model's own forward"
        raise StructureError(f"in {where}: {type(error).__name__}: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0]


def _difference(expected: Sequence[Tensor], found: Sequence[Tensor], tolerance: float) -> str:
    """Empty if all outputs agree relative to their largest entry."""
    for i, (a, b) in enumerate(zip(expected, found, strict=True)):
        if a.shape != b.shape:
            return f"output {i} has shape {tuple(b.shape)}, the masked model's has {tuple(a.shape)}"
        if not a.is_floating_point() or a.numel() == 0:
            continue
        scale = float(a.abs().max()) or 1.0
        gap = float((a - b).abs().max()) / scale
        if not gap <= tolerance:
            return f"output {i} of the cut model differs from the masked one by {gap:.1e} (relative)"
    return ""


def _broken(structure: Structure, kept: Mapping[str, Sequence[int]], problem: str) -> str:
    names = ", ".join(repr(n) for n in kept)
    ops = sorted({structure.program.ops[n.op].where for name in kept for n in structure[name].narrowings})
    where = f" (norms or means on the way: {', '.join(ops[:3])})" if ops else ""
    return f"group {names} cannot be cut: {problem}{where}; the model was left as it is"
