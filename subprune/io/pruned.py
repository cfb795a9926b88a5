"""What files are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import nn

    from subprune.report.figures import Report

__all__ = ["Pruned"]


class Pruned(Protocol):
    """The result of `subprune.prune`, as far as files need it."""

    @property
    def model(self) -> nn.Module: ...

    @property
    def report(self) -> Report: ...
