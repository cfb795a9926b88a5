"""Everything that is known before a goal is divided: inputs, structure, and which cuts can be made.

Calls about the same model and inputs share it: `Calibrated` goes where data goes, and keeps what
does not depend on the goal.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from subprune.budget.cache import fingerprint
from subprune.budget.demand import Demand
from subprune.budget.goal import Rounding
from subprune.budget.ties import Ties
from subprune.budget.tying import left_whole, tie
from subprune.cutting.check import Check, check_groups
from subprune.cutting.roles import Roles
from subprune.cutting.twin import model_outputs
from subprune.data.batches import Taken, batches, take
from subprune.errors import BudgetError, DataError, StructureError
from subprune.loop.walk import walk
from subprune.messages import Message, joined
from subprune.options.checks import check_divisible
from subprune.program.record import not_taken
from subprune.report.versions import library_versions
from subprune.select.selector import Setting
from subprune.statistics.calibration import Calibration
from subprune.statistics.metric import measure_metric
from subprune.structure.choose import choose_groups, some
from subprune.structure.cost import CostModel
from subprune.structure.groups import in_order

if TYPE_CHECKING:
    from subprune.data.batch import Batch
    from subprune.loop.recipe import Recipe
    from subprune.measure.stopwatch import Stopwatch
    from subprune.options.options import Options
    from subprune.program.ranks import Ranks
    from subprune.progress import Progress
    from subprune.structure.groups import Consumer

__all__ = ["Calibrated", "Ready", "Same", "make_ready"]

Made = TypeVar("Made")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Calibrated(Taken):
    """The inputs of a model, read, and what was made of them for all goals; goes where data goes."""

    model: nn.Module
    n_samples: int | str | None
    forward: Callable[[Any], Any] | None
    seed: int
    state: tuple[str, str] = ("", "")  # hashes of model and inputs, where calls are to share them
    _made: list[tuple[Any, Any]] = field(default_factory=list)

    @classmethod
    def of(cls, model: nn.Module, data: Any, options: Options) -> Calibrated:
        """Draw and check the inputs."""
        count, seed, forward = options.n_samples, options.seed, options.forward
        taken = take(data, model, count, forward=forward, seed=seed)
        return cls(
            batches=taken.batches,
            remarks=taken.remarks,
            model=model,
            n_samples=count,
            forward=forward,
            seed=seed,
        )

    def once(self, key: Any, make: Callable[[], Made]) -> Made:
        """What was made under this key, which is compared, not hashed; made at the first call."""
        for known, made in self._made:
            if known == key:
                return cast("Made", made)
        new = make()
        self._made.append((key, new))
        return new

    def __repr__(self) -> str:
        count = sum(b.size for b in self.batches)
        return f"{count:,} inputs, calibrated for {type(self.model).__name__}"


class Same:
    """A key that equals that of the same object alone: data cannot be compared."""

    def __init__(self, x: Any) -> None:
        self.x = x

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.x is other.x

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True)
class Ready:
    """Everything that is known before the goal is divided among the groups."""

    demand: Demand
    notes: Sequence[str]  # about cuts that were tried
    remarks: Sequence[str]  # about the data


@dataclass(frozen=True)
class _Tried:
    """The groups that can be pruned, and the model that was recorded for it."""

    calibration: Calibration
    checked: Check
    roles: Roles


def make_ready(
    held: Calibrated,
    others: Sequence[Any],
    options: Options,
    tick: Progress,
    watch: Stopwatch,
    ranks: Ranks,
) -> Ready:
    """Record the model, find the groups and try to cut them; what was done for an earlier goal is
    not done again.

    others: labelled data, to draw from and to verify with; None where there is none.
    """
    check_divisible(options, ranks.count)
    _check_same(held, options, ranks)
    model = held.model
    tick("recording the model")
    # Every step is done once for all goals that agree in what it depends on: `recorded`, `chosen`
    # and `asked` are keys that say what that is, each part of the next.
    recipe, views = options.recipe, options.augment or ()
    recorded = (recipe.fit.parts, views, ranks.count)
    dense = held.once(
        ("recorded", recorded),
        lambda: Calibration.of(model, held.batches, *recorded[:2], options.seed, ranks),
    )
    tick("trying the cuts")
    chosen = (recorded, _choice(options))
    tried = held.once(("tried", chosen), lambda: _try(dense, options))
    asked = (chosen, _recipe(recipe), _own(options.allocator), *map(Same, others))
    # What selectors and allocators remember holds for these groups and this recipe.
    cache, memory = held.once(("looks", asked), lambda: (dict[str, Any](), dict[Any, Any]()))
    calibration = replace(tried.calibration, ranks=ranks, cache=cache)
    watch.lap("structure")
    if any(x is not None for x in others):
        tick("reading the other data")

    def more(name: str, x: Any) -> Calibration | None:
        try:
            read = held.once(("other data", Same(x)), lambda: _other(x, model, options.forward))
            if read is None:
                return None
            return held.once(("more", recorded, Same(x)), lambda: dense.on(read))
        except DataError as error:
            raise DataError(Message(f"{{{name}:name}}: {{why}}", why=error.message)) from error

    pool, verification = map(more, ("train_data", "verify_data"), others)
    watch.lap("reading data")

    def metric() -> Mapping[int, Tensor]:
        layers = [*calibration.structure.layers, *_readers(tried.checked)]
        return measure_metric(calibration, layers)

    needed = recipe.target.needs_metric or options.allocator.needs_metric
    demand = Demand(
        setting=Setting(
            calibration,
            tried.checked.able,
            options.seed,
            pool,
            held.once(("metric", chosen), metric) if needed else None,
        ),
        recipe=recipe,
        goal=options.goal,
        allocator=options.allocator,
        cost=CostModel(model, calibration.structure),
        rounding=Rounding(options.multiple, tried.checked.multiples),
        ties=Ties(tried.roles.sets, tried.roles.numbers),
        verification=verification,
        cache=None if options.cache is None else Path(options.cache),
        walk=walk,
        tick=lambda group: tick(f"curve of {group.name}"),
        say=tick,
        memory=memory,
    )
    remarks = [*held.remarks, *calibration.remarks, *_unfelt(demand)]
    return Ready(demand, [*tried.checked.notes, *left_whole(tried.roles)], remarks)


def _check_same(held: Calibrated, options: Options, ranks: Ranks) -> None:
    """Refuse ranks that were given something else, before they go different ways."""

    def given() -> str:
        state = [*held.model.named_parameters(), *held.model.named_buffers()]
        inputs = [x for b in held.batches for x in tree_flatten((b.inputs, b.labels))[0]]
        parts = (library_versions(), options.to_dict(), repr(held.model))
        return fingerprint(*parts, *(x for pair in state for x in pair), *inputs)

    ranks.agree(lambda: str(torch.get_num_threads()), "number of threads")
    ranks.agree(given, "model, other data, other options or libraries")


def _choice(options: Options) -> tuple[Any, ...]:
    """What it depends on which groups are pruned, and to which widths they are tried."""
    where = [None if x is None else [*map(_own, x)] for x in (options.only, options.ignore)]
    names = list(_named(options))
    goal = "budgets" if options.keep is None else "keep"
    widths = (options.streams, options.uniform, options.multiple)
    return (where, widths, (goal, names) if names else None)


def _recipe(recipe: Recipe) -> tuple[Any, ...]:
    """The recipe as a part of a key."""
    parts = (recipe.target, recipe.selector, recipe.fit, recipe.drift)
    rest = (recipe.refine, recipe.name, recipe.named)
    return (*map(_own, parts), recipe.selector.version, *rest)


def _own(x: Any) -> Any:
    """As a part of a key: an object of another's class equals itself alone, since nobody knows
    what its class compares.
    """
    known = isinstance(x, str) or type(x).__module__.partition(".")[0] in ("builtins", "subprune")
    return x if known else Same(x)


def _try(recorded: Calibration, options: Options) -> _Tried:
    """Cut every group to a few units."""
    calibration = replace(recorded)  # what is refused is refused for these groups alone
    checked = _groups(calibration, options)
    roles = _roles(calibration, checked, options)
    able = tuple(g for g in checked.able if g.name not in roles.whole)
    return _Tried(calibration, replace(checked, able=able), roles)


def _readers(checked: Check) -> list[Consumer]:
    """The layers that read units of a group."""
    return [c for g in checked.able for c in g.consumers]


def _unfelt(demand: Demand) -> list[str]:
    """Said where errors were to count with what the output feels, and it says nothing."""
    if demand.setting.metric != {}:
        return []
    return ["the model's output has no gradients: errors of all its layers count equally"]


def _other(data: Any, model: nn.Module, forward: Callable[[Any], Any] | None) -> list[Batch] | None:
    """Other data for the same model, all of it."""
    return None if data is None else batches(data, model, None, forward=forward)


def _groups(calibration: Calibration, options: Options) -> Check:
    """The groups to prune, in forward order, each of them tried out; budgets may name residual
    streams too.
    """
    only, ignore, budgets = options.only, options.ignore, options.budgets
    structure = calibration.structure
    goal = "budgets" if options.keep is None else "keep"
    rest = (_named(options), goal, options.streams)
    chosen = choose_groups(structure, calibration.model, only, ignore, *rest)
    if ignore is not None and not chosen:
        every = choose_groups(structure, calibration.model, only, None, *rest)
        if every:
            both = "{ignore=} leaves" if only is None else "{only=} and {ignore=} leave"
            words = "nothing to prune: {ignore:name} fits all of {names}; omit some of it"
            raise BudgetError(Message(f"{both} {words}", names=some([g.name for g in every])))
    tried = in_order([g for g in chosen if budgets is None or g.name in budgets])
    checked = check_groups(
        calibration.model, structure, tried, calibration.batches[0], options.multiple
    )
    if checked.refused and not checked.able:
        _check_run(calibration)
    for option, named in (("only", only), (goal, _named(options))):
        for name, why in checked.refused.items():
            if named is not None and name in list(named):
                words = f"{{{option}=}} names {{name!r}}, which cannot be cut: {{why}}; omit it"
                raise BudgetError(Message(words, name=name, why=why))
    calibration.structure = replace(structure, refused={**structure.refused, **checked.refused})
    able = in_order([g for g in chosen if g.name not in checked.refused])
    if not able:
        scope = Message(" of what {only=} and {ignore=} leave")
        raise BudgetError(
            Message(
                "nothing in the model{scope} can be pruned: {reasons}",
                scope="" if only is None and ignore is None else scope,
                reasons=_reasons(calibration),
            )
        )
    return replace(checked, able=tuple(able))


def _roles(calibration: Calibration, checked: Check, options: Options) -> Roles:
    """Which groups keep the same number of units, and which stay whole for the config's sake."""
    if not options.uniform:
        return Roles()
    structure = calibration.structure
    roles = tie(calibration.model, structure, checked.able, _named(options))
    calibration.structure = replace(structure, refused={**structure.refused, **roles.whole})
    return roles


def _named(options: Options) -> Collection[str]:
    """What the goal refers to by name."""
    return options.keep if isinstance(options.keep, Mapping) else options.budgets or ()


def _check_run(calibration: Calibration) -> None:
    """Some models take fake tensors but not real ones (whole numbers in a linear layer), which is
    not the cut's fault.
    """
    inputs = calibration.given[0].inputs
    try:
        model_outputs(calibration.model, inputs)
    except StructureError as error:
        cause = error.__cause__
        raise DataError(
            not_taken(calibration.model, inputs, "the calibration data", cause or error)
        ) from error


def _reasons(calibration: Calibration) -> str:
    refused = calibration.structure.refused
    others = {g.name: g.obstacle for g in calibration.structure.groups if not g.inner}
    stay = list({**others, **refused}.items())[:5]
    shown = [
        Message("{name}: {why}", name=name or "the model itself", why=why) for name, why in stay
    ]
    return joined(shown) or "it has no layers with parameters that feed another"
