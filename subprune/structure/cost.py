"""Parameters and operations of the cut model, exactly, before anything is cut."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from subprune.errors import BudgetError, closest
from subprune.structure.formula import Formula, Length, Monomial
from subprune.structure.groups import Group, Span, Structure, Units

__all__ = ["CostModel", "predict"]

Counts = Mapping[str, int]
Kept = Mapping[str, Sequence[int]]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
_Factors = tuple[int, tuple[int, ...]]  # a factor, and the lengths it is multiplied with


class _Products:
    """A sum of ``factor × product of lengths``, as arrays."""

    def __init__(self, terms: Iterable[_Factors]) -> None:
        merged: dict[tuple[int, ...], int] = {}
        for factor, lengths in terms:
            key = tuple(sorted(lengths))
            merged[key] = merged.get(key, 0) + factor
        width = max((len(k) for k in merged), default=0)
        # Length 0 is the constant one; it fills short products up.
        self.index = np.array(
            [[0] * (width - len(k)) + list(k) for k in merged], dtype=np.int64
        ).reshape(-1, width)
        self.factors = np.array(list(merged.values()), dtype=np.int64)

    def total(self, lengths: Ints, some: Any = slice(None)) -> Ints:
        """Lengths [..., n] → totals [...]; of `some` of the products only, if given."""
        return (lengths[..., self.index[some]].prod(axis=-1) * self.factors[some]).sum(axis=-1)

    def slopes(self, lengths: Ints, spans: NDArray[np.bool_], some: NDArray[np.bool_]) -> Ints:
        """How much the total grows with each length [n] that is the only one of `spans` in its
        product.
        """
        index = self.index[some]
        others = np.where(spans[index], 1, lengths[index]).prod(axis=1) * self.factors[some]
        grown = np.zeros(lengths.size, dtype=np.int64)
        np.add.at(grown, index[spans[index]], others)
        return grown

    def lost(self, before: Floats, after: Floats, shares: Floats) -> Floats:
        """What each group takes off the total as lengths go from `before` to `after`.

        shares [n, groups]: how much of the way of each length [n] is a group's doing. Lengths go
        down together and a group is charged for what its own way takes off, so that the shares add
        up to the whole; where two groups cut the same weight, each has half of what both take.
        """
        lost = np.zeros(shares.shape[1])
        for place, weight in ((0.0, 1 / 6), (0.5, 4 / 6), (1.0, 1 / 6)):  # exact: Simpson's rule
            factors = (before + place * (after - before))[self.index]
            for j in range(self.index.shape[1]):
                others = np.delete(factors, j, axis=1).prod(axis=1) * self.factors
                lost += weight * (others @ shares[self.index[:, j]])
        return lost

    def kept(self, places: Mapping[int, int], full: Ints) -> tuple[Monomial, ...]:
        """The products as data; lengths without a place are constants."""
        merged: dict[tuple[int, ...], int] = {}
        for factor, row in zip(self.factors.tolist(), self.index.tolist(), strict=True):
            fixed = [int(full[i]) for i in row if i not in places]
            key = tuple(places[i] for i in row if i in places)
            merged[key] = merged.get(key, 0) + factor * math.prod(fixed)
        return tuple(Monomial(factor, key) for key, factor in merged.items())


class CostModel:
    """Parameters and FLOPs of a model as a function of the units kept in each group.

    Exact: equal to ``sum(p.numel() for p in cut.parameters())``, tied ones once, and to what
    `torch.utils.flop_counter.FlopCounterMode` counts for the example input. `params` and `flops`
    take numbers of units, for groups whose units are all alike (`uniform`); `at_most` for all, as
    an upper bound; `params_of` and `flops_of` take the units themselves. Groups that are not named
    keep everything. ``of="blocks"`` leaves out what `subprune.structure.edges` finds.
    """

    def __init__(self, model: nn.Module, structure: Structure) -> None:
        self.groups: dict[str, Group] = {g.name: g for g in structure.groups}
        self.names: tuple[str, ...] = tuple(self.groups)
        self._column = {name: i for i, name in enumerate(self.names)}
        self._spans: list[Span] = [Span(1)]
        self._known: dict[Any, int] = {(1,): 0}
        params, flops = self._tensor_terms(model, structure), self._flop_terms(structure)
        edges = structure.edges
        self._products = {
            ("params", "model"): _Products(params.values()),
            ("flops", "model"): _Products([x for xs in flops.values() for x in xs]),
            ("params", "blocks"): _Products(
                [x for name, x in params.items() if name not in edges.tensors]
            ),
            ("flops", "blocks"): _Products(
                [x for op, xs in flops.items() if op not in edges.ops for x in xs]
            ),
        }
        # The length of a dimension is linear in the numbers of units, where all of a group have the
        # same size: lengths [spans] = fixed + per_unit [spans, groups] @ counts [groups]. Others are
        # kept by group, with the size of each unit.
        self._full = np.array([g.n_units for g in self.groups.values()], dtype=np.int64)
        self._fixed = np.array([s.fixed for s in self._spans], dtype=np.int64)
        self._per_unit = np.zeros((len(self._spans), len(self.names)), dtype=np.int64)
        self._uneven: dict[str, list[tuple[int, Units]]] = {}
        for i, span in enumerate(self._spans):
            for name, sizes in span.parts:
                if sizes.min() == sizes.max():
                    self._per_unit[i, self._column[name]] = sizes[0]
                else:
                    self._uneven.setdefault(name, []).append((i, sizes))

    # ---- numbers of units ------------------------------------------------------------------------

    def params(self, counts: Counts, of: str = "model") -> int:
        """Parameters left if each named group keeps its number of units."""
        return int(self._products["params", of].total(self._lengths(counts)))

    def flops(self, counts: Counts, of: str = "model") -> int:
        """FLOPs (two per multiply-add) left if each named group keeps its number of units."""
        return int(self._products["flops", of].total(self._lengths(counts)))

    def at_most(self, quantity: str, counts: Counts, of: str = "model") -> int:
        """ "params" or "flops" left, at most, if each named group keeps its number of units,
        whichever they are.

        Exact for uniform groups; where units differ in size, as if the most expensive were kept.
        """
        products, uneven = self._products[quantity, of], counts.keys() & self._uneven.keys()
        base = self._lengths(counts, strict=False)  # without the units of uneven groups
        if not uneven:
            return int(products.total(base))
        # Every length as if its largest units were kept: a bound for products of several of them.
        longest, spans = base.copy(), np.zeros(base.size, dtype=bool)
        for name in uneven:
            for i, sizes in self._uneven[name]:
                spans[i] = True
                longest[i] += int(np.sort(sizes)[::-1][: counts[name]].sum())
        # Products with one such length are linear in the kept units: there the bound is the sum of
        # the most expensive units, each counted with all that it costs.
        single = spans[products.index].sum(axis=1) == 1
        total = products.total(longest, ~single) + products.total(base, single)
        weights = products.slopes(longest, spans, single)
        for name in uneven:
            each = sum(weights[i] * sizes for i, sizes in self._uneven[name])
            total += np.sort(each)[::-1][: counts[name]].sum()
        return int(total)

    def many(self, counts: Ints) -> tuple[Ints, Ints]:
        """Parameters and FLOPs for many budgets at once: counts [n, groups], in the order of
        `names`.
        """
        if self._uneven:
            self._refuse(next(iter(self._uneven)))
        lengths = self._fixed + np.asarray(counts, dtype=np.int64) @ self._per_unit.T
        return self._products["params", "model"].total(lengths), self._products[
            "flops", "model"
        ].total(lengths)

    def uniform(self, name: str) -> bool:
        """Whether all units of the group cost the same, so that their number says it all."""
        return self._check(name) not in self._uneven

    # ---- units themselves ------------------------------------------------------------------------

    def params_of(self, kept: Kept, of: str = "model") -> int:
        """Parameters left if each named group keeps these units."""
        return int(self._products["params", of].total(self._lengths_of(kept)))

    def flops_of(self, kept: Kept, of: str = "model") -> int:
        """FLOPs left if each named group keeps these units."""
        return int(self._products["flops", of].total(self._lengths_of(kept)))

    def per_unit(self, name: str) -> tuple[Ints, Ints]:
        """Parameters and FLOPs that go with each single unit of a group,
        all others left in place.
        """
        group = self.groups[self._check(name)]
        column, full = self._column[name], self._lengths({}, strict=False)
        # [units, spans]: what each unit takes off every length
        less = np.repeat(self._per_unit[:, column][None, :], group.n_units, axis=0)
        for i, sizes in self._uneven.get(name, ()):
            less[:, i] = sizes
        lengths = full - less
        p, f = self._products["params", "model"], self._products["flops", "model"]
        return p.total(full) - p.total(lengths), f.total(full) - f.total(lengths)

    def savings(self, kept: Kept) -> dict[str, tuple[int, int]]:
        """Parameters and FLOPs that each named group takes off, which add up to what all do."""
        before, after = (self._lengths_of(x).astype(np.float64) for x in ({}, kept))
        shares = np.zeros((before.size, len(kept)))
        for column, (name, units) in enumerate(kept.items()):
            shares[:, column] = before - self._lengths_of({name: units})
        params, flops = (
            self._products[quantity, "model"].lost(before, after, shares)
            for quantity in ("params", "flops")
        )
        return {name: (round(p), round(f)) for name, p, f in zip(kept, params, flops, strict=True)}

    def formula(self, names: Sequence[str], inputs: int = 1) -> Formula:
        """Costs as a function of the units of these groups; all others are kept whole.

        inputs: of the example, whose FLOPs are divided by it.
        """
        columns = [self._column[self._check(name)] for name in names]
        sizes = self._per_unit[:, columns].astype(np.float64)
        for column, name in enumerate(names):
            for i, uneven in self._uneven.get(name, ()):
                sizes[i, column] = uneven.mean()
        full = self._lengths_of({})
        # Only lengths that some of these groups change are written down, by their new places.
        moving = np.flatnonzero(sizes.any(axis=1))
        places = {int(i): place for place, i in enumerate(moving)}
        lengths = []
        for i in moving.tolist():
            those = np.flatnonzero(sizes[i])  # groups with units in this length
            widths = self._full[columns][those]
            # what is left when all units of these groups are gone
            fixed = int(full[i]) - round(float(sizes[i, those] @ widths))
            lengths.append(Length(fixed, tuple(those.tolist()), tuple(sizes[i, those].tolist())))
        return Formula(
            groups=tuple(names),
            lengths=tuple(lengths),
            params=self._products["params", "model"].kept(places, full),
            flops=self._products["flops", "model"].kept(places, full),
            inputs=inputs,
            exact=not self._uneven.keys() & set(names),
        )

    # ---- inside ----------------------------------------------------------------------------------

    def _tensor_terms(self, model: nn.Module, structure: Structure) -> dict[str, _Factors]:
        """What each parameter adds to the number of them, by name."""
        spans: dict[tuple[str, int], list[tuple[str, Units]]] = {}
        for group in structure.groups:
            for slot in group.slots:
                sizes = np.bincount(slot.units[slot.units >= 0], minlength=group.n_units)
                spans.setdefault((slot.tensor, slot.dim), []).append((group.name, sizes))
        terms = {}
        for name, x in model.named_parameters():
            lengths = []
            for dim, size in enumerate(x.shape):
                parts = tuple(spans.get((name, dim), ()))
                lengths.append(Span(size - sum(int(s.sum()) for _, s in parts), parts))
            terms[name] = (1, self._numbers(lengths))
        return terms

    def _flop_terms(self, structure: Structure) -> dict[int, list[_Factors]]:
        """What each operation adds to the FLOPs, by its place in the program."""
        terms: dict[int, list[_Factors]] = {}
        for t in structure.terms:
            terms.setdefault(t.op, []).append((t.factor, self._numbers(t.spans)))
        return terms

    def _numbers(self, spans: Iterable[Span]) -> tuple[int, ...]:
        """Each length's place in the list of different ones."""
        numbers = []
        for span in spans:
            key = (span.fixed, *((name, sizes.tobytes()) for name, sizes in span.parts))
            if key not in self._known:
                self._known[key] = len(self._spans)
                self._spans.append(span)
            numbers.append(self._known[key])
        return tuple(numbers)

    def _lengths(self, counts: Counts, strict: bool = True) -> Ints:
        widths = self._full.copy()
        for name, k in counts.items():
            if strict and name in self._uneven:
                self._refuse(name)
            column = self._column.get(name)
            if column is None or not 0 <= k <= self._full[column]:
                raise BudgetError(
                    f"group {self._check(name)!r} has "
                    f"{self.groups[name].n_units} units, cannot keep {k}"
                )
            widths[column] = k
        lengths = self._fixed + self._per_unit @ widths
        for name, spans in self._uneven.items():
            if name not in counts:
                for i, sizes in spans:
                    lengths[i] += int(sizes.sum())
        return lengths

    def _lengths_of(self, kept: Kept) -> Ints:
        lengths = self._lengths({name: len(units) for name, units in kept.items()}, strict=False)
        for name in kept.keys() & self._uneven.keys():
            for i, sizes in self._uneven[name]:
                lengths[i] += int(sizes[np.asarray(kept[name], dtype=np.int64)].sum())
        return lengths

    def _refuse(self, name: str) -> None:
        raise BudgetError(
            f"the units of group {name!r} differ in size, so their number does not say what they "
            f"cost; give the units themselves: {{{name!r}: [0, 2, …]}}"
        )

    def _check(self, name: str) -> str:
        if name not in self.groups:
            hint = closest(name, self.names)
            raise BudgetError(
                f"there is no group {name!r}; {hint}the groups are {', '.join(self.names)}"
            )
        return name


def predict(
    model: nn.Module, structure: Structure, kept: Mapping[str, int | Sequence[int]]
) -> tuple[int, int]:
    """Parameters and FLOPs after a cut; `kept` gives a number of units, or the units, for each
    group.
    """
    cost = CostModel(model, structure)
    chosen: dict[str, Sequence[int]] = {}
    for name, k in kept.items():
        if isinstance(k, int) and not cost.uniform(name):
            cost._refuse(name)
        # any k units cost the same in a uniform group
        chosen[name] = range(k) if isinstance(k, int) else k
    return cost.params_of(chosen), cost.flops_of(chosen)
