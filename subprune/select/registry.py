"""What a method is: a function that ranks the units of one group, registered under a name.

Registering one in a user's own file is all it takes to use it by name everywhere.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from subprune.errors import DataError, OptionError, closest
from subprune.messages import Message
from subprune.select.greedy import KeepOrder
from subprune.statistics.calibrate import FORMS, Calibration, Run, group_statistics
from subprune.statistics.consumers import consumer_weight
from subprune.statistics.folds import FoldedStatistics
from subprune.statistics.statistics import Statistics
from subprune.structure import Group

__all__ = [
    "METHODS",
    "Method",
    "Patches",
    "Ranker",
    "Ranking",
    "Setting",
    "find_method",
    "method",
    "order_by",
]

Patches = Literal["all", "random"]


@dataclass(frozen=True)
class Ranking:
    """The units of a group, best first, and what else the method knows about them."""

    order: tuple[int, ...]
    # [n_units], comparable between groups: needed by the global budget rule
    scores: Tensor | None = None
    scale: Callable[[int], Tensor] | None = None
    """``scale(k)`` [n_units]: factors of the units' outgoing weights when k units stay and nothing
    is reweighted.
    """


@dataclass(frozen=True)
class Setting:
    """What the rankings of all groups of one call share."""

    calibration: Calibration
    groups: tuple[Group, ...]
    seed: int = 0
    epsilon: float | None = None  # of stochastic greedy, None for the plain one
    # of the statistics: "all", or "random" ones, as many per image as the kernel has positions
    patches: str = "all"
    train_data: Calibration | None = None  # a larger labelled set, for methods that draw from it
    # times the median energy that a row counts with at most; None: as it is
    clip: float | None = None

    def generator(self, *purpose: str) -> torch.Generator:
        """Random numbers that depend on the seed and the purpose only, not on what was drawn
        before.
        """
        return torch.Generator().manual_seed(zlib.crc32(repr((self.seed, *purpose)).encode()))


@dataclass
class Ranker:
    """Everything a method may look at when it ranks the units of one group; all of it is lazy."""

    group: Group
    form: str
    current: Run  # of the model pruned so far, just before the group's first consumer
    dense: Run  # of the dense model, at the same place
    setting: Setting
    k: int | None = None  # units that will be kept, None if not yet known
    gone: Mapping[int, Tensor] = field(default_factory=dict)
    """By operation: which inputs of a consumer belonged to units of other groups, removed before.
    """
    start: Run | None = None
    """The current run before the first operation that sees how many units there are, if there is
    one.
    """
    passed: Run | None = None
    """A fork of the dense run that has passed the consumers, once the statistics were looked at."""

    @property
    def n_units(self) -> int:
        return self.group.n_units

    @property
    def epsilon(self) -> float | None:
        return self.setting.epsilon

    @cached_property
    def generator(self) -> torch.Generator:
        """Random numbers of this group's own."""
        return self.setting.generator(self.group.name)

    @cached_property
    def folded(self) -> list[FoldedStatistics]:
        """G, C, t of every consumer, in the method's form, fold by fold."""
        sampled = (
            self.setting.generator(self.group.name, "patches")
            if self.setting.patches == "random"
            else None
        )
        blocks, self.passed = group_statistics(
            self.group, self.form, self.current, self.dense, sampled, self.gone, self.setting.clip
        )
        return blocks

    @cached_property
    def statistics(self) -> list[Statistics]:
        """G, C, t of every consumer, in the method's form."""
        return [block.whole() for block in self.folded]

    @property
    def labels(self) -> list[Tensor]:
        """Labels, batch by batch."""
        return all_labels(self.setting.calibration)

    def weights(self) -> list[Tensor]:
        """Weights of the consumers as [outputs, inputs, kernel positions]."""
        found = [consumer_weight(c, self.current.tensors) for c in self.group.consumers]
        return [w.reshape(w.shape[0], w.shape[1], -1) for w in found]


def all_labels(calibration: Calibration, who: str = "this method") -> list[Tensor]:
    """The labels of all batches; refused if some are missing."""
    found = [b.labels for b in calibration.batches if b.labels is not None]
    if len(found) < len(calibration.batches):
        raise DataError(
            f"{who} needs labels: give (inputs, labels) batches, or dicts or files with 'labels'"
        )
    return found


def order_by(scores: Tensor) -> tuple[int, ...]:
    """Unit numbers by falling score; ties, up to rounding, go to the lowest number."""
    own = scores.detach().double().cpu()
    if not bool(torch.isfinite(own).all()):
        raise DataError(f"scores of units must be finite, got {own[~own.isfinite()][:3].tolist()}")
    top = float(own.abs().max()) if len(own) else 0.0
    rounded = (own / top * 1e10).round() if top > 0 else own
    return tuple(rounded.sort(descending=True, stable=True).indices.tolist())


Order = Callable[[Ranker], "KeepOrder | Ranking | Sequence[int]"]


@dataclass(frozen=True)
class Method:
    """A preset: who ranks, in which form statistics are taken, and what is needed."""

    name: str
    order: Order
    form: str = "sequential"  # of the statistics used for ranking and reweighting
    needs_labels: bool = False
    summary: str = ""
    needs_train_data: bool = False
    # its own budget rule: "score" for a global ranking, "sampling"; None: any
    allocate: str | None = None
    # the ranking reads the ranker's statistics and no run: layers may be ranked at once
    statistics_only: bool = False

    def __post_init__(self) -> None:
        if not callable(self.order):
            raise OptionError(
                f"method {self.name!r} must be a function of a Ranker, got {self.order!r:.80}"
            )
        _check_choice(self.name, "form", self.form, FORMS)
        if self.allocate is not None:
            from subprune.budget.allocate import RULES  # which needs methods itself

            _check_choice(self.name, "allocate", self.allocate, RULES)

    def check(self, setting: Setting) -> None:
        """Refuse data without what the method needs."""
        if self.needs_train_data:
            if setting.train_data is None:
                why = "{method=} draws batches from the training set: give {train_data=}"
                raise OptionError(Message(why, method=self.name))
            all_labels(setting.train_data, f"train_data: method {self.name!r}")
        elif setting.train_data is not None:
            users = ", ".join(m.name for m in METHODS.values() if m.needs_train_data)
            why = "{method=} makes no use of {train_data:name}, only {users} does; omit it"
            raise OptionError(Message(why, method=self.name, users=users))
        if self.needs_labels:
            all_labels(setting.calibration, f"method {self.name!r}")


def _check_choice(method: str, name: str, value: object, allowed: Iterable[str]) -> None:
    names = list(allowed)
    if value not in names:
        near = closest(str(value), names)
        raise OptionError(
            f"method {method!r}: {name}={value!r}: {near}allowed are {', '.join(names)}"
        )


METHODS: dict[str, Method] = {}


def method(
    name: str,
    *,
    form: str = "sequential",
    needs_labels: bool = False,
    needs_train_data: bool = False,
    allocate: str | None = None,
    statistics_only: bool = False,
) -> Callable[[Order], Order]:
    """Register a ranking function as a method: ``@subprune.method("my-method")``."""
    if not isinstance(name, str) or not name.strip():
        raise OptionError(
            f'a method needs a name, as in @subprune.method("my-method"); got {name!r:.80}'
        )

    def register(order: Order) -> Order:
        if name in METHODS:
            raise OptionError(f"there is a method named {name!r} already; choose another name")
        summary = (order.__doc__ or "").strip().split("\n")[0]
        METHODS[name] = Method(
            name, order, form, needs_labels, summary, needs_train_data, allocate, statistics_only
        )
        return order

    return register


def find_method(name: str) -> Method:
    """The method of that name; an unknown one is refused with the nearest known."""
    if name not in METHODS:
        raise OptionError(
            Message(
                "unknown {method=}: {hint}allowed are {allowed}",
                method=name,
                hint=closest(name, METHODS),
                allowed=", ".join(sorted(METHODS)),
            )
        )
    return METHODS[name]
