"""Statistics streamed: summed over batches of a layer's inputs.

Nothing here ever holds the whole activation matrix ``B``: rows arrive in chunks of bounded size;
what one chunk gives is in :mod:`subprune.statistics.sums`. How the batches of a layer become rows is
in :mod:`subprune.statistics.collectors`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from subprune.errors import DataError
from subprune.program.onednn import crossed
from subprune.statistics.statistics import Statistics
from subprune.statistics.sums import (
    MAX_BYTES,
    STRIP,
    Products,
    Totals,
    as_double,
    column_sums,
    energy_of,
    gram_of,
    in_range,
    in_strips,
    sum_device,
    symmetrise,
    working,
)

__all__ = ["Accumulator"]

# Rows of a wide layer that are multiplied at once, if fewer arrive: there adding up costs time too.
# Products of narrow ones are summed in float64 as they come, which is more exact.
_ROWS, _JOINED = 2048, 1024


class Accumulator:
    """Sums of ``BᵀB``, ``BᵀY`` and ``‖Y‖²`` over rows that arrive in pieces.

    d: input columns; m: outputs (0 if the target is a linear function of the rows, see
    :meth:`result_for_weight`); units: [d] int64, the unit of each column or -1; gram: whether
    ``BᵀB`` is summed, or known from other sums over the same rows (:meth:`with_targets`).
    """

    def __init__(
        self, d: int, m: int, units: Tensor, where: str = "statistics", gram: bool = True
    ) -> None:
        if tuple(units.shape) != (d,):
            raise DataError(f"{where}: units has shape {tuple(units.shape)}, must be ({d},)")
        self.d, self.m, self.units, self.where, self.gram = d, m, units, where, gram
        self.rows = 0
        self._energy = 0.0
        self._precision = torch.finfo(torch.float64).eps  # the worst so far
        self._products: Products | None = None
        # size of the blocks on the diagonal of BᵀB whose halves may differ by rounding
        self._uneven = 0
        self._target_sums = torch.zeros(m, dtype=torch.float64)
        # rows, their targets and their sums, whose products are not made yet
        self._waiting: list[tuple[Tensor, Tensor, Tensor]] = []

    def update(
        self, rows: Tensor, targets: Tensor | None = None, max_bytes: int = MAX_BYTES
    ) -> None:
        """Add rows [n, d] and their targets [n, m] (None if m is 0)."""
        if targets is None:
            targets = rows.new_zeros(rows.shape[0], 0)
        if rows.shape[1:] != (self.d,) or targets.shape != (rows.shape[0], self.m):
            raise DataError(
                f"{self.where}: rows {tuple(rows.shape)} and targets {tuple(targets.shape)} do not fit "
                f"[n, {self.d}] and [n, {self.m}]"
            )
        step = max(1, max_bytes // (max(1, self.d + self.m) * 8))
        for start in range(0, rows.shape[0], step):
            part, wanted = working(rows[start : start + step], targets[start : start + step])
            self._add(part, wanted, min(_ROWS, step) if self.d >= _JOINED else 1)

    def _add(self, rows: Tensor, targets: Tensor, enough: int) -> None:
        """Add one chunk; its products wait for others, if it has fewer than enough rows."""
        # Where products of the rows with each other are known, so are their sums.
        sums = column_sums(rows) if self.gram else column_sums(rows[:0])
        totals = Totals(sums, column_sums(targets), energy_of(targets))
        self.add_totals(totals)
        if sum(len(x) for x, *_ in self._waiting) + len(rows) > enough:
            self._multiply_waiting()
        if len(rows) < enough:  # as copies, since others may overwrite them
            self._waiting.append((rows.clone(), targets.clone(), totals.sums))
        else:
            self._multiply(rows, targets, totals.sums)

    def _multiply(self, rows: Tensor, targets: Tensor, sums: Tensor) -> None:
        """Add the products of rows whose totals were added."""
        gram, cross = self._made(rows, targets)
        seen = [gram.diagonal()] * self.gram + [cross] * (self.m > 0)
        if rows.dtype == torch.float32 and not all(in_range(x) for x in seen) and rows.any():
            gram, cross = self._made(as_double(rows), as_double(targets))
        uneven = STRIP if self.gram and in_strips(rows) else None
        self.add_products(
            Products(
                gram=gram, cross=cross, sums=sums, rows=len(rows), made_in=rows.dtype, uneven=uneven
            )
        )

    def _made(self, rows: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """BᵀB [d, d], if it is summed, and BᵀY [d, m]."""
        return gram_of(rows) if self.gram else rows.new_zeros(0, 0), crossed(rows, targets)

    def _multiply_waiting(self) -> None:
        """Add the products of what arrived in small pieces."""
        waiting, self._waiting = self._waiting, []
        if waiting:
            rows, targets, sums = zip(*waiting, strict=True)
            self._multiply(torch.cat(rows), torch.cat(targets), torch.stack(sums).sum(0))

    def add_totals(self, totals: Totals) -> None:
        """Add what the targets of new rows sum to, and see that all sums are finite."""
        for name, total in (("inputs", totals.sums), ("targets", totals.targets)):
            if not bool(torch.isfinite(total).all()):
                raise DataError(
                    f"{self.where}: the {name} contain NaN or infinity; check the calibration data, and "
                    "that the model gives finite activations on it in eval mode"
                )
        self._target_sums = totals.targets + self._target_sums.to(totals.targets.device)
        self._energy += totals.energy

    def add_products(self, new: Products) -> None:
        """Add products made elsewhere; their totals are added apart. Float64 ones are taken over,
        not copied.
        """
        self._precision = max(self._precision, torch.finfo(new.made_in).eps)
        self.rows += new.rows
        self._uneven = max(self._uneven, self.d if new.uneven is None else new.uneven)
        if self._products is None:
            device = sum_device(new.gram.device)
            gram, cross, sums = (x.to(device, torch.float64) for x in new.tensors())
            self._products = Products.totals(gram, cross, sums)
            return
        for total, part in zip(self._products.tensors(), new.tensors(), strict=True):
            total += part.to(total.device)

    @classmethod
    def merged(cls, parts: Sequence[Accumulator]) -> Accumulator:
        """The sums over the rows of all parts, which stay as they are; a single part is returned
        as it is.
        """
        if len(parts) == 1:
            return parts[0]
        first = parts[0]
        total = cls(first.d, first.m, first.units, first.where)
        for part in parts:
            part._make_symmetric()
            if part._products is None:
                continue
            total._energy += part._energy
            total._precision = max(total._precision, part._precision)
            total._target_sums = part._target_sums + total._target_sums.to(part._target_sums.device)
            total.rows += part.rows
            if total._products is None:
                gram, cross, sums = (x.clone() for x in part._products.tensors())
                total._products = Products.totals(gram, cross, sums)
                continue
            for mine, theirs in zip(
                total._products.tensors(), part._products.tensors(), strict=True
            ):
                mine += theirs
        return total

    def with_targets(self, other: Accumulator, columns: Tensor | None = None) -> Accumulator:
        """The same rows with the targets of another accumulator, which saw them too.

        columns: [q], those that it saw; the products of others with the targets count as zero.
        """
        total = Accumulator(self.d, other.m, self.units, self.where)
        self._multiply_waiting()
        other._multiply_waiting()
        if self._products is not None and other._products is not None:
            old, cross = self._products, other._products.cross
            if columns is not None and len(columns) < self.d:
                cross = cross.new_zeros(self.d, other.m).index_copy(0, columns, cross)
            total._products = Products.totals(old.gram, cross, old.sums)
        total._uneven = self._uneven
        total.rows, total._precision = self.rows, self._precision
        total._energy, total._target_sums = other._energy, other._target_sums
        return total

    def absorb(self, other: Accumulator) -> None:
        """Add the sums of another, which is used up."""
        self._multiply_waiting()
        other._multiply_waiting()
        self._energy += other._energy
        self._target_sums = other._target_sums + self._target_sums.to(other._target_sums.device)
        self._precision = max(self._precision, other._precision)
        self._uneven = max(self._uneven, other._uneven)
        self.rows += other.rows
        if self._products is None:
            self._products = other._products
        elif other._products is not None:
            for own, new in zip(self._products.tensors(), other._products.tensors(), strict=True):
                own += new

    def part(self, columns: Tensor) -> Accumulator:
        """The same sums of some columns [q] only; the targets stay."""
        part = Accumulator(len(columns), self.m, self.units[columns], self.where)
        self._make_symmetric()
        if self._products is not None:
            gram, cross, sums = self._products.tensors()
            gram = gram.index_select(0, columns).index_select(1, columns)
            part._products = Products.totals(gram, cross[columns], sums[columns])
        part.rows, part._precision = self.rows, self._precision
        part._energy, part._target_sums = self._energy, self._target_sums
        return part

    @property
    def device(self) -> torch.device | None:
        """Where the sums lie; None where no rows were seen."""
        self._multiply_waiting()
        return None if self._products is None else self._products.gram.device

    @property
    def bytes(self) -> int:
        """Memory that the sums hold."""
        self._multiply_waiting()
        return 0 if self._products is None else sum(x.nbytes for x in self._products.tensors())

    def _make_symmetric(self) -> None:
        """Let rounding make no difference between the two halves of BᵀB."""
        self._multiply_waiting()
        if self._products is not None and self._uneven:
            gram = self._products.gram
            for i in range(0, len(gram), self._uneven):
                block = slice(i, i + self._uneven)
                symmetrise(gram[block, block])
            self._uneven = 0

    def laid_out(self, device: torch.device) -> tuple[list[Tensor], Tensor]:
        """The sums, to be added to in place, and [2] those that are plain numbers; device: where
        they lie, if no rows were seen here.

        Of BᵀB what lies below the diagonal is left out; `settle` puts it there.
        """
        self._make_symmetric()
        if self._products is None:
            side = self.d if self.gram else 0
            shapes = ((side, side), (self.d, self.m), (self.d,))
            gram, cross, sums = (
                torch.zeros(shape, dtype=torch.float64, device=device) for shape in shapes
            )
            self._products = Products.totals(gram, cross, sums)
        gram = self._products.gram
        self._target_sums = self._target_sums.to(device)
        strips = [gram[i : i + STRIP, i:] for i in range(0, len(gram), STRIP)]
        others = torch.tensor([self._energy, self.rows], dtype=torch.float64, device=device)
        return [*strips, self._products.cross, self._products.sums, self._target_sums], others

    def settle(self, others: Tensor, precision: float) -> None:
        """Take over what was added to the sums; precision: the worst that any was made in."""
        gram = self._products.gram if self._products is not None else torch.zeros(0, 0)
        for i in range(0, len(gram), STRIP):
            gram[i + STRIP :, i : i + STRIP] = gram[i : i + STRIP, i + STRIP :].T
        self._energy, self.rows = float(others[0]), int(others[1])
        self._precision = precision

    @property
    def precision(self) -> float:
        """Epsilon of the least exact products so far."""
        return self._precision

    def _gathered(self) -> Products:
        self._make_symmetric()
        if self._products is None:
            raise DataError(f"{self.where}: no rows were seen; give at least one calibration input")
        return self._products

    def result(self) -> Statistics:
        """The statistics of all rows seen so far; they share memory with the accumulator."""
        return self._statistics(self._gathered().cross, self._energy, self._target_sums)

    def result_for_weight(self, weight: Tensor) -> Statistics:
        """The statistics with the target ``Y = B·weight`` (weight [d, m]), without a pass over
        rows.

        ``C = G·W``, ``t = tr(WᵀGW)``, and the column sums of Y are ``Wᵀ·sums``.
        """
        products = self._gathered()
        gram = products.gram
        if weight.ndim != 2 or weight.shape[0] != self.d:
            raise DataError(
                f"{self.where}: weight {tuple(weight.shape)} must be [{self.d}, outputs]"
            )
        weight = weight.detach().to(gram.device, torch.float64)
        cross = gram @ weight
        energy = max(0.0, float((weight * cross).sum()))
        return self._statistics(cross, energy, weight.T @ products.sums)

    def _statistics(self, cross: Tensor, energy: float, target_sums: Tensor) -> Statistics:
        """Those of all rows, with targets that have these products and sums."""
        products = self._gathered()
        stats = Statistics(
            gram=products.gram,
            cross=cross,
            energy=energy,
            rows=self.rows,
            sums=products.sums,
            target_sums=target_sums,
            units=self.units.to(products.gram.device),
            precision=self._precision,
        )
        stats.check_finite(self.where)
        return stats
