"""Gauss–Newton steps on the layers that make a group's units, after those that read them are fitted.

The layers that read the kept units were fitted to what the dense model has where their outputs
land. What makes the units was not: its weights still aim at units as they were. A step moves them
along what lessens the error ρ at the landings:

    g = Σ x·Dᵀ                with D what ρ says about the units' pre-activations, by autograd
    step = (G + damping)⁻¹ g (S + damping)⁻¹

G: products of the layer's inputs; S: how much two units pull on the same outputs, from the weights
that read them and how often both are active. How far to go along the step and the one before is
least squares on what they change at the landings. A step is made from all folds of the inputs but
one, a different one each time, and stays only if it lessens the error on that one; then the readers
are fitted again. The first fold has no say in any step: what the version of the model that was
fitted without it does on it is what the report may tell.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from subprune.program.precision import SINGLE, single
from subprune.statistics.arrival import factors, felt, felt_scale
from subprune.statistics.collectors import ConsumerStatistics
from subprune.statistics.columns import column_map
from subprune.statistics.consumers import consumer_weight, stored_weight

if TYPE_CHECKING:
    from subprune.fit.fit import Tensors
    from subprune.statistics.place import Place
    from subprune.statistics.runs import Run
    from subprune.structure.groups import Consumer, Group, Structure

__all__ = ["constant_of", "makers", "refine"]

_INPUT_DAMPING = 1e-2  # of the mean energy of a column
_UNIT_DAMPING = 0.05  # of the mean of S's diagonal
_SHRINKS = (1.0, 0.4, 0.15)  # of the best length, tried in turn
_LENGTH_INPUTS = 128  # that say how far to go: two numbers need no more

Solve = Callable[["Tensors"], "Tensors"]
"""Refits the readers to what the tensors' model computes."""


def makers(structure: Structure, group: Group) -> list[Consumer]:
    """The layers that make the group's units, if steps can be taken on all of them; else none.

    All their outputs are units, each in a row of its own, and all stand before the readers. No
    layer up to the last landing reads what one of those readers gave.
    """
    if group.narrowings or any(c.landing is None for c in group.reweightable):
        return []
    if len(group.reweightable) < len(group.consumers):
        return []
    layers = {layer.use.weight: layer for layer in structure.layers}
    producers = []
    for slot in group.slots:
        if (
            slot.role != "producer"
            or len(structure.program.values[structure.program.tensors[slot.tensor]].shape) < 2
        ):
            continue
        layer = layers.get(slot.tensor)
        if layer is None or not layer.reweightable or layer.groups > 1:
            return []
        if slot.dim != layer.use.out_dim or slot.units.tolist() != list(range(group.n_units)):
            return []
        producers.append(layer)
    first = min((c.use.op for c in group.consumers), default=0)
    if not producers or any(m.use.op >= first for m in producers) or _in_a_row(structure, group):
        return []
    return producers


def _in_a_row(structure: Structure, group: Group) -> bool:
    """Whether a layer before the last landing reads what a reader of the group gave.

    As in densely connected networks: what is wrong at the later layer is then the earlier one's
    doing as well, and it will be fitted to that again; steps that answer for it lead astray.
    """
    ops = structure.program.ops
    layers = {layer.use.op for layer in structure.layers}
    readers = {c.use.op for c in group.reweightable}
    last = max((c.landing.op for c in group.reweightable if c.landing is not None), default=-1)
    given: set[int] = set()  # values that come from a reader
    for op in ops[min(readers, default=0) : last + 1]:
        behind = not given.isdisjoint(op.inputs)
        if behind and op.index in layers:
            return True
        if behind or op.index in readers:
            given.update(op.outs)
    return False


class _Block:
    """The operations from the first maker to the landings, on the inputs of a run before them."""

    def __init__(self, place: Place, start: Run, aims: Mapping[int, Sequence[Tensor]]) -> None:
        self.place, self.start, self.aims = place, start, aims
        self.readers = sorted(place.group.reweightable, key=lambda c: c.use.op)
        self.stop = 1 + max(c.landing.op for c in self.readers if c.landing is not None)
        self.folds = start.folds

    def batches(self, folds: Sequence[int]) -> list[int]:
        """The numbers of the batches of some folds."""
        return [i for i, fold in enumerate(self.folds) if fold in folds]

    def landed(self, batch: int, tensors: Mapping[str, Tensor], grad: bool) -> dict[int, Tensor]:
        """By reader: its value at the landing, in a model with these tensors."""
        program, env = self.start.programs[batch], dict(self.start.envs[batch])
        wanted = {c.landing.value for c in self.readers if c.landing is not None}
        program.run(
            env,
            tensors,
            self.start.position,
            self.stop,
            keep=wanted.__contains__,
            override=self.start.override,
            grad=grad,
            wide=None if program.opaque else SINGLE,  # steps are smaller than half precision tells
        )
        return {c.use.op: env[c.landing.value] for c in self.readers if c.landing is not None}

    def wrong(self, reader: Consumer, batch: int, value: Tensor) -> tuple[Tensor, Tensor | None]:
        """ρ = √w·(s − ŝ) at a landing, and where it counts (None: everywhere).

        Where only ReLU reads a value that should be negative, being negative is enough.
        """
        landing = reader.landing
        assert landing is not None
        aim = self.aims[reader.use.op][batch]
        error, counts = aim - value, None
        if landing.rectified:
            # Below zero on both sides, nothing is wrong; above it only in the value, that much is.
            counts = (aim >= 0) | (value > 0)
            error = torch.where(aim >= 0, error, -value.clamp_min(0))
        valid = self.start.counted(landing.value, batch)
        if valid is not None:  # padding is never wrong
            error = torch.where(valid, error, 0)
            counts = valid if counts is None else counts & valid
        return felt(error, landing, self.place.metric), counts

    def loss(self, tensors: Mapping[str, Tensor], batches: Sequence[int]) -> float:
        """Σ‖ρ‖² over some batches."""
        total = 0.0
        for i in batches:
            values = self.landed(i, tensors, grad=False)
            total += sum(
                float(self.wrong(c, i, values[c.use.op])[0].double().square().sum())
                for c in self.readers
            )
        return total


def refine(
    place: Place,
    start: Run,
    aims: Mapping[int, Sequence[Tensor]],
    tensors: Tensors,
    layers: Sequence[Consumer],
    kept: Sequence[int],
    solve: Solve,
    steps: int,
) -> int:
    """Take steps on the makers `layers`, and `solve` after each; how many stayed.

    place: where the readers stand; start: the run before the first maker; aims: by reader, the
    dense values at its landing, batch by batch; tensors: of the model with the readers fitted.
    """
    block = _Block(place, start, aims)
    every = sorted(set(block.folds))
    folds = every[1:] or every  # the first has no say, unless there is no other
    directions: dict[str, Tensor] = {}
    inverses = [_inverse(layer, start, block.batches(folds)) for layer in layers]
    for step in range(steps):
        held = folds[step % len(folds)]  # each in its turn judges a step made from the others
        judged = block.batches([held])
        seen = block.batches([fold for fold in folds if fold != held]) or judged
        old = block.loss(tensors, judged)
        changes = _steps(block, tensors, layers, inverses, kept, seen)
        better = _best(block, tensors, [changes, directions], seen, judged, old)
        if better is None:
            return step
        # The step just taken is a direction for the next one, as in conjugate gradients.
        directions = {n: better[n] - tensors[n].to(better[n]) for n in better}
        moved = {**tensors, **{n: x.to(tensors[n]) for n, x in better.items()}}
        tensors = solve(moved)
    return steps


def _inverse(layer: Consumer, start: Run, batches: Sequence[int]) -> Tensor:
    """(G + damping)⁻¹ of a maker's inputs with a constant column, [d + 1, d + 1]."""
    source = start.fork()
    source.advance(layer.use.op)
    mapping = column_map(layer, source.programs[0], layer.name)
    collector = ConsumerStatistics(mapping, symmetric=True)
    for i in batches:
        counted = source.counted_rows(layer, i)
        collector.update(source.argument(layer.use.op, i), counted=counted)
    (sums,) = collector.result(consumer_weight(layer, source.tensors))
    # With a constant column c of ones: cᵀB are the column sums, cᵀc is the number of rows.
    count = torch.full((1,), float(sums.rows), dtype=torch.float64)
    top = torch.cat([sums.gram, sums.sums[:, None]], 1)  # [d, d + 1]
    gram = torch.cat([top, torch.cat([sums.sums, count])[None]])  # [d + 1, d + 1]
    # Each column is damped by its own energy, and one that is always zero by a little of the mean.
    diagonal = gram.diagonal()
    diagonal += _INPUT_DAMPING * diagonal.clamp_min(float(diagonal.mean()) * 1e-6)
    return torch.cholesky_inverse(torch.linalg.cholesky(gram))


def _steps(
    block: _Block,
    tensors: Tensors,
    layers: Sequence[Consumer],
    inverses: Sequence[Tensor],
    kept: Sequence[int],
    batches: Sequence[int],
) -> dict[str, Tensor]:
    """By tensor: the preconditioned step of the makers' weights and constants."""
    names = [layer.use.weight for layer in layers]
    biases = [constant_of(layer) for layer in layers]
    # What steps are taken on, in float32 at least, as leaves that gradients are summed in.
    leaves = {
        n: single(tensors[n]).detach().clone().requires_grad_()
        for n in [*names, *filter(None, biases)]
    }
    trial = {**tensors, **leaves}
    for i in batches:
        values = block.landed(i, trial, grad=True)
        with torch.enable_grad():
            losses = [
                block.wrong(c, i, values[c.use.op])[0].double().square().sum()
                for c in block.readers
            ]
            total = torch.stack(losses).sum() / 2
        total.backward()
    pulls = _pulls(block, tensors, layers, batches[0])
    changes: dict[str, Tensor] = {}
    for layer, inverse, bias in zip(layers, inverses, biases, strict=True):
        slope = leaves[layer.use.weight].grad
        assert slope is not None
        gradient = consumer_weight(layer, {layer.use.weight: slope})
        wanted = -gradient.flatten(1).double()  # [units, d]
        # Where the constant is that of a norm behind the layer, which multiplies by `factor`, its
        # gradient is made that of a constant in the layer itself, and the step is converted back.
        factor = (
            None if layer.landing is None else factors(layer.landing, tensors, layer.landing.before)
        )
        last = torch.zeros(len(wanted), 1, dtype=torch.float64)
        if bias is not None:
            shift = leaves[bias].grad
            assert shift is not None
            last = -shift.double()[:, None] * (1 if factor is None else factor[:, None])
        wide = torch.cat([wanted, last], 1)  # [units, d + 1]
        solved = _per_unit(pulls[layer.use.weight], wide @ inverse, kept)
        shape = consumer_weight(layer, tensors).shape
        changes[layer.use.weight] = stored_weight(layer, solved[:, :-1].reshape(shape))
        if bias is not None:
            change = solved[:, -1]
            changes[bias] = change if factor is None else change * factor
    return changes


def constant_of(layer: Consumer) -> str | None:
    return None if layer.landing is None else layer.landing.constant


def _per_unit(pull: Tensor, rows: Tensor, kept: Sequence[int]) -> Tensor:
    """(S + damping)⁻¹ on the rows [units, d] of the kept units; zero for the others."""
    chosen = torch.as_tensor(sorted(kept))
    block = pull[chosen][:, chosen].clone()  # [kept, kept]
    block.diagonal().add_(_UNIT_DAMPING * float(block.diagonal().mean()) or 1.0)
    result = torch.zeros_like(rows)
    result[chosen] = torch.linalg.solve(block, rows[chosen])
    return result


def _pulls(
    block: _Block, tensors: Tensors, layers: Sequence[Consumer], batch: int
) -> dict[str, Tensor]:
    """By maker: S, how much two units pull on the same outputs, [units, units].

    batch: where it is looked how often two units are active.
    """
    n = block.place.group.n_units
    together = torch.zeros(n, n, dtype=torch.float64)
    for reader in block.readers:
        weight = consumer_weight(reader, tensors).double()
        scale = felt_scale(reader.landing, tensors, block.place.metric)
        if scale is not None:
            weight = weight * scale.reshape(-1, *[1] * (weight.ndim - 1))
        units = torch.as_tensor(reader.columns)
        rows = weight.movedim(1, 0).flatten(1)  # [inputs, outputs · taps]
        mine = units >= 0
        # A unit that several inputs belong to pulls with the sum of their weights.
        by_unit = torch.zeros(n, rows.shape[1], dtype=torch.float64)
        by_unit.index_add_(0, units[mine], rows[mine])
        together += by_unit @ by_unit.T * _active(block, reader, n, batch)
    pulls = {}
    for layer in layers:
        factor = None if layer.landing is None else factors(layer.landing, tensors)
        pulls[layer.use.weight] = (
            together if factor is None else together * torch.outer(factor, factor)
        )
    return pulls


def _active(block: _Block, reader: Consumer, n: int, batch: int) -> Tensor:
    """How often two units are both different from zero where the reader sees them."""
    run = block.place.current.fork()
    run.advance(reader.use.op)
    x = run.argument(reader.use.op, batch)
    on = (x != 0).to(torch.float32).movedim(reader.use.product.features, -1)
    rows = on.reshape(-1, on.shape[-1])  # [places, inputs]: 1 where an input is not zero
    counted = run.counted_rows(reader, batch)
    if counted is not None and counted.numel() == len(rows):
        rows = rows[counted.reshape(-1)]
    both = (rows.T @ rows / len(rows)).double()  # [inputs, inputs], shares of the places
    units = torch.as_tensor(reader.columns)
    if len(units) != n or int(units.min()) < 0 or len(both) != n:  # not one input for each unit
        return torch.ones(n, n, dtype=torch.float64)
    shares = torch.zeros(n, n, dtype=torch.float64)
    shares[units[:, None], units[None]] = both
    return shares


def _first(block: _Block, batches: Sequence[int], inputs: int) -> list[int]:
    """The first of these batches that together hold that number of inputs; all, if they hold fewer."""
    values = block.aims[block.readers[0].use.op]
    ends = itertools.accumulate(len(values[i]) for i in batches)
    enough = next((n for n, end in enumerate(ends, 1) if end >= inputs), len(batches))
    return list(batches[:enough])


def _best(
    block: _Block,
    tensors: Tensors,
    candidates: Sequence[Mapping[str, Tensor]],
    seen: Sequence[int],
    judged: Sequence[int],
    old: float,
) -> dict[str, Tensor] | None:
    """The tensors moved along the steps, as far as lessens the error most; None if none does."""
    steps = [step for step in candidates if step]
    moved = [
        {
            **tensors,
            **{n: (tensors[n].double() + x).to(single(tensors[n])) for n, x in step.items()},
        }
        for step in steps
    ]
    # How far to go along each step: least squares on what the steps, all of them taken in full,
    # change at the landings. With the changes as columns of J: JᵀJ · lengths = Jᵀρ.
    q = len(steps)
    normal, wanted = torch.zeros(q, q, dtype=torch.float64), torch.zeros(q, dtype=torch.float64)
    for i in _first(block, seen, _LENGTH_INPUTS):
        here = block.landed(i, tensors, grad=False)
        there = [block.landed(i, m, grad=False) for m in moved]
        for reader in block.readers:
            op = reader.use.op
            error, counts = block.wrong(reader, i, here[op])
            assert reader.landing is not None
            changes = [felt(t[op] - here[op], reader.landing, block.place.metric) for t in there]
            if counts is not None:
                changes = [torch.where(counts, c, 0) for c in changes]
            flat = torch.stack([c.flatten() for c in changes]).double()  # Jᵀ [q, values]
            normal += flat @ flat.T
            wanted += flat @ error.flatten().double()
    # Solvable even where both steps are parallel, or one of them changes nothing.
    normal.diagonal().add_(1e-9 * float(normal.diagonal().mean()) + 1e-300)
    lengths = torch.linalg.solve(normal, wanted)
    # What is linear near here may not be as far away: shorter ones are tried, on inputs apart.
    for shrink in _SHRINKS:
        new = {
            n: tensors[n].double()
            + shrink * sum(float(a) * s[n] for a, s in zip(lengths, steps, strict=True) if n in s)
            for n in steps[0]
        }
        trial = {**tensors, **{n: x.to(tensors[n]) for n, x in new.items()}}
        if block.loss(trial, judged) < old:
            return new
    return None
