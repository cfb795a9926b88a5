"""The same removal as a cut, but by zeroing: the twin that a cut is checked against.

Parameters keep their shapes; everything that belongs to a removed unit is zero. Operations that run
over the units and notice how many there are (norms, means) are computed on the kept positions only.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from subprune.errors import BudgetError, OptionError
from subprune.program.ops import narrowed
from subprune.program.program import Inputs, Op, Override, Program, model_tensors
from subprune.structure.groups import Group, Structure

if TYPE_CHECKING:
    from subprune.structure.groups import Slot

__all__ = [
    "Changed",
    "Masked",
    "check_structure",
    "keep_mask",
    "kept_together",
    "mask",
    "overrides",
]

Keep = NDArray[np.bool_]
Place = TypeVar("Place", bound=Hashable)


def keep_mask(group: Group, kept: Sequence[int]) -> Keep:
    """Kept unit numbers as a checked boolean array."""
    chosen = np.asarray(list(kept), dtype=np.int64)
    if (
        chosen.size == 0
        or chosen.min() < 0
        or chosen.max() >= group.n_units
        or len(set(chosen.tolist())) < chosen.size
    ):
        raise BudgetError(
            f"group {group.name!r}: units to keep must be 1 to {group.n_units} different numbers "
            f"from 0 to {group.n_units - 1}, got {_short(chosen.tolist())}"
        )
    result = np.zeros(group.n_units, dtype=bool)
    result[chosen] = True
    for part in group.parts if chosen.size < group.n_units else ():
        if not result[list(part)].any():
            raise BudgetError(
                f"group {group.name!r}: at least one of the units {_short(sorted(part))} must "
                f"stay, since some layer holds no others; got {_short(chosen.tolist())}"
            )
    return result


def _short(numbers: list[int]) -> str:
    return (
        str(numbers)
        if len(numbers) <= 8
        else f"[{', '.join(map(str, numbers[:8]))}, …] ({len(numbers)} of them)"
    )


class Changed(Mapping[str, Tensor]):
    """Tensors that are changed when they are read, and not kept: those of a model may be large."""

    def __init__(
        self, tensors: Mapping[str, Tensor], change: Callable[[str, Tensor], Tensor]
    ) -> None:
        self.tensors, self.change = tensors, change

    def __getitem__(self, name: str) -> Tensor:
        return self.change(name, self.tensors[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)


class Masked:
    """A model with units switched off. Call it like the model; outputs come as a flat list of
    tensors.
    """

    def __init__(
        self, program: Program, tensors: Mapping[str, Tensor], override: Mapping[int, Override]
    ) -> None:
        self.program, self.tensors, self.override = program, tensors, override

    @property
    def dtypes(self) -> set[torch.dtype]:
        """The types of its parameters and buffers."""
        return {self.program.values[value].dtype for value in self.program.tensors.values()}

    def __call__(self, inputs: Inputs) -> list[Tensor]:
        return self.program.call(inputs, self.tensors, override=self.override)


def mask(
    model: nn.Module,
    structure: Structure,
    kept: Mapping[str, Sequence[int]],
    program: Program | None = None,
) -> Masked:
    """The twin of the model in which only the units in `kept` (group name → unit numbers) are on.

    It runs on inputs of the shapes that the structure was found with, or that `program` was
    recorded for.
    """
    check_structure(structure)
    program = program or structure.program
    tensors = model_tensors(model, program)
    keeps = [(structure[name], keep_mask(structure[name], units)) for name, units in kept.items()]
    slots: dict[str, list[tuple[Slot, Keep]]] = {}
    for group, keep in keeps:
        for slot in group.slots:
            slots.setdefault(slot.tensor, []).append((slot, keep))

    def switched(name: str, x: Tensor) -> Tensor:
        for slot, keep in slots.get(name, ()):
            x = _zeroed(x, slot, keep)
        return x

    return Masked(program, Changed(tensors, switched), overrides(program, keeps))


def check_structure(given: object, *, group: bool = False) -> None:
    """Refuse what `find_groups` does not return."""
    if not isinstance(given, (Structure, Group) if group else Structure):
        one = ", or one of its groups" if group else ""
        raise OptionError(
            f"the second argument must be what subprune.find_groups(model, inputs) returns{one}; got "
            f"an object of type {type(given).__name__}"
        )


def zero(tensors: dict[str, Tensor], group: Group, keep: Keep) -> None:
    """Zero what belongs to removed units; tensors are replaced, never written into."""
    for slot in group.slots:
        tensors[slot.tensor] = _zeroed(tensors[slot.tensor], slot, keep)


def _zeroed(x: Tensor, slot: Slot, keep: Keep) -> Tensor:
    """A tensor without what belongs to removed units."""
    factor = torch.as_tensor((slot.units < 0) | keep[slot.units], dtype=x.dtype, device=x.device)
    shape = [1] * x.ndim
    shape[slot.dim] = -1
    return x * factor.reshape(shape)


def kept_together(
    places: Iterable[tuple[Place, int, NDArray[np.int64], Keep]],
) -> dict[Place, dict[int, Keep]]:
    """Which positions stay, of every dimension of some places.

    A dimension may hold units of several groups (a concatenation): what all of them keep stays.
    places: where, the dimension, the unit of each position or -1, and the group's units that stay.
    """
    kept: dict[Place, dict[int, Keep]] = {}
    for place, dim, units, keep in places:
        on = (units < 0) | keep[units]
        dims = kept.setdefault(place, {})
        dims[dim] = dims[dim] & on if dim in dims else on
    return kept


def overrides(program: Program, keeps: Sequence[tuple[Group, Keep]]) -> dict[int, Override]:
    """Corrected operations, by index, for everything that notices the number of units."""
    positions = kept_together(
        (n.op, n.dim, n.units, keep) for group, keep in keeps for n in group.narrowings
    )
    return {
        index: _narrowed(dims)
        for index, dims in positions.items()
        if not all(on.all() for on in dims.values())
    }


def _narrowed(dims: Mapping[int, Keep]) -> Override:
    """An operation computed on the kept positions only, and spread out again where the dimension
    survives.
    """
    index = {dim: torch.as_tensor(np.flatnonzero(on)) for dim, on in dims.items()}

    def run(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return narrowed(op, args, kwargs, index)

    return run
