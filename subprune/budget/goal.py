"""What is asked for, and what the pruned model may cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from subprune.errors import BudgetError
from subprune.messages import Message

if TYPE_CHECKING:
    from subprune.structure.cost import CostModel
    from subprune.structure.groups import Group

__all__ = ["Goal", "Limit", "Part", "Rounding", "Shares", "amount"]

Counts = dict[str, int]
Part = Literal["model", "blocks"]
"""What a goal refers to: all of the model, or what lies between its tables and its last layer."""
# the fraction of units to keep: one for all groups, or by kind, name or wildcard
Shares = float | Mapping[str, str | float]


def amount(name: str, value: object, full: float) -> float:
    """What is asked for: ``"50%"`` of the full model's, or a number that stands for itself."""
    share = (
        value.strip().removesuffix("%")
        if isinstance(value, str) and value.strip().endswith("%")
        else None
    )
    try:
        number = float(share if share is not None else value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = math.nan
    if (
        isinstance(value, bool)
        or (isinstance(value, str) and share is None)
        or not 0 < number < math.inf
    ):
        allowed = 'a positive number or a share such as "50%"'
        raise _wrong_amount(name, allowed, value)
    if share is None and number < 1 and name in ("params", "flops"):
        raise _wrong_amount(name, f'a whole number, or a share such as "{100 * number:g}%"', value)
    if share is None:
        return number
    if number > 100:
        raise _wrong_amount(name, 'a share of at most "100%" of the model\'s', value)
    return number / 100 * full


def _wrong_amount(name: str, allowed: str, value: object) -> BudgetError:
    words = f"{{{name}:name}} must be {{allowed}}, got {{got!r}}"
    return BudgetError(Message(words, allowed=allowed, got=value))


@dataclass(frozen=True)
class Limit:
    """A limit on the parameters or FLOPs of the whole model, or of its blocks; and others besides,
    where several are to be met at once.
    """

    quantity: str  # "params" or "flops"
    most: int  # FLOPs are those of one call on the first batch
    asked: str  # how the caller put it: a message
    _: KW_ONLY
    inputs: int = 1  # in that call
    of: Part = "model"
    # numbers of units of the groups that were asked about → those of all groups
    spread: Callable[[Mapping[str, int]], Mapping[str, int]] = dict
    others: tuple[Limit, ...] = ()

    @property
    def each(self) -> tuple[Limit, ...]:
        """All limits, one by one."""
        return (replace(self, others=()), *self.others)

    def spreading(self, spread: Callable[[Mapping[str, int]], Mapping[str, int]]) -> Limit:
        """The same limits for numbers of units that stand for more groups."""
        others = tuple(limit.spreading(spread) for limit in self.others)
        return replace(self, spread=spread, others=others)

    def size(self, cost: CostModel, counts: Mapping[str, int]) -> int:
        """What the limit is about, for these numbers of units;
        where units differ in size, an upper bound.
        """
        return cost.at_most(self.quantity, self.spread(counts), self.of)

    def fits(self, cost: CostModel, counts: Mapping[str, int]) -> bool:
        """Whether all limits are met."""
        if self.size(cost, counts) > self.most:
            return False
        return all(limit.fits(cost, counts) for limit in self.others)

    def check(
        self,
        cost: CostModel,
        smallest: Mapping[str, int],
        round_to: int = 1,
        whole: Callable[[], str] = str,
    ) -> None:
        """Refuse a goal that even the smallest number of units per group does not meet, and name
        the nearest that can be.

        round_to: what these numbers are multiples of. whole: says what is not cut, and why.
        """
        for limit in self.others:
            limit.check(cost, smallest, round_to, whole)
        least, full = self.size(cost, smallest), self.size(cost, {})
        if least > self.most:
            quantity = "parameters" if self.quantity == "params" else "FLOPs"
            words = quantity if self.quantity == "params" else "FLOPs per input"
            if self.of == "blocks":
                words = f"{words} in the blocks"
            raise BudgetError(
                Message(
                    "{asked} cannot be reached: it allows {limit:,} {words}, and with the smallest "
                    "width of every group{rounded} {least:,} are left; the nearest feasible ratio is "
                    "{ratio:.2f}, or {share:.1%} of the {quantity}{hint}{whole}",
                    asked=self.asked,
                    limit=self.most // self.inputs,
                    words=words,
                    rounded=Message(" that {round_to=} allows", round_to=round_to)
                    if round_to > 1
                    else "",
                    least=least // self.inputs,
                    # rounded to the side on which they can be met
                    ratio=(100 * full // least) / 100,
                    share=-(-1000 * least // full) / 1000,
                    quantity=quantity,
                    hint=self._hint(),
                    whole=whole(),
                )
            )

    def _hint(self) -> str | Message:
        """What else may have been meant: 50% by a small number."""
        value = self.asked.parts.get(self.quantity) if isinstance(self.asked, Message) else None
        if not isinstance(value, int | float) or value > 100:
            return ""
        return Message(
            f"; for a share, give {{{self.quantity}=}}", **{self.quantity: f"{value:g}%"}
        )


@dataclass(frozen=True, kw_only=True)
class Goal:
    """What the caller asks for; `subprune.prune` says what each means.

    Limits on the whole model may be given together, and all are met; `keep` and `budgets`, which
    say what becomes of every group, stand alone.
    """

    compression: float | None = None
    speedup: float | None = None
    params: str | float | None = None
    flops: str | float | None = None
    latency: str | float | None = None
    keep: Shares | None = None
    budgets: Mapping[str, int] | None = None
    of: Part = "model"  # what the first four are measured on
    share: float | None = None  # of all FLOPs, at most: how a search for a latency asks for less

    @property
    def limits_size(self) -> bool:
        """Whether the size of the whole model is asked for, not that of every group."""
        return self.budgets is None and self.keep is None

    @property
    def measured(self) -> bool:
        """Whether parameters or FLOPs are asked for."""
        asked = (self.compression, self.speedup, self.params, self.flops)
        return any(amount is not None for amount in asked)

    def limit(self, cost: CostModel, inputs: int) -> Limit:
        """The same as a limit; inputs: how many the call has whose FLOPs are counted."""
        limits = [*self._on_params(cost), *self._on_flops(cost, inputs)]
        first, *others = limits or [_on_flops_of_all(cost, inputs, 1.0)]
        return replace(first, others=tuple(others))

    def _on_params(self, cost: CostModel) -> Iterator[Limit]:
        full = cost.params({}, self.of)
        if self.compression is not None:
            asked = Message("{compression=}", compression=self.compression)
            yield Limit("params", int(full / self.compression), asked, of=self.of)
        if self.params is not None:
            most = int(amount("params", self.params, full))
            yield Limit("params", most, Message("{params=}", params=self.params), of=self.of)

    def _on_flops(self, cost: CostModel, inputs: int) -> Iterator[Limit]:
        full = cost.flops({}, self.of)
        if self.speedup is not None:
            asked = Message("{speedup=}", speedup=self.speedup)
            yield Limit("flops", int(full / self.speedup), asked, inputs=inputs, of=self.of)
        if self.flops is not None:
            most = int(amount("flops", self.flops, full / inputs) * inputs)
            yield Limit(
                "flops", most, Message("{flops=}", flops=self.flops), inputs=inputs, of=self.of
            )
        if self.share is not None:
            yield _on_flops_of_all(cost, inputs, self.share)


def _on_flops_of_all(cost: CostModel, inputs: int, share: float) -> Limit:
    """A share of the whole model's FLOPs, whatever the goal is measured on."""
    # the precision of a percentage: a share that comes from halving has many more digits
    most = int(round(share, 8) * (cost.flops({}) / inputs) * inputs)
    return Limit("flops", most, f"{share:.1%} of the FLOPs", inputs=inputs)


@dataclass(frozen=True)
class Rounding:
    """The only rounding: numbers of units are multiples of `to`, at least one, at most all.

    Some groups can be cut to multiples of another number only: `own`, by name. Of others just
    certain numbers are possible: `allowed`, by name. `of` is the rounding of one group.
    """

    to: int = 1
    own: Mapping[str, int] = field(default_factory=dict)
    floor: int = 1  # a group some of whose layers hold just a part of its units needs one of each
    allowed: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    numbers: tuple[int, ...] = ()  # those allowed for this group, ascending; none: any multiple

    def of(self, group: Group) -> Rounding:
        """What holds for this group."""
        # multiples of what is asked for, and of what the model's code takes
        step = math.lcm(self.to, self.own.get(group.name, 1))
        possible = self.allowed.get(group.name, ())
        fitting = tuple(k for k in possible if k % step == 0 and k >= group.least)
        # where none fits, the group stays whole
        numbers = fitting or ((group.n_units,) if possible else ())
        return Rounding(step, floor=group.least, numbers=numbers)

    def down(self, k: float, n: int) -> int:
        """The largest allowed number not above k."""
        if k >= n:
            return n
        if self.numbers:
            return max((x for x in self.numbers if x <= k + 1e-9), default=self.least(n))
        return min(n, max(self.least(n), int(k + 1e-9) // self.to * self.to))

    def up(self, k: int, n: int) -> int:
        """The smallest allowed number not below k."""
        if self.numbers:
            return min((x for x in self.numbers if x >= k), default=n)
        return min(n, max(self.least(n), -(-k // self.to) * self.to))

    def next(self, k: int, n: int) -> int:
        """The next allowed number above k; n if there is none."""
        if self.numbers:
            return self.up(k + 1, n)
        return min(n, (k // self.to + 1) * self.to)

    def least(self, n: int) -> int:
        """The smallest allowed number."""
        if self.numbers:
            return min(n, self.numbers[0])
        return min(n, -(-self.floor // self.to) * self.to)
