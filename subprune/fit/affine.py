"""Weights and bias fitted together, where there is a place for a constant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from subprune.fit.constant import WithConstant
from subprune.fit.ridge import Ridge

__all__ = ["Affine"]


@dataclass(frozen=True)
class Affine(WithConstant, Ridge):
    """Least squares with a ridge, and a constant that goes into the bias."""

    name: ClassVar[str] = "affine"
