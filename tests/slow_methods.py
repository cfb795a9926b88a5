"""Every compared method once more: plain hooks, full forward passes, loops and `lstsq`; slow and
obvious.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from method_nets import Readers
from torch import Tensor, nn

Data = Sequence[tuple[Tensor, Tensor]]
Gone = dict[str, set[int]]  # by layer, inputs that were removed with other groups


def n_units(readers: Readers) -> int:
    return int(readers[0][1].max()) + 1


def ranked(scores: Sequence[float]) -> list[int]:
    return sorted(range(len(scores)), key=lambda u: (-round(float(scores[u]), 12), u))


# ---- activations and weights ---------------------------------------------------------------------


def inputs_of(model: nn.Module, name: str, data: Data) -> list[Tensor]:
    """What the module receives, batch by batch."""
    seen: list[Tensor] = []
    hook = model.get_submodule(name).register_forward_pre_hook(
        lambda m, args: seen.append(args[0].detach())
    )
    with torch.no_grad():
        for x, _ in data:
            model(x)
    hook.remove()
    return seen


@dataclass
class Block:
    """One block of a layer: patches [rows, d], weight [d, m], unit of each column [d]."""

    rows: Tensor
    weight: Tensor
    units: Tensor


def blocks(module: nn.Module, inputs: list[Tensor], units: Tensor) -> list[Block]:
    x = torch.cat(inputs)
    if isinstance(module, nn.Linear):
        return [Block(x.reshape(-1, x.shape[-1]), module.weight.detach().T, units)]
    assert isinstance(module, nn.Conv2d)
    found = []
    taps = math.prod(module.kernel_size)
    for part, weight, own in zip(
        x.chunk(module.groups, 1),
        module.weight.detach().chunk(module.groups),
        units.chunk(module.groups),
        strict=True,
    ):
        rows = F.unfold(part, module.kernel_size, module.dilation, module.padding, module.stride)
        found.append(
            Block(
                rows.transpose(1, 2).reshape(-1, rows.shape[1]),
                weight.flatten(1).T,
                own.repeat_interleave(taps),
            )
        )
    return found


def kept_columns(block: Block, kept: Sequence[int], gone: set[int]) -> list[int]:
    """Columns of the kept units and of no unit, except what other groups removed (layers in one
    block only).
    """
    # only the layer `mix` reads two groups, and has 7 inputs
    taps = 1 if not gone else len(block.units) // 7
    return [
        j
        for j, u in enumerate(block.units.tolist())
        if u in kept or (u < 0 and j // taps not in gone)
    ]


def write(module: nn.Module, weights: list[Tensor]) -> None:
    """New weights [d, m], block by block."""
    with torch.no_grad():
        module.weight.copy_(torch.cat([w.T for w in weights]).reshape(module.weight.shape))


# ---- switching units off, scaling, reweighting ---------------------------------------------------


class NormOf(nn.Module):
    """A layer norm over some of the positions, zero elsewhere."""

    def __init__(self, norm: nn.LayerNorm, kept: list[int]) -> None:
        super().__init__()
        self.norm, self.kept = norm, kept

    def forward(self, x: Tensor) -> Tensor:
        own = F.layer_norm(
            x[..., self.kept],
            (len(self.kept),),
            self.norm.weight[self.kept],
            self.norm.bias[self.kept],
        )
        out = torch.zeros_like(x)
        out[..., self.kept] = own
        return out


def _times(factor: Tensor) -> Callable[[nn.Module, tuple[Tensor, ...]], tuple[Tensor]]:
    return lambda module, args: (args[0] * factor,)


def switched(
    model: nn.Module, readers: Readers, kept: Sequence[int], scale: Sequence[float]
) -> nn.Module:
    """A copy in which only the kept units are on, their outgoing weights multiplied."""
    model = copy.deepcopy(model)
    for name, units in readers:
        module = model.get_submodule(name)
        columns = units[: module.weight.shape[1]]  # of a grouped convolution, the first block's
        for j, u in enumerate(columns.tolist()):
            if u >= 0:
                with torch.no_grad():
                    module.weight[:, j] *= scale[u]
        on = torch.tensor(
            [1.0 if u < 0 or u in kept else 0.0 for u in units.tolist()], dtype=torch.float64
        )
        module.register_forward_pre_hook(
            _times(on if isinstance(module, nn.Linear) else on[:, None, None])
        )
    if hasattr(model, "norm"):
        model.norm = NormOf(model.norm, sorted(kept))
    return model


def reweighted(
    model: nn.Module,
    dense: nn.Module,
    readers: Readers,
    kept: Sequence[int],
    data: Data,
    target: str,
    gone: Gone,
) -> nn.Module:
    """A copy with least-squares weights for the kept units and those of other groups."""
    done = copy.deepcopy(model)
    for name, units in readers:
        new = []
        own = blocks(model.get_submodule(name), inputs_of(model, name, data), units)
        other = blocks(dense.get_submodule(name), inputs_of(dense, name, data), units)
        for b, a in zip(own, other, strict=True):
            goal = (a if target == "dense" else b).rows @ (a if target == "dense" else b).weight
            columns = kept_columns(b, kept, gone.get(name, set()))
            weight = torch.zeros_like(b.weight)
            weight[columns] = torch.linalg.lstsq(b.rows[:, columns], goal, driver="gelsd").solution
            new.append(weight)
        write(done.get_submodule(name), new)
    if hasattr(done, "norm"):
        done.norm = NormOf(done.norm, sorted(kept))
    return done


# ---- orders --------------------------------------------------------------------------------------


def input_change(
    model: nn.Module,
    dense: nn.Module,
    readers: Readers,
    data: Data,
    k: int,
    target: str,
    gone: Gone,
) -> list[int]:
    """Greedy, every gain by a least squares of its own."""
    pairs = []
    for name, units in readers:
        own = blocks(model.get_submodule(name), inputs_of(model, name, data), units)
        other = blocks(dense.get_submodule(name), inputs_of(dense, name, data), units)
        lost = gone.get(name, set())
        pairs += [
            (b, (a if target == "dense" else b), lost) for b, a in zip(own, other, strict=True)
        ]

    def left(kept: list[int]) -> float:
        total = 0.0
        for b, a, lost in pairs:
            goal = a.rows @ a.weight
            columns = kept_columns(b, kept, lost)
            if columns:
                goal = (
                    goal
                    - b.rows[:, columns]
                    @ torch.linalg.lstsq(b.rows[:, columns], goal, driver="gelsd").solution
                )
            total += float(goal.square().sum())
        return total

    kept: list[int] = []
    while len(kept) < k:
        rest = [u for u in range(n_units(readers)) if u not in kept]
        kept.append(min(rest, key=lambda u: (left([*kept, u]), u)))
    return kept


def weight_norm(model: nn.Module, readers: Readers, mean: bool) -> list[float]:
    scores = []
    for u in range(n_units(readers)):
        sizes = []
        for name, units in readers:
            module = model.get_submodule(name)
            for j in range(module.weight.shape[1]):
                if units[j] == u:
                    sizes += module.weight[:, j].detach().abs().flatten().tolist()
        scores.append(sum(sizes) / (len(sizes) if mean else 1))
    return scores


def wanda(model: nn.Module, readers: Readers, data: Data) -> list[float]:
    """|weight| × ‖input‖₂, one weight at a time."""
    scores = [0.0] * n_units(readers)
    for name, units in readers:
        module = model.get_submodule(name)
        for block in blocks(module, inputs_of(model, name, data), units):
            for j, u in enumerate(block.units.tolist()):
                for w in block.weight[j].tolist() if u >= 0 else ():
                    scores[u] += abs(w) * float(block.rows[:, j].norm())
    return scores


def contribution(model: nn.Module, readers: Readers, data: Data) -> list[int]:
    """All products of removed units written out, every time."""
    every = [
        block
        for name, units in readers
        for block in blocks(model.get_submodule(name), inputs_of(model, name, data), units)
    ]

    def given(units: list[int]) -> float:
        energy = 0.0
        for block in every:
            own = [j for j, u in enumerate(block.units.tolist()) if u in units]
            energy += float((block.rows[:, own] @ block.weight[own]).square().sum())
        return energy

    gone: list[int] = []
    while len(gone) < n_units(readers):
        rest = [u for u in range(n_units(readers)) if u not in gone]
        gone.append(min(rest, key=lambda u: (given([*gone, u]), -u)))
    return gone[::-1]


def independence(model: nn.Module, readers: Readers, data: Data, inputs: int) -> list[float]:
    """One map with one unit set to zero at a time."""
    scores = [0.0] * n_units(readers)
    for name, units in readers:
        maps = torch.cat(inputs_of(model, name, data))[:inputs]
        for x in maps:
            last = not isinstance(model.get_submodule(name), nn.Conv2d)
            rows = (x.movedim(-1, 0) if last else x).reshape(len(units), -1)
            table = torch.stack([rows[units == u].flatten() for u in range(n_units(readers))])
            whole = float(np.linalg.norm(table.numpy(), "nuc"))
            for u in range(len(table)):
                without = table.clone()
                without[u] = 0
                scores[u] += whole - float(np.linalg.norm(without.numpy(), "nuc"))
    return [round(s, 9) for s in scores]


def fluctuation(model: nn.Module, readers: Readers, data: Data) -> list[float]:
    """Variance × squared weights of each column, standardised; of a unit's columns, the mean."""
    columns: list[tuple[int, float]] = []
    for name, units in readers:
        module = model.get_submodule(name)
        for block in blocks(module, inputs_of(model, name, data), units):
            for j, u in enumerate(block.units.tolist()):
                if u >= 0:
                    spread = float(block.rows[:, j].var(correction=0))
                    columns.append((u, spread * float(block.weight[j].square().sum())))
    values = np.array([x for _, x in columns])
    standard = (values - values.mean()) / (values.std() or 1.0)
    owners = np.array([u for u, _ in columns])
    return [float(standard[owners == u].mean()) for u in range(n_units(readers))]


def compensated(
    model: nn.Module,
    dense: nn.Module,
    readers: Readers,
    kept: Sequence[int],
    data: Data,
    gone: Gone,
) -> nn.Module:
    """A copy whose biases give what the removed inputs gave the dense model on average."""
    done = copy.deepcopy(model)
    for name, units in readers:
        module = dense.get_submodule(name)
        shifts = []
        for block in blocks(module, inputs_of(dense, name, data), units):
            stay = kept_columns(block, kept, gone.get(name, set()))
            lost = [j for j in range(len(block.units)) if j not in stay]
            shifts.append(block.rows[:, lost].mean(0) @ block.weight[lost])
        with torch.no_grad():
            done.get_submodule(name).bias.copy_(module.bias + torch.cat(shifts))
    return done


def act_grad(model: nn.Module, readers: Readers, data: Data) -> Tensor:
    """One backward pass per sample."""
    total, samples = torch.zeros(n_units(readers), dtype=torch.float64), 0
    for xs, ys in data:
        for x, y in zip(xs, ys, strict=True):
            seen: dict[str, Tensor] = {}

            def keep(
                name: str, into: dict[str, Tensor]
            ) -> Callable[[nn.Module, tuple[Tensor, ...]], tuple[Tensor]]:
                def hook(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor]:
                    into[name] = args[0].clone()
                    into[name].retain_grad()
                    return (into[name],)

                return hook

            hooks = [
                model.get_submodule(n).register_forward_pre_hook(keep(n, seen)) for n, _ in readers
            ]
            F.cross_entropy(model(x[None]), y[None]).backward()
            change = torch.zeros(n_units(readers), dtype=torch.float64)
            for name, units in readers:
                product = seen[name].detach() * seen[name].grad
                dim = -1 if isinstance(model.get_submodule(name), nn.Linear) else 1
                for j, u in enumerate(units.tolist()):
                    if u >= 0:
                        change[u] += product.select(dim, j).sum()
            for h in hooks:
                h.remove()
            total += change.abs()
            samples += 1
    return total / samples


def greedy_fs(
    model: nn.Module, readers: Readers, data: Data, k: int, generator: torch.Generator
) -> list[int]:
    """Every candidate is a full forward pass of a masked copy."""
    n, kept = n_units(readers), []
    while len(kept) < k:
        x, y = data[int(torch.randint(len(data), (1,), generator=generator))]
        losses = {}
        for u in range(n):
            if u not in kept:
                trial = switched(model, readers, [*kept, u], [n / (len(kept) + 1)] * n)
                with torch.no_grad():
                    losses[u] = round(float(F.cross_entropy(trial(x), y)), 11)
        kept.append(min(losses, key=lambda u: (losses[u], u)))
    return kept


def sensitivities(model: nn.Module, readers: Readers, data: Data) -> list[float]:
    """One sum at a time."""
    found = [0.0] * n_units(readers)
    for name, units in readers:
        module = model.get_submodule(name)
        for block in blocks(module, inputs_of(model, name, data), units):
            for row in block.rows:
                for a in (row.clamp(min=0), (-row).clamp(min=0)):
                    for w in (block.weight.clamp(min=0), (-block.weight).clamp(min=0)):
                        terms = a[:, None] * w  # [d, m]
                        sums = terms.sum(0)
                        sums = torch.where(
                            sums < torch.finfo(torch.float32).eps, float("inf"), sums
                        )
                        shares = (terms / sums).amax(1).tolist()
                        for j, u in enumerate(block.units.tolist()):
                            if u >= 0:
                                found[u] = max(found[u], shares[j])
    return [round(s, 6) for s in found]


def sampling(
    model: nn.Module, readers: Readers, data: Data, k: int, generator: torch.Generator
) -> tuple[list[int], list[float]]:
    """Kept units and factors of the outgoing weights."""
    own = np.array(sensitivities(model, readers, data))
    p = own / own.sum() if own.sum() > 0 else np.full(len(own), 1 / len(own))
    m = 1
    while math.ceil(round(sum(1 - (1 - x) ** m for x in p), 9)) < min(k, (p > 0).sum()):
        m += 1
    rng = np.random.default_rng(int(torch.randint(2**62, (1,), generator=generator)))
    counts = rng.multinomial(m, p / p.sum())
    while (counts > 0).sum() > k:  # the least probable goes
        counts[
            max((u for u in range(len(p)) if counts[u] > 0), key=lambda u: (-round(p[u], 10), u))
        ] = 0
    while (counts > 0).sum() < k:  # the most probable comes
        counts[
            min((u for u in range(len(p)) if counts[u] == 0), key=lambda u: (-round(p[u], 10), u))
        ] = 1
    scale = [c / (m * x) if x > 0 else 1.0 for c, x in zip(counts, p, strict=True)]
    return [u for u in range(len(p)) if counts[u] > 0], scale if k < len(p) else [1.0] * len(p)
