"""How a group is treated: three of the four choices. The fourth, who gives up how much, comes first."""

from __future__ import annotations

from dataclasses import dataclass, replace

from subprune.fit.fit import Fit
from subprune.fit.keep import Keep
from subprune.select.selector import Selector
from subprune.statistics.targets import Layer, Target

__all__ = ["Recipe"]


@dataclass(frozen=True)
class Recipe:
    """What the layers should give, which units stay, and what the weights become."""

    target: Target
    selector: Selector
    fit: Fit
    name: str = ""  # of the method it comes from, for messages

    @property
    def who(self) -> str:
        """For messages."""
        return f"method {self.name!r}" if self.name else f"selector {self.selector.name!r}"

    @property
    def needs_statistics(self) -> bool:
        return self.selector.needs_statistics or self.fit.needs_statistics

    @property
    def bounded(self) -> bool:
        """Whether the bounds of the paper speak of what it leaves."""
        return self.selector.bounded and self.fit.bounded

    def on_dense(self, *, clip: float | None = None, errors: bool = True) -> Recipe:
        """The same for one look at every group of the dense model, with all its units ranked.

        With `errors`, statistics are gathered whether or not the selector needs them.
        """
        target = Layer(patches=self.target.patches, clip=clip)
        fit = self.fit.plain() if errors else Keep()
        return replace(self, target=target, selector=self.selector.whole(), fit=fit)
