"""What a selector is: an object that ranks the units of one group,
and says what it needs for it.
"""

from __future__ import annotations

import hashlib
import marshal
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from subprune.errors import DataError, OptionError
from subprune.messages import Message
from subprune.select.keep_order import KeepOrder
from subprune.statistics.consumers import consumer_weight

if TYPE_CHECKING:
    from subprune.statistics.calibration import Calibration
    from subprune.statistics.place import Place
    from subprune.statistics.runs import Run
    from subprune.statistics.statistics import Statistics
    from subprune.structure.groups import Group

__all__ = ["Function", "Ranking", "Selector", "Setting", "View", "all_labels", "order_by"]


@dataclass(frozen=True)
class Ranking:
    """The units of a group, best first, and what else the selector knows about them."""

    order: tuple[int, ...]
    # [n_units], comparable between groups: needed where all units are ranked together
    scores: Tensor | None = None
    # ``scale(k)`` [n_units]: factors of the units' outgoing weights when k units stay and no weight
    # is fitted
    scale: Callable[[int], Tensor] | None = None
    curve: KeepOrder | None = None  # the same order with its error curve, if there is one

    def to_plain(self, group: str) -> tuple[Any, ...]:
        """What other ranks of a job need to have the same; group: whose units these are."""
        if self.scale is not None:
            raise OptionError(
                f"the method's ranking of group {group!r} has a function that scales weights, which "
                "the ranks of a job cannot share; register the method with runs=True, or use one "
                "process"
            )
        curve = None if self.curve is None else vars(self.curve)
        return self.order, self.scores, curve

    @classmethod
    def of_plain(
        cls, order: tuple[int, ...], scores: Tensor | None, curve: dict[str, Any] | None
    ) -> Ranking:
        """What `to_plain` gave."""
        return cls(order, scores, curve=None if curve is None else KeepOrder(**curve))


@dataclass(frozen=True)
class Setting:
    """What the rankings of all groups of one call share."""

    calibration: Calibration
    groups: tuple[Group, ...]
    seed: int = 0
    pool: Calibration | None = None  # a larger labelled set, for selectors that draw from it
    # By value: what errors of each of its channels count with, where that was measured.
    metric: Mapping[int, Tensor] | None = None


@dataclass(frozen=True, kw_only=True)
class View:
    """Everything a selector may look at when it ranks the units of one group."""

    group: Group
    setting: Setting
    generator: torch.Generator  # random numbers of this group's own
    statistics: tuple[Statistics, ...] = ()  # G, C, t of every consumer, as the target has them
    k: int | None = None  # units that will be kept, None if not yet known
    place: Place | None = None  # where the runs stand; None for selectors that need no runs

    @property
    def n_units(self) -> int:
        return self.group.n_units

    @property
    def current(self) -> Run:
        """The model pruned so far, just before the first layer that reads the units."""
        return self._place.current

    @property
    def dense(self) -> Run:
        """The dense model, at the same place."""
        return self._place.dense

    @property
    def start(self) -> Run:
        """The model pruned so far, before anything sees how many units there are."""
        return self._place.start or self._place.current

    @property
    def _place(self) -> Place:
        if self.place is None:
            raise OptionError(
                "this method was registered with runs=False, so it sees statistics only; register "
                "it with runs=True to look at the model's activations and weights"
            )
        return self.place

    @property
    def labels(self) -> list[Tensor]:
        """Labels, batch by batch."""
        return all_labels(self.setting.calibration)

    def weights(self) -> list[Tensor]:
        """Weights of the consumers as [outputs, inputs, kernel positions]."""
        weights = [consumer_weight(c, self.current.tensors) for c in self.group.consumers]
        return [w.reshape(w.shape[0], w.shape[1], -1) for w in weights]

    def blocks(self) -> Iterator[tuple[Statistics, Tensor]]:
        """The statistics of every block of every layer that is refitted, with its present weights
        [d, m].
        """
        weights = [
            block.flatten(1).T
            for consumer in self.group.reweightable
            for block in consumer_weight(consumer, self.current.tensors).chunk(consumer.groups)
        ]
        return zip(self.statistics, weights, strict=True)


def all_labels(calibration: Calibration, who: str = "this method") -> list[Tensor]:
    """The labels of all batches; refused if some are missing."""
    labels = [b.labels for b in calibration.batches if b.labels is not None]
    if len(labels) < len(calibration.batches):
        raise DataError(
            f"{who} needs labels: give (inputs, labels) batches, or dicts or files with 'labels'"
        )
    return labels


@dataclass(frozen=True)
class Selector(ABC):
    """Ranks the units of one group, best first. The fields after it say what it needs."""

    role: ClassVar[str] = "selector"
    name: ClassVar[str]
    needs_labels: ClassVar[bool] = False  # of the calibration inputs
    needs_pool: ClassVar[bool] = False  # a labelled set to draw from
    needs_runs: ClassVar[bool] = False  # looks at activations or weights, not at statistics alone
    needs_statistics: ClassVar[bool] = True
    # Where it needs runs: whether it ranks the same if each rank of a job runs some of the inputs
    # only, because it looks at weights alone, or makes its sums over all ranks.
    runs_divide: ClassVar[bool] = False

    @property
    def nested(self) -> bool:
        """Whether the ranking for a smaller budget is a prefix of that for a larger one."""
        return True

    @property
    def divisible(self) -> bool:
        """Whether it ranks the same where each rank of a job runs some of the inputs only."""
        return self.runs_divide or not self.needs_runs

    @property
    def bounded(self) -> bool:
        """Whether the paper's bounds apply to what it selects."""
        return False

    @property
    def comparable(self) -> bool:
        """Whether its scores can be compared between groups."""
        return False

    @property
    def version(self) -> str:
        """What its repr does not tell of it: curves on disk are kept apart by both."""
        return ""

    @abstractmethod
    def rank(self, view: View) -> Ranking:
        """The units, best first: at least `view.k` of them, all where that is not known yet."""

    def whole(self) -> Selector:
        """The selector that ranks all units where no budget is known yet."""
        return self

    def knowing(self, calibration: Calibration) -> Selector:
        """The selector with what was measured of the dense model on these inputs, for calls with
        the same model and inputs; most measure nothing that could be passed on.
        """
        return self

    def check(self, setting: Setting, who: str) -> None:
        """Refuse data without what the selector needs; `who` names it in messages."""
        if self.needs_pool:
            if setting.pool is None:
                why = "{who} draws batches from the training set: give {train_data=}"
                raise OptionError(Message(why, who=who))
            all_labels(setting.pool, f"train_data: {who}")
        elif setting.pool is not None:
            why = (
                "{who} makes no use of {train_data:name}, only those that draw from it do, such as "
                "layer-greedy-fs-fd; omit it"
            )
            raise OptionError(Message(why, who=who))
        if self.needs_labels:
            all_labels(setting.calibration, who)


def order_by(scores: Tensor) -> tuple[int, ...]:
    """Unit numbers by falling score; ties, up to rounding, go to the lowest number."""
    values = scores.detach().double().cpu()
    if not bool(torch.isfinite(values).all()):
        raise DataError(
            f"scores of units must be finite, got {values[~values.isfinite()][:3].tolist()}"
        )
    top = float(values.abs().max()) if len(values) else 0.0
    rounded = (values / top * 1e10).round() if top > 0 else values
    return tuple(rounded.sort(descending=True, stable=True).indices.tolist())


Answer = KeepOrder | Ranking | Sequence[int]
"""What a function that ranks units may return."""


@dataclass(frozen=True)
class Function(Selector):
    """A user's own function of a view, as a selector."""

    name: ClassVar[str] = "function"
    function: Callable[[View], Answer] = field(repr=False)
    labels: bool = False
    pool: bool = False
    runs: bool = True

    # What class variables say of other selectors, a function says when it is registered.
    @property
    def needs_labels(self) -> bool:  # type: ignore[override]
        return self.labels

    @property
    def needs_pool(self) -> bool:  # type: ignore[override]
        return self.pool

    @property
    def needs_runs(self) -> bool:  # type: ignore[override]
        return self.runs

    @property
    def comparable(self) -> bool:
        """Known only from what it returns."""
        return True

    @property
    def version(self) -> str:
        """The function's code, and the values it was made with."""
        code = getattr(self.function, "__code__", None)
        if code is None:
            return repr(self.function)
        held = [c.cell_contents for c in getattr(self.function, "__closure__", None) or ()]
        made = f"{getattr(self.function, '__defaults__', None)!r}{held!r}"
        return hashlib.sha256(marshal.dumps(code, 2) + made.encode()).hexdigest()

    def rank(self, view: View) -> Ranking:
        """What the function returned, as a checked ranking."""
        answer = self.function(view)
        if isinstance(answer, Ranking):
            return replace(answer, order=checked_order(view, answer.order))
        if isinstance(answer, KeepOrder):
            return Ranking(checked_order(view, answer.order), curve=answer)
        return Ranking(checked_order(view, answer))


def checked_order(view: View, ranked: Sequence[int]) -> tuple[int, ...]:
    """The ranking as unit numbers; one that is not a ranking is refused."""
    whose = f"the method's ranking of group {view.group.name!r} must"
    try:
        given = list(ranked)
        order = tuple(int(u) for u in given)
    except (TypeError, ValueError, OverflowError) as error:
        raise OptionError(
            f"{whose} be the numbers of its units, best first, got an object of type "
            f"{type(ranked).__name__}"
        ) from error
    if any(number != u for number, u in zip(order, given, strict=True)):
        raise OptionError(
            f"{whose} be the numbers of its units, best first, got fractions: of scores in a tensor, "
            "return scores.argsort(descending=True)"
        )
    if len(set(order)) != len(order) or any(not 0 <= u < view.n_units for u in order):
        raise OptionError(
            f"{whose} hold different numbers from 0 to {view.n_units - 1}, got {order[:8]}"
            f"{'…' if len(order) > 8 else ''}"
        )
    return order
