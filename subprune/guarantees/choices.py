"""The options of `subprune.guarantees.guarantees`: its own, and those it shares with `prune`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from subprune.errors import OptionError
from subprune.fit.fit import Fit
from subprune.fit.fits import FITS, FitName
from subprune.keywords import check_kind, option, options_of, same
from subprune.loop.recipe import Recipe
from subprune.messages import Message
from subprune.methods import DEFAULT_FIT, tuned
from subprune.options import Options
from subprune.progress import Step
from subprune.select.input_change import Greedy
from subprune.statistics.targets import TARGETS, Patches, TargetName

__all__ = ["GuaranteeOptions"]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class GuaranteeOptions:
    """What is to be proven, and for which selection."""

    target: TargetName = option(
        "layer",
        "the model that is looked at: the dense one, or one that is pruned group after group on "
        "the way, which needs one share, or budgets",
    )
    keep: float | Sequence[float] = option(
        (0.25, 0.5, 0.75), "shares of the units of every group for which bounds are given"
    )
    budgets: Mapping[str, int] | None = same(Options, "budgets")
    only: Any = same(Options, "only")
    ignore: Any = same(Options, "ignore")
    patches: Patches = same(Options, "patches")
    fit: FitName | Fit | None = same(Options, "fit")
    ridge: float | None = same(Options, "ridge")
    folds: int | None = same(Options, "folds")
    n_samples: int | None = same(Options, "n_samples")
    forward: Callable[[Any], Any] | None = same(Options, "forward")
    seed: int = same(Options, "seed")
    double: bool = option(
        True,
        "compute in float64, on a copy; otherwise in the model's own precision, with wider margins "
        "for rounding",
    )
    progress: bool | Callable[[Step], None] | None = same(Options, "progress")

    def __post_init__(self) -> None:
        for o in options_of(GuaranteeOptions).values():
            check_kind(o, getattr(self, o.name))
            object.__setattr__(self, o.name, o.kept(getattr(self, o.name)))
        _ = self.recipe  # refuses values that its parts do not take
        if self.target != "layer" and self.budgets is None and len(self.shares) != 1:
            why = "{target=} prunes on the way: give one share, as in {keep=}, or {budgets=}"
            raise OptionError(Message(why, target=self.target, keep=0.5))

    @property
    def recipe(self) -> Recipe:
        """Plain greedy on the target; folds also say where random patches are taken."""
        own = self.fit if isinstance(self.fit, Fit) else FITS[DEFAULT_FIT]
        fit = tuned(own, ridge=self.ridge, folds=self.folds)
        return Recipe(tuned(TARGETS[self.target], patches=self.patches), Greedy(), fit)

    @property
    def shares(self) -> tuple[float, ...]:
        """The shares of units to look at."""
        return (self.keep,) if isinstance(self.keep, int | float) else tuple(self.keep)
