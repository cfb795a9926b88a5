"""What `prune` would do: numbers of units, exact sizes, and whether the goal can be met at all."""

from __future__ import annotations

import html
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from subprune.budget.latency import by_latency
from subprune.errors import BudgetError
from subprune.measure.tables import WIDTH, text_table
from subprune.report.terminal import not_pruned, remarks_text

if TYPE_CHECKING:
    from subprune.budget.demand import Demand

__all__ = ["Forecast", "ForecastGroup", "make_forecast"]


@dataclass(frozen=True)
class ForecastGroup:
    """One group: how many of its units would stay."""

    name: str
    kind: str
    units: int
    keep: int


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """What `subprune.forecast` returns: what `prune` would do; nothing was pruned."""

    method: str
    rule: str
    groups: tuple[ForecastGroup, ...]
    # before and after; exact, or at most, where units of a group differ in size
    parameters: tuple[int, int]
    flops: tuple[int, int]  # for one input: of a call on the first batch, over its inputs; likewise
    # why the goal cannot be met; `groups` then shows the smallest possible model
    problem: str = ""
    needed: str = ""  # what had to be computed to divide the goal; empty if nothing
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def feasible(self) -> bool:
        """Whether the goal can be met."""
        return not self.problem

    @property
    def counts(self) -> dict[str, int]:
        """Units to keep by group, ready for ``prune(..., budgets=)``."""
        return {g.name: g.keep for g in self.groups}

    def summary(self) -> str:
        """One line."""
        (p, q), (f, h) = self.parameters, self.flops
        words = "would leave" if self.feasible else "cannot meet the goal; the smallest model has"
        return (
            f"{self.method}, {self.rule} budgets, {words} {q:,} of {p:,} parameters "
            f"({p / max(1, q):.2f}×), {f / max(1, h):.2f}× fewer FLOPs per input ({h:,} of {f:,})"
        )

    def table(self, width: int = WIDTH) -> str:
        """Group by group."""
        header = ("group", "kind", "units", "keep", "remove")
        rows = [
            (g.name, g.kind, f"{g.units:,}", f"{g.keep:,}", f"{g.units - g.keep:,}")
            for g in self.groups
        ]
        return text_table(header, rows, right=header[2:], title=self.summary(), width=width)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return {**asdict(self), "feasible": self.feasible}

    def __str__(self) -> str:
        lines = [self.problem] if self.problem else []
        lines += not_pruned(self.refused)
        return f"{self.table()}\n\n{remarks_text(lines)}\n" if lines else f"{self.table()}\n"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from subprune.report.markup import html_table

        rows = [
            [html.escape(g.name), g.kind, str(g.units), str(g.keep), str(g.units - g.keep)]
            for g in self.groups
        ]
        table = html_table(("group", "kind", "units", "keep", "remove"), rows, numbers=(2, 3, 4))
        lines = [self.problem] if self.problem else []
        lines += not_pruned(self.refused)
        remarks = "<br>".join(map(html.escape, lines))
        return f"<p>{html.escape(self.summary())}</p>{table}<p>{remarks}</p>"


def make_forecast(demand: Demand) -> Forecast:
    """Divide the goal without pruning; statistics are gathered only where they are needed."""
    problem, needed = "", demand.allocator.looks_at if demand.looks else ""
    try:
        if demand.goal.latency is None:
            counts = demand.counts()
        else:
            timed = "timed calls of models cut to other widths"
            needed = " and ".join([timed, *([needed] if needed else [])])
            counts = by_latency(demand)
    except BudgetError as error:
        if not demand.goal.limits_size:
            raise
        problem, counts = error.message, demand.smallest()
        needed = "" if demand.goal.latency is None else needed
    return _forecast(demand, counts, problem, needed)


def _forecast(demand: Demand, counts: dict[str, int], problem: str, needed: str) -> Forecast:
    cost, inputs = demand.cost, demand.calibration.batches[0].size
    if demand.goal.budgets is not None:
        rule = "given"
    elif demand.goal.keep is not None:
        rule = "equal fraction" if isinstance(demand.goal.keep, int | float) else "given fraction"
    else:
        rule = demand.allocator.name
    return Forecast(
        method=demand.recipe.name,
        rule=rule,
        groups=tuple(
            ForecastGroup(g.name, g.kind, g.n_units, counts[g.name])
            for g in demand.groups
            if g.name in counts
        ),
        parameters=(cost.params({}), cost.at_most("params", counts)),
        flops=(cost.flops({}) // inputs, cost.at_most("flops", counts) // inputs),
        problem=problem,
        needed=needed,
        refused=demand.calibration.structure.left_whole(counts),
    )
