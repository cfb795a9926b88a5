"""Before the long work: cut some units of every group, with the weights as they are, and see what
comes out.

A group whose cut breaks the model's own code, or gives outputs other than the masked
twin's, is
known within seconds of finding the groups. It is left whole, by name and with the reason, and the
rest goes on. Code that takes certain widths only (``assert channels % 4 == 0``) is cut to multiples
of those.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import nn

from subprune.cutting.masking import keep_mask
from subprune.cutting.surgery import attempt, cut_in_place, duplicate
from subprune.cutting.twin import TOLERANCE, Few, first_line
from subprune.data.batch import Batch, first_samples
from subprune.program.record import record

if TYPE_CHECKING:
    from subprune.program.program import Inputs, Program
    from subprune.structure.groups import Group, Structure

__all__ = ["Check", "blame", "check_code", "check_groups", "few_inputs", "some_units"]

MULTIPLES = (2, 3, 4, 6, 8, 12, 16, 24, 32)
_SHARE = 0.75  # of the units are kept
_CHEAP = 10**10  # FLOPs of a run that is worth float64, and two inputs
_SMALL = 5 * 10**7  # parameters of a model that is worth a copy in float64
_DEAR = 10**11  # from this many on, one input

Kept = dict[str, list[int]]


@dataclass(frozen=True)
class Check:
    """Which groups can be cut, and how."""

    able: tuple[Group, ...]
    refused: dict[str, str] = field(default_factory=dict)  # group → why it cannot be cut
    # group → what its width must be a multiple of
    multiples: dict[str, int] = field(default_factory=dict)

    @property
    def notes(self) -> list[str]:
        """For the report."""
        notes = [f"left whole: {name} cannot be cut, {why}" for name, why in self.refused.items()]
        by_multiple: dict[int, list[str]] = {}
        for name, m in self.multiples.items():
            by_multiple.setdefault(m, []).append(name)
        return notes + [
            f"cut to multiples of {m}, since the model's code fails with others that were "
            f"tried: {', '.join(names)}"
            for m, names in sorted(by_multiple.items())
        ]


def check_groups(
    model: nn.Module, structure: Structure, groups: Sequence[Group], batch: Batch, multiple: int = 1
) -> Check:
    """Cut about a quarter of the units of all groups at once; where that fails, find the groups to
    blame.

    Numbers of kept units are multiples of `multiple`, and of no other small number, so
    that code which takes even ones only, or multiples of three, shows itself. The groups that can
    be cut, can be cut together.
    """
    few = few_inputs(model, structure, batch)
    size = sum(p.numel() for p in model.parameters())
    cheap = sum(op.flops for op in few.program.ops) <= _CHEAP and size <= _SMALL

    def problem(kept: Mapping[str, Sequence[int]]) -> str:
        tried = attempt(
            model,
            structure,
            kept,
            few.inputs,
            TOLERANCE,
            program=few.program,
            wide=cheap,
            share=True,
        )
        return tried.match.problem

    return _search(groups, problem, multiple)


def check_code(model: nn.Module, structure: Structure, inputs: Inputs) -> Check:
    """The same for every group that has units to spare, on fake tensors: nothing is computed, so
    just code that does not run with fewer units is noticed, not wrong numbers.
    """
    shapes = [structure.program.values[v].shape for v in structure.program.outputs]

    def problem(kept: Mapping[str, Sequence[int]]) -> str:
        keeps = [
            (structure[name], keep_mask(structure[name], units)) for name, units in kept.items()
        ]
        first = ""
        for eager in (False, True):
            small = duplicate(model, share=True)
            try:
                cut_in_place(small, keeps, structure.program, eager=eager)
                program = record(small, inputs)
            except Exception as error:
                first = first or f"{type(error).__name__}: {first_line(error)}"
                continue
            small_shapes = [program.values[v].shape for v in program.outputs]
            if small_shapes == shapes:
                return ""
            first = first or f"the outputs have shapes {small_shapes}, and {shapes} with all units"
        return first

    return _search([g for g in structure.groups if not g.barrier], problem, 1)


def _search(groups: Sequence[Group], problem: Callable[[Kept], str], multiple: int) -> Check:
    """Try all groups, then those that fail at multiples of more and more;
    what is left is refused.
    """
    # Groups that can be cut, each with the units that were tried; it stays cut in later trials, so
    # that what works alone and not with others is found.
    works: Kept = {}
    multiples: dict[str, int] = {}
    failing = {g.name: "" for g in groups}
    known = {g.name: g for g in groups}
    for m in (1, *MULTIPLES):
        step = math.lcm(m, multiple)
        if m > 1 and step == multiple:
            continue
        tries = {
            name: some_units(known[name], step)
            for name in failing
            if m == 1 or step < known[name].n_units
        }
        reasons = blame(tries, problem, works)
        if m > 1:  # chance must not help: three times four is a multiple of six
            least = {name: _chosen(known[name], step) for name in tries if name not in reasons}
            reasons |= blame(least, problem, works)
        for name in tries.keys() - reasons.keys():
            works[name] = tries[name]
            del failing[name]
            if m > 1:
                multiples[name] = m
        if m == 1:
            failing = dict(reasons)
        if not failing:
            break
    able = tuple(g for g in groups if g.name not in failing)
    return Check(able, failing, multiples)


def blame(
    tries: Kept, problem: Callable[[Kept], str], works: Mapping[str, list[int]] | None = None
) -> dict[str, str]:
    """Groups of `tries` that fail, with what goes wrong; all others work together, and with those
    of `works`.

    By halves: few trials where few groups are to blame. Of groups that fail only in combination,
    the first stays.
    """
    good: Kept = dict(works or {})
    bad: dict[str, str] = {}

    def add(names: list[str]) -> None:
        why = problem({**good, **{n: tries[n] for n in names}})
        if not why:
            good.update({n: tries[n] for n in names})
        elif len(names) == 1:
            bad[names[0]] = why
        else:
            add(names[: len(names) // 2])
            add(names[len(names) // 2 :])

    if tries:
        add(list(tries))
    return bad


def some_units(group: Group, multiple: int = 1) -> list[int]:
    """About three quarters of the units, chosen at random but always the same: an odd multiple of
    `multiple`, and where there is one, no multiple of three times as much.
    """
    n = group.n_units
    # Odd numbers, none of them a multiple of three: what asks for even ones or threes fails.
    odd = range(1, int(_SHARE * n) // multiple + 1, 2)
    count = multiple * max([i for i in odd if i > 1 and i % 3] or odd, default=1)
    return _chosen(group, count)


def _chosen(group: Group, count: int) -> list[int]:
    n = group.n_units
    if count >= n:
        return list(range(n))
    order = list(range(n))
    random.Random(f"{group.name} {n}").shuffle(order)
    return list(group.choice(order, max(count, group.least)))


def few_inputs(model: nn.Module, structure: Structure, batch: Batch) -> Few:
    """One or two inputs with their program; all of the batch where the model takes another path for
    fewer.
    """
    work = sum(op.flops for op in structure.program.ops) / max(1, batch.size)
    for count in (1, 2) if work > _DEAR else (2,):
        if count >= batch.size:
            break
        inputs = first_samples(batch, count).inputs
        try:
            program = record(model, inputs)
        except Exception:  # a batch that cannot be taken apart
            continue
        if _fits(program, structure):
            return Few(inputs, program)
    return Few(batch.inputs, structure.program)


def _fits(program: Program, structure: Structure) -> bool:
    """Whether the program is the structure's own but for the number of inputs."""
    original = structure.program
    if [str(op.func) for op in program.ops] != [str(op.func) for op in original.ops]:
        return False
    return all(
        program.values[n.value].shape[n.dim] == n.units.size
        for group in structure.groups
        for n in group.narrowings
    )
