"""Budgets chosen by what pruned models answer.

The errors of layers only say so much about the answers of a model whose later layers make up for
earlier ones. Here candidates are walked: pruned and refitted for real, on a part of the inputs, and
judged by how far their answers are from the dense model's on others. One walk takes about as long
as one pruning of so few inputs, so candidates come from a family of three knobs
(:class:`subprune.budget.mean.Shape`), and each knob is turned in turn, while that helps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from subprune.budget.demand import Allocator, Demand
from subprune.budget.mean import CLIP, Shape, by_balance, usual_shape
from subprune.data.division import folded
from subprune.errors import OptionError
from subprune.keywords import must_be
from subprune.loop.looks import curves
from subprune.measure.answers import answered, read_program

if TYPE_CHECKING:
    from subprune.budget.goal import Counts
    from subprune.data.batch import Batch
    from subprune.statistics.calibration import Calibration

__all__ = ["Search", "divergences"]

# Each knob in turn: what is tried besides the present value.
TURNS: tuple[Callable[[Shape], Sequence[Shape]], ...] = (
    lambda s: [replace(s, tilt=s.tilt + step) for step in (0.3, -0.3)],
    lambda s: [replace(s, absolute=value) for value in (1.0, 0.0)],
    lambda s: [replace(s, mix=value) for value in (0.75, 0.25)],
    lambda s: [replace(s, tilt=s.tilt + step) for step in (0.15, -0.15)],
)


@dataclass(frozen=True)
class Search(Allocator):
    """Of a family of budgets, those whose pruned model answers most like the dense one."""

    name: ClassVar[str] = "search"
    looks_at: ClassVar[str] = "the error curves of the dense model, and answers of pruned ones"
    needs_metric: ClassVar[bool] = True
    measures_answers: ClassVar[bool] = True
    walks: int = 9  # models that are pruned and judged, at most
    inputs: int | None = None  # that they are fitted to, at most half of them; None: half

    def __post_init__(self) -> None:
        for name, value in (("walks", self.walks), ("inputs", self.inputs)):
            given = value is not None or name == "walks"
            if given and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise OptionError(must_be(name, "a positive whole number", value))

    def counts(self, demand: Demand) -> Counts:
        orders = demand.outcome(curves, clip=CLIP, landed=True)

        def at(shape: Shape) -> Counts:
            return by_balance(demand.space, orders, shape)

        trial = _WalkTrial(demand, self.inputs)
        best = usual_shape(demand)  # as the allocator "output" has it
        # By the widths, since other shapes may lead to the same ones.
        known = {tuple(at(best).values()): trial.apart(demand, at(best))}
        least = next(iter(known.values()))
        for shape in self._shapes(lambda: best):  # noqa: B023 - the best so far is meant
            counts = at(shape)
            key = tuple(counts.values())
            if key in known:
                continue
            if len(known) >= self.walks:
                break
            known[key] = trial.apart(demand, counts)
            if _clearly_less(known[key], least):
                best, least = shape, known[key]
        return at(best)

    @staticmethod
    def _shapes(best: Callable[[], Shape]) -> Iterator[Shape]:
        """Each knob turned from the best so far; the other way where one fails."""
        for turn in TURNS:
            here = best()
            for shape in turn(here):
                yield shape
                if best() == shape:
                    break


def _clearly_less(new: Tensor, old: Tensor) -> bool:
    """Whether the mean of new [n] is below that of old, on the same inputs, by more than chance.

    Two standard errors of the mean difference: with several candidates, the best of those that are
    equally good looks better than it is.
    """
    gain = old - new
    if len(gain) < 2:
        return bool(gain.mean() > 0)
    return float(gain.mean()) > 2 * float(gain.std()) / len(gain) ** 0.5


class _WalkTrial:
    """Walks on a part of the inputs, judged on the others."""

    def __init__(self, demand: Demand, inputs: int | None) -> None:
        calibration = demand.calibration
        some, others = _parted(calibration.given or calibration.batches, inputs)
        self.setting = replace(demand.setting, calibration=calibration.on(some))
        self.recipe, self.judged = replace(demand.recipe, refine=0), calibration.on(others)
        self.wanted = self.judged.start().answers(lambda output: output)
        self.number = 0

    def apart(self, demand: Demand, counts: Counts) -> Tensor:
        """By judged input: how far the answers with these budgets are from the dense model's."""
        self.number += 1
        assert demand.walk is not None
        way = demand.walk(self.setting, self.recipe, demand.ties.spread(counts))
        run = self.judged.start()
        run.tensors, run.override = way.tensors, way.override
        apart = divergences(self.judged, self.wanted, run.answers(lambda output: output))
        demand.say(f"budgets {self.number}: {float(apart.mean()):.4f} from the dense answers")
        return apart


def _parted(batches: Sequence[Batch], inputs: int | None) -> tuple[list[Batch], list[Batch]]:
    """This many inputs to fit to, at most half of them; and the others to judge on."""
    total = sum(batch.size for batch in batches)
    parts = 2 if inputs is None else max(2, -(-total // inputs))
    pieces, numbers = folded(batches, parts)
    groups: list[list[Batch]] = [[], []]
    for piece, number in zip(pieces, numbers, strict=True):
        groups[min(number, 1)].append(piece)
    return groups[0], groups[1]


def divergences(judged: Calibration, wanted: Sequence[Tensor], given: Sequence[Tensor]) -> Tensor:
    """By input, [n] float64: KL divergence from the class scores wanted, the mean of its answers;
    of numbers, their squared error relative to the mean square over all inputs.
    """
    apart, sizes = [], []
    for program, batch, a, b in zip(judged.programs, judged.batches, wanted, given, strict=True):
        reading = read_program(program, batch)
        where = answered(a.shape, batch, reading, program)
        if reading.dim is None:
            wrong, size = (a - b).double().square(), a.double().square()
        else:
            first, second = (x.double().log_softmax(reading.dim) for x in (a, b))
            wrong, size = first.exp() * (first - second), first.exp()  # each answer's sum is 1
        if where is not None:
            wrong, size = torch.where(where, wrong, 0), torch.where(where, size, 0)
        apart.append(wrong.reshape(len(wrong), -1).sum(1))
        sizes.append(size.reshape(len(size), -1).sum(1))
    return torch.cat(apart) / torch.cat(sizes).mean().clamp_min(1e-300)
