"""What a cut costs, as plain data that can be kept in a file and evaluated anywhere."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Formula", "Length", "Monomial"]


@dataclass(frozen=True)
class Length:
    """The length of a dimension: `fixed`, and some positions more for every unit that is kept."""

    fixed: int
    groups: tuple[int, ...] = ()  # places in `Formula.groups`
    # positions for one unit of each; a mean where units differ in size
    each: tuple[float, ...] = ()


@dataclass(frozen=True)
class Monomial:
    """``factor ×`` the product of some lengths."""

    factor: int
    lengths: tuple[int, ...]  # places in `Formula.lengths`


@dataclass(frozen=True, kw_only=True)
class Formula:
    """Parameters and FLOPs of one input as functions of the numbers of units kept."""

    groups: tuple[str, ...]
    lengths: tuple[Length, ...]
    params: tuple[Monomial, ...]
    flops: tuple[Monomial, ...]
    inputs: int = 1  # inputs of the call whose FLOPs were counted
    exact: bool = True  # whether the units of every group are of one size

    def speaks_of(self, names: Collection[str]) -> bool:
        """Whether it is a formula of these groups, and whole; a file may hold anything."""
        widths, lengths = range(len(self.groups)), range(len(self.lengths))
        products = (*self.params, *self.flops)
        return (
            len(self.groups) == len(names)
            and set(self.groups) == set(names)
            and all(len(x.groups) == len(x.each) for x in self.lengths)
            and all(i in widths for x in self.lengths for i in x.groups)
            and all(i in lengths for p in products for i in p.lengths)
            and self.inputs > 0
        )

    def total(self, quantity: str, counts: Mapping[str, int]) -> float:
        """ "params" or "flops" left if every group keeps these numbers of units."""
        widths = [counts[name] for name in self.groups]
        lengths = [_length(x, widths) for x in self.lengths]
        monomials: Sequence[Monomial] = self.params if quantity == "params" else self.flops
        total = sum(p.factor * _multiplied(p, lengths) for p in monomials)
        return total if quantity == "params" else total / self.inputs


def _length(length: Length, widths: Sequence[int]) -> float:
    parts = zip(length.groups, length.each, strict=True)
    return length.fixed + sum(each * widths[i] for i, each in parts)


def _multiplied(monomial: Monomial, lengths: Sequence[float]) -> float:
    result = 1.0
    for i in monomial.lengths:
        result *= lengths[i]
    return result
