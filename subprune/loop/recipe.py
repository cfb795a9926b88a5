"""How a group is treated: three of the four choices.

The fourth, who gives up how much, comes first.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING

from subprune.messages import Message
from subprune.statistics.products import Layer

if TYPE_CHECKING:
    from subprune.fit.fit import Fit
    from subprune.select.selector import Selector
    from subprune.statistics.target import Target

__all__ = ["Recipe"]


@dataclass(frozen=True)
class Recipe:
    """What the layers should give, which units stay, and what the weights become."""

    target: Target
    selector: Selector
    fit: Fit
    _: KW_ONLY
    # What layers should give whose inputs change though none of them is cut; None: they stay.
    drift: Target | None = None
    refine: int = 0  # steps on the layers that make a group's units, after its readers are fitted
    name: str = ""  # of the method it comes from
    named: bool = True  # whether the selector is that method's own, for messages

    @property
    def who(self) -> str:
        """For messages."""
        if self.name and self.named:
            return Message("{method=}", method=self.name)
        return f"selector {self.selector.name!r}"

    @property
    def needs_statistics(self) -> bool:
        return self.selector.needs_statistics or self.fit.needs_statistics

    @property
    def unbounded(self) -> str:
        """Why the paper's bounds do not apply to what it leaves; empty if they do."""
        if self.target.unbounded:
            return self.target.unbounded
        if not self.selector.bounded:
            return f"units are chosen by {self.selector}"
        return "" if self.fit.bounded else f"weights are left to {self.fit}"

    @property
    def selection(self) -> str:
        """What greedy selection depends on besides inputs, seed and numbers of units, as text."""
        if self.target.sees_pruned:  # at layers that were fitted before
            return f"{self.target}, {self.fit}, drift {self.drift}"
        sampled = self.target.patches == "random"  # fold by fold
        return f"{self.target}, {self.fit.parts} folds" if sampled else f"{self.target}"

    def on_dense(self, clip: float | None = None, landed: bool | None = None) -> Recipe:
        """The same for a look at the dense model alone, with all units of a group ranked.

        landed: whether errors count where outputs land; None: if they do for the target.
        """
        where = self.target.landed if landed is None else landed
        patches, rows = self.target.patches, self.target.rows
        target = Layer(patches=patches, rows=rows, clip=clip, landed=where, apart=False)
        return replace(self, target=target, selector=self.selector.whole(), fit=self.fit.plain())
