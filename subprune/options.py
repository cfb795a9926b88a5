"""All choices of one `prune` call, checked once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from subprune.batchnorm import BATCHNORM
from subprune.budget.allocate import RULES
from subprune.errors import BudgetError, OptionError, closest
from subprune.methods import find_method
from subprune.registry import PATCHES

__all__ = ["Options"]


@dataclass(frozen=True)
class Options:
    """See `subprune.prune` for what each one means."""

    method: str
    allocate: str
    budgets: Mapping[str, int] | None = None
    keep: float | None = None
    compression: float | None = None
    speedup: float | None = None
    reweight: bool = True
    epsilon: float | None = None
    patches: str = "all"
    batchnorm: str = "keep"
    round_to: int = 1
    n_samples: int | None = 512
    seed: int = 0

    def __post_init__(self) -> None:
        find_method(self.method)
        self._check_targets()
        choices = {"allocate": tuple(RULES), "patches": PATCHES, "batchnorm": BATCHNORM}
        for name, allowed in choices.items():
            value = getattr(self, name)
            if value not in allowed:
                near = closest(str(value), allowed)
                raise OptionError(f"{name}={value!r}: {near}allowed are {', '.join(allowed)}")
        if self.epsilon is not None and not 0 < self.epsilon < 1:
            raise OptionError(f"epsilon of stochastic greedy must lie between 0 and 1, got {self.epsilon!r}")
        if isinstance(self.round_to, bool) or not isinstance(self.round_to, int) or self.round_to < 1:
            raise OptionError(f"round_to must be a positive integer, got {self.round_to!r}")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise OptionError(f"seed must be an integer, got {self.seed!r}")

    def _check_targets(self) -> None:
        targets = {k: getattr(self, k) for k in ("budgets", "keep", "compression", "speedup")}
        given = [k for k, v in targets.items() if v is not None]
        if len(given) != 1:
            said = f"got {' and '.join(given)}" if given else "got none"
            raise OptionError(f"give exactly one target of {', '.join(targets)}; {said}")
        for name in ("compression", "speedup"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not value >= 1):
                raise BudgetError(f"{name} must be a ratio of at least 1 (before / after), got {value!r}")

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)
