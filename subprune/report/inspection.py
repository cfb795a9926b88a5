"""A table of what can be pruned in a model, what each unit costs, and why everything else stays."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

from subprune.cutting.check import Check, check_code
from subprune.data.batches import examples
from subprune.errors import closest
from subprune.measure.tables import WIDTH, text_table
from subprune.messages import Message
from subprune.program.accept import check_kind
from subprune.program.borrow import given_back
from subprune.program.program import input_count
from subprune.program.record import record_given
from subprune.structure.cost import CostModel, Ints
from subprune.structure.grouping import analyse

if TYPE_CHECKING:
    from subprune.structure.groups import Group, Structure

__all__ = ["GroupRow", "Inspection", "inspect"]

_HEADER = (
    "group",
    "kind",
    "units",
    "params/unit",
    "FLOPs/unit/input",
    "default",
    "read by",
    "remark",
)


@dataclass(frozen=True, kw_only=True)
class GroupRow:
    """One group. What a unit costs is a pair: for the cheapest unit, and for the most expensive."""

    name: str
    kind: str
    units: int
    params_per_unit: tuple[int, int]  # parameters that go if this one unit goes
    flops_per_unit: tuple[int, int]  # per input, two per multiply-add
    default: bool  # pruned unless `ignore` or `only` say otherwise
    producers: tuple[str, ...]
    followers: tuple[str, ...]
    consumers: tuple[str, ...]
    # why it is not pruned by default, what its widths must be, who cannot be refitted
    obstacles: tuple[str, ...]

    def cells(self) -> tuple[str, ...]:
        """The row as texts, in the order of the table's header."""
        return (
            self.name,
            self.kind,
            f"{self.units:,}",
            _range(self.params_per_unit),
            _range(self.flops_per_unit),
            "yes" if self.default else "no",
            _few(self.consumers),
            "; ".join(self.obstacles),
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class Inspection:
    """What `inspect` found. Print it, show it in a notebook, or read its fields."""

    model: str
    params: int
    flops: int  # per input: of a call on the example, over its inputs; two per multiply-add
    rows: tuple[GroupRow, ...]
    refused: dict[str, str]  # layer → why its outputs cannot go
    unused: tuple[str, ...]  # parameters that the forward run did not touch
    structure: Structure

    def __iter__(self) -> Iterator[GroupRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, name: str) -> GroupRow:
        for row in self.rows:
            if row.name == name:
                return row
        names = self.structure.names
        raise KeyError(
            f"no group {name!r}: {closest(str(name), names)}groups are {', '.join(names)}"
        )

    @property
    def _summary(self) -> str:
        default = sum(r.default for r in self.rows)
        groups = "group" if len(self.rows) == 1 else "groups"
        return (
            f"{self.model}: {self.params:,} parameters, {self.flops:,} FLOPs per input; "
            f"{len(self.rows)} {groups}, {default} of them pruned by default"
        )

    def _notes(self) -> list[tuple[str, str]]:
        """Layers that stay, each with the reason; then parameters that are not used."""
        notes = [(name or "(model)", why) for name, why in self.refused.items()]
        return notes + [(name, "is not used in the forward pass") for name in self.unused]

    def __str__(self) -> str:
        return self.text()

    def text(self, width: int = WIDTH) -> str:
        """The table, and below it what cannot be pruned and why; lines have at most `width`
        characters.
        """
        rows = [r.cells() for r in self.rows]
        lines = [text_table(_HEADER, rows, right=_HEADER[2:5], title=self._summary, width=width)]
        notes = self._notes()
        if notes:
            lines += ["", "not prunable", *(f"  {name}: {why}" for name, why in notes)]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{html.escape(h)}</th>" for h in _HEADER)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in row.cells()) + "</tr>"
            for row in self.rows
        )
        notes = "".join(
            f"<li><code>{html.escape(n)}</code>: {html.escape(why)}</li>"
            for n, why in self._notes()
        )
        return (
            f"<p>{html.escape(self._summary)}</p>"
            f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
            + (f"<p>Not prunable:</p><ul>{notes}</ul>" if notes else "")
        )


@given_back
def inspect(model: nn.Module, example_inputs: Any) -> Inspection:
    """Every group of the model with its units, what they cost and who reads them, and why the rest
    stays.

    `example_inputs` as for `find_groups`. The model is run on fake tensors, whole and as a copy
    with fewer units in every group, so that groups which its own code cannot do without are known;
    it is not changed.
    """
    check_kind(model)
    arguments = examples(model, example_inputs)
    structure = analyse(record_given(model, arguments, "the example inputs"))
    cost = CostModel(model, structure)
    read = {v for op in structure.program.ops for v in op.inputs}
    used = {name for name, vid in structure.program.tensors.items() if vid in read}
    hidden = tuple(structure.program.opaque)
    unused = tuple(
        name
        for name, _ in model.named_parameters()
        if name not in used and not any(name.startswith(o + ".") for o in hidden)
    )
    checked = check_code(model, structure, arguments)
    inputs = input_count(arguments)
    rows = tuple(_row(group, cost, checked, inputs) for group in structure.groups)
    return Inspection(
        model=type(model).__name__,
        params=cost.params({}),
        flops=cost.flops({}) // inputs,
        rows=rows,
        refused=dict(structure.refused),
        unused=unused,
        structure=structure,
    )


def _row(group: Group, cost: CostModel, checked: Check, inputs: int) -> GroupRow:
    params, flops = cost.per_unit(group.name)
    obstacles = [group.obstacle] if group.obstacle else []
    if group.name in checked.refused:
        obstacles = [f"cannot be cut: {checked.refused[group.name]}"]
    if group.name in checked.multiples:
        multiple = checked.multiples[group.name]
        obstacles.append(
            f"cut to multiples of {multiple}: the model's code fails with others that were tried"
        )
    if each := _channels(group):
        obstacles.append(f"a unit is {each} channels, one from each group of a grouped convolution")
    if _ends(params)[0] < _ends(params)[1] or _ends(flops)[0] < _ends(flops)[1]:
        obstacles.append(
            Message(
                "its units differ in size: goals are met whichever stay; {budgets=} says how many"
            )
        )
    if group.reweightable:  # otherwise the first obstacle says it all
        obstacles += [
            f"{c.name} is not refitted: {c.obstacle}" for c in group.consumers if c.obstacle
        ]
    return GroupRow(
        name=group.name,
        kind=group.kind,
        units=group.n_units,
        params_per_unit=_ends(params),
        flops_per_unit=_ends(flops // inputs),
        default=group.inner and group.name not in checked.refused,
        producers=group.producers,
        followers=group.followers,
        consumers=tuple(dict.fromkeys(c.name for c in group.consumers)),
        obstacles=tuple(dict.fromkeys(obstacles)),
    )


def _channels(group: Group) -> int:
    """How many channels go with a unit, where a grouped convolution ties as many; else 0."""
    if group.kind != "channel":
        return 0
    made = [s.units for s in group.slots if s.role == "producer" and s.dim == 0]
    each = {int((units == u).sum()) for units in made for u in range(group.n_units)}
    return each.pop() if len(each) == 1 and max(each) > 1 else 0


def _ends(x: Ints) -> tuple[int, int]:
    return int(x.min()), int(x.max())


def _range(ends: tuple[int, int]) -> str:
    return f"{ends[0]:,}" if ends[0] == ends[1] else f"{ends[0]:,}–{ends[1]:,}"


def _few(names: Sequence[str], most: int = 3) -> str:
    shown = ", ".join(names[:most]) or "–"
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
