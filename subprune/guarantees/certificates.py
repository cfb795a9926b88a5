"""What is proven about the selection in every group, next to what was measured; as an object that
prints.

The mathematics is in :mod:`subprune.guarantees.bounds`; this module gathers the statistics, puts
the numbers of a group together and says in words which assumptions hold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.utils._pytree import tree_map

from subprune.budget.explicit import explicit, fraction
from subprune.budget.goal import Rounding
from subprune.cutting.surgery import duplicate
from subprune.data.batch import Batch, fingerprint
from subprune.data.batches import batches
from subprune.errors import closest
from subprune.guarantees import bounds
from subprune.keywords import takes
from subprune.loop.looks import looks
from subprune.loop.walk import walk
from subprune.measure.tables import text_table
from subprune.options.options import GuaranteeOptions
from subprune.program.accept import check_model
from subprune.program.borrow import given_back
from subprune.progress import progress_bar
from subprune.select.greedy import greedy
from subprune.select.selector import Setting
from subprune.statistics.calibration import Calibration
from subprune.structure.choose import choose_groups
from subprune.structure.groups import in_order

if TYPE_CHECKING:
    from subprune.loop.recipe import Recipe
    from subprune.loop.visits import Visit
    from subprune.select.keep_order import KeepOrder
    from subprune.statistics.statistics import Statistics
    from subprune.structure.groups import Group

__all__ = ["BudgetGuarantee", "GroupGuarantee", "Guarantees", "group_guarantee", "guarantees"]


@dataclass(frozen=True, kw_only=True)
class BudgetGuarantee:
    """What is proven for greedy's k units, and what it reached."""

    k: int
    gamma: float  # γ_{Ŝ,k} is not below this
    share: float  # greedy explains at least this share of what the best k units would
    error: float  # measured: share of ‖Y‖² that is left
    bound: float  # the error is not above this: the paper's floor + (start − floor)·e^{−γk/n}
    tight: float  # the same with the sharper product in the place of the exponential


@dataclass(frozen=True, kw_only=True)
class GroupGuarantee:
    """One group; several consumers are taken together."""

    name: str
    units: int
    zero_units: int  # units that are zero on all data
    columns: int
    rank: int
    # the paper's table: 1, or rank / (2 · columns): above this share, k is ruled out
    possible: float
    k_possible: int  # the same as a number of units
    # up to here any 2k units (that are not zero) are proven independent: the bound is not 0
    k_certified: int
    gamma_global: float  # λ_min(G) / λ_max(G), the paper's simple bound on every γ
    gamma: float  # γ_{U,n} is not below this, for every U
    gamma_seen: float  # γ_{Ŝ,n} is not above this, for greedy's full order
    alpha: float  # α_k is not below this, for every k
    curvature: float  # c_k is not above this, for every k
    floor: float  # error that stays with all units: 0 but in the asymmetric form
    budgets: tuple[BudgetGuarantee, ...]
    assumptions: tuple[str, ...]


def group_guarantee(
    name: str,
    stats: Sequence[Statistics],
    n_units: int,
    counts: Sequence[int],
    keep_order: KeepOrder | None = None,
) -> GroupGuarantee:
    """All numbers of one group from its statistics alone; counts: the budgets k to look at."""
    order = greedy(stats, n_units) if keep_order is None else keep_order
    bases = [bounds.spans(s) for s in stats]
    ranks = [bounds.rank(s) for s in stats]
    columns = [int((s.units >= 0).sum()) for s in stats]
    independent = all(r == c for r, c in zip(ranks, columns, strict=True))
    possible = _possible(stats, ranks, columns, n_units)
    alpha = bounds.alpha_bound(bases)
    guarantee = GroupGuarantee(
        name=name,
        units=n_units,
        zero_units=n_units - len({u for s in bases for u in s.live}),
        columns=sum(columns),
        rank=sum(ranks),
        possible=possible / n_units,
        k_possible=math.floor(possible + 1e-9),
        k_certified=_certified(bases, n_units),
        gamma_global=min(map(bounds.global_eigenvalue_bound, stats), default=1.0)
        if independent
        else 0.0,
        gamma=max(alpha, bounds.gamma_bound(bases, (), n_units)),
        gamma_seen=bounds.gamma_seen(stats, n_units, order.order),
        alpha=alpha,
        curvature=bounds.curvature_bound(bases),
        floor=float(order.errors[-1]),
        budgets=(),
        assumptions=(),
    )
    budgets = tuple(_budget(guarantee, bases, order, k) for k in counts)
    words = tuple(
        _words(
            guarantee,
            [s.cross.shape[1] for s in stats],
            max((len(s.units) for s in bases), default=0),
        )
    )
    return GroupGuarantee(**{**vars(guarantee), "budgets": budgets, "assumptions": words})


def _possible(
    stats: Sequence[Statistics], ranks: list[int], columns: list[int], n_units: int
) -> float:
    """k above which some 2k units must be dependent: more columns than the rank."""
    limit = float(n_units)
    for s, r, c in zip(stats, ranks, columns, strict=True):
        present = len(s.units[s.units >= 0].unique())
        if r < c:
            limit = min(limit, r * present / (2 * c))
    return limit


def _certified(bases: Sequence[bounds.Spans], n_units: int) -> int:
    """Largest k for which any min(2k, n) units are proven independent, zero units left aside."""
    sure = bounds.certified_units(bases)
    return n_units if sure >= max((len(s.live) for s in bases), default=0) else sure // 2


def _budget(
    group: GroupGuarantee, bases: Sequence[bounds.Spans], order: KeepOrder, k: int
) -> BudgetGuarantee:
    start, error, n = float(order.errors[0]), float(order.errors[k]), group.units
    gamma = max(
        bounds.gamma_bound(bases, order.order[:k], k), bounds.alpha_bound(bases, max(1, 2 * k - 1))
    )
    reached = (start - error) / (start - group.floor) if start > group.floor else 1.0
    share = max(1 - math.exp(-gamma), 1 - group.curvature, reached)
    live = n - group.zero_units
    paper = bounds.error_bound(start, group.floor, group.gamma, k, n)
    tight = bounds.error_bound(start, group.floor, group.gamma, k, live, tight=True)
    return BudgetGuarantee(
        k=k, gamma=gamma, share=share, error=error, bound=paper, tight=min(paper, tight)
    )


def _words(g: GroupGuarantee, outputs: Sequence[int], independent: int) -> list[str]:
    """The assumptions, and whether they hold."""
    full = g.rank == g.columns
    words = [f"all columns independent: {'yes' if full else 'no'}, rank {g.rank} of {g.columns}"]
    if g.zero_units:
        words.append(
            f"no unit is zero: no, {g.zero_units} of {g.units} are; the paper's bounds are 0 with "
            "them, ours leave them out, since they gain nothing"
        )
    if g.k_certified >= g.units:
        words.append("any 2k units independent: yes, for every k: the lower bound on γ is not 0")
    else:
        ruled_out = (
            f"; ruled out by the rank above k = {g.k_possible}"
            if g.k_possible > g.k_certified
            else ""
        )
        words.append(f"any 2k units independent: proven up to k = {g.k_certified}{ruled_out}")
    if g.gamma > 0:
        words.append(
            f"exponential error bound: holds with γ ≥ {g.gamma:.3g}; γ is at "
            f"most {g.gamma_seen:.3g} here"
        )
    else:
        words.append(
            "exponential error bound: says nothing, as all units together are dependent up to "
            f"rounding; γ is at most {g.gamma_seen:.3g} here"
        )
    if g.alpha > 0:
        words.append(f"as many outputs as independent directions: yes, α ≥ {g.alpha:.3g}")
    elif min(outputs, default=0) < independent:
        words.append(
            f"as many outputs as independent directions: no, {min(outputs)} for "
            f"{independent}: no bound on α"
        )
    else:
        words.append("outputs tell all directions apart: no: no bound on α")
    return words


@dataclass(frozen=True, kw_only=True)
class Guarantees:
    """One entry per group; prints as a table."""

    target: str  # what layers should give: "layer", "sequential" or "asymmetric"
    patches: str
    samples: int
    groups: tuple[GroupGuarantee, ...]
    seed: int = 0  # of the random patches
    data: str = ""  # fingerprint of the inputs
    ridge: float | None = 0.0  # of the fits on the way
    selection: str = ""  # the target, and where it looks at pruned layers the fit, with their knobs

    def __getitem__(self, name: str) -> GroupGuarantee:
        for group in self.groups:
            if group.name == name:
                return group
        names = [g.name for g in self.groups]
        raise KeyError(f"{closest(name, names)}groups are {', '.join(names)}")

    def table(self) -> str:
        """Group by group."""
        title = (
            f"guarantees of the {self.target} target, {self.patches} patches, {self.samples} inputs"
        )
        figures = ("rank", "k/n possible", "k proven", "γ ≥", "γ ≤", "α ≥", "curvature ≤")
        header = ("group", "units", *figures)
        rows = []
        for g in self.groups:
            ratios = (f"{x:.2g}" for x in (g.gamma, g.gamma_seen, g.alpha, g.curvature))
            rank, possible = f"{g.rank}/{g.columns}", f"{g.possible:.2f}"
            rows.append((g.name, f"{g.units:,}", rank, possible, str(g.k_certified), *ratios))
        return text_table(header, rows, right=header[1:], title=title)

    def errors(self) -> str:
        """Bounds next to what greedy reached, for the budgets asked for."""
        header = ("group", "k", "error", "bound", "sharper", "γ_k ≥", "share of the best ≥")
        rows = [
            (
                g.name,
                str(b.k),
                f"{b.error:.4f}",
                f"{b.bound:.4f}",
                f"{b.tight:.4f}",
                f"{b.gamma:.2g}",
                f"{b.share:.4f}",
            )
            for g in self.groups
            for b in g.budgets
        ]
        title = "error left, and what is proven about it"
        return text_table(header, rows, right=header[1:], title=title)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        words = [f"{g.name}:\n" + "\n".join(f"  {x}" for x in g.assumptions) for g in self.groups]
        return "\n".join([self.table(), "", self.errors(), "", *words]) + "\n"

    __repr__ = __str__


@takes(GuaranteeOptions)
@given_back
def guarantees(model: nn.Module, data: Any, options: GuaranteeOptions) -> Guarantees:
    """What is proven about greedy's selection in every group that `prune` would touch.

    The options that `prune` has too mean what they mean there. Errors and bounds are given for the
    shares of units `keep`, or for ``budgets={"conv1": 3}``, which may name residual streams too.
    ``target="layer"`` looks at the dense model; "sequential" and "asymmetric" prune group after
    group on the way, and so need one share, or budgets; `fit`, `ridge` and `folds` say how the
    groups before are fitted, and the bounds themselves are about plain fits. ``patches="random"`` sees
    each image at as many random patches as the kernel has positions, with the same `seed` at the
    same ones as `prune`.

    Args:
        model: as for `prune`.
        data: as for `prune`.

    Returns:
        `Guarantees`, group by group.
    """
    check_model(model)
    with progress_bar({"setup": 1, "bounds": 1}, options.progress) as tick:
        tick("bounds: recording the model")
        taken = batches(data, model, options.n_samples, forward=options.forward, seed=options.seed)
        samples, digest = sum(b.size for b in taken), fingerprint(taken)
        exact = model
        if options.double:
            exact, taken = duplicate(model).double(), [_double(b) for b in taken]
        calibration = Calibration.of(exact, taken, options.recipe.fit.parts)
        # only= may hold modules
        groups = in_order(
            choose_groups(
                calibration.structure, model, options.only, options.ignore, options.budgets
            )
        )
        wanted = _counts(groups, options.shares, options.budgets)
        chosen = tuple(g for g in groups if g.name in wanted)
        setting = Setting(calibration, chosen, options.seed)
        tick.plan(bounds=len(chosen))
        tick.enter("bounds")
        proven = _look(setting, options.recipe, wanted, tick)
    return Guarantees(
        target=options.target,
        patches=options.patches,
        samples=samples,
        groups=proven,
        seed=options.seed,
        data=digest,
        ridge=options.ridge,
        selection=options.recipe.selection,
    )


def _look(
    setting: Setting,
    recipe: Recipe,
    wanted: Mapping[str, tuple[int, ...]],
    tick: Callable[[str], None],
) -> tuple[GroupGuarantee, ...]:
    """Every group as the selection comes by; `wanted` are the numbers of units to look at."""
    proven: list[GroupGuarantee] = []

    def look(visit: Visit) -> None:
        group, curve = visit.group, visit.ranking.curve
        counts, statistics = wanted[group.name], visit.gathered.statistics
        proven.append(group_guarantee(group.name, statistics, group.n_units, counts, curve))

    def step(group: Group) -> None:
        tick(f"bounds of {group.name}")

    if recipe.target.sees_pruned:
        walk(setting, recipe, {n: k[0] for n, k in wanted.items()}, see=look, tick=step)
    else:
        for visit in looks(setting, recipe, tick=step):
            look(visit)
            del visit
    return tuple(proven)


def _counts(
    groups: Sequence[Group], shares: Sequence[float], budgets: Mapping[str, int] | None
) -> dict[str, tuple[int, ...]]:
    """The numbers of units to look at, by group."""
    if budgets is not None:
        return {name: (k,) for name, k in explicit(groups, budgets).items()}
    each = [fraction(groups, share, Rounding(1)) for share in shares]
    return {g.name: tuple(sorted({counts[g.name] for counts in each})) for g in groups}


def _double(batch: Batch) -> Batch:
    def cast(x: Any) -> Any:
        return x.double() if isinstance(x, Tensor) and x.is_floating_point() else x

    return Batch(tree_map(cast, batch.inputs), batch.labels, batch.size)
