"""Scores of units: size of outgoing weights, activation × gradient, random numbers.

Weights, activations and gradients are those of the dense model in eval mode. A unit is seen at the
inputs of the layers that read it, through their columns; with several readers, their parts add.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from subprune.data.tokens import counted_labels
from subprune.errors import DataError
from subprune.program.ops import activation, argument, replaced
from subprune.program.precision import single
from subprune.program.program import Op, Override, Program, model_tensors
from subprune.select.selector import Ranking, Selector, View, order_by
from subprune.statistics.consumers import consumer_weight

if TYPE_CHECKING:
    from subprune.data.batch import Batch
    from subprune.statistics.calibration import Calibration
    from subprune.structure.groups import Consumer, Group

__all__ = [
    "ActGrad",
    "Random",
    "WeightNorm",
    "act_grad",
    "label_loss",
    "normalised",
    "uniform",
    "weight_counts",
    "weight_norms",
]


@dataclass(frozen=True)
class Random(Selector):
    """Uniform random scores."""

    name: ClassVar[str] = "random"
    needs_statistics: ClassVar[bool] = False

    @property
    def comparable(self) -> bool:
        return True

    def rank(self, view: View) -> Ranking:
        """By falling score."""
        scores = uniform(view)
        return Ranking(order_by(scores), scores)


@dataclass(frozen=True)
class WeightNorm(Selector):
    """ℓ1 norm of a unit's outgoing weights, in all or on average."""

    name: ClassVar[str] = "weight-norm"
    needs_runs: ClassVar[bool] = True
    runs_divide: ClassVar[bool] = True
    needs_statistics: ClassVar[bool] = False
    mean: bool = False  # of the weights, so that layers of different widths can be compared

    @property
    def comparable(self) -> bool:
        return self.mean

    def rank(self, view: View) -> Ranking:
        """By falling norm."""
        norms = weight_norms(view)
        if not self.mean:
            return Ranking(order_by(norms))
        scores = norms / weight_counts(view).clamp(min=1)
        return Ranking(order_by(scores), scores)


@dataclass(frozen=True)
class ActGrad(Selector):
    """|activation × gradient of the loss|."""

    name: ClassVar[str] = "act-grad"
    needs_labels: ClassVar[bool] = True
    needs_runs: ClassVar[bool] = True
    runs_divide: ClassVar[bool] = True
    needs_statistics: ClassVar[bool] = False
    unit_length: bool = False  # scores of ℓ2 length 1 in every layer, so that they can be compared

    @property
    def comparable(self) -> bool:
        return self.unit_length

    def rank(self, view: View) -> Ranking:
        """By falling score."""
        if not self.unit_length:
            return Ranking(order_by(act_grad(view)))
        scores = normalised(act_grad(view))
        return Ranking(order_by(scores), scores)


def uniform(view: View) -> Tensor:
    """Random scores from 0 to 1: [n_units]."""
    return torch.rand(view.n_units, generator=view.generator, dtype=torch.float64)


def weight_norms(view: View) -> Tensor:
    """Sum of |w| over the weights that read each unit: [n_units]."""
    return _over_weights(view, lambda w: w.abs())


def weight_counts(view: View) -> Tensor:
    """Number of weights that read each unit: [n_units]."""
    return _over_weights(view, torch.ones_like)


def _over_weights(view: View, f: Callable[[Tensor], Tensor]) -> Tensor:
    total = torch.zeros(view.n_units, dtype=torch.float64)
    for consumer in view.group.consumers:
        weight = consumer_weight(consumer, view.dense.tensors).double().cpu()
        columns = f(weight).transpose(0, 1).flatten(1).sum(1)  # [inputs]
        total += by_unit(columns, torch.as_tensor(consumer.columns), view.n_units)
    return total


def by_unit(x: Tensor, units: Tensor, n_units: int) -> Tensor:
    """Sums of x [..., inputs] over the inputs of each unit: [..., n_units]; inputs of unit -1 are
    left out.
    """
    mine = (units >= 0).nonzero().flatten()
    total = torch.zeros(*x.shape[:-1], n_units, dtype=x.dtype, device=x.device)
    return total.index_add(-1, units[mine].to(x.device), x.index_select(-1, mine.to(x.device)))


def normalised(scores: Tensor) -> Tensor:
    """Scores of ℓ2 length 1; all-zero scores stay zero."""
    length = float(scores.norm())
    return scores / length if length > 0 else scores


# ---- activation × gradient -----------------------------------------------------------------------


def act_grad(view: View) -> Tensor:
    """Mean over samples of |Σ over the unit's positions of activation × gradient of the
    cross-entropy|.

    One forward and backward pass of the dense model serves all groups.
    """
    setting = view.setting
    names = [g.name for g in setting.groups]
    key = f"act-grad {names}"
    if key not in setting.calibration.cache:
        setting.calibration.cache[key] = _act_grad(setting.calibration, setting.groups)
    products: Tensor = setting.calibration.cache[key][view.group.name]
    return products


def _act_grad(calibration: Calibration, groups: Sequence[Group]) -> dict[str, Tensor]:
    def one(number: int) -> dict[str, Tensor]:
        program, batch = calibration.programs[number], calibration.batches[number]
        products = _products(
            calibration, program, batch, {c.use.op for g in groups for c in g.consumers}
        )
        changes = {}
        for group in groups:
            change = sum(
                _unit_sums(products[c.use.op], c, batch.size, group.n_units)
                for c in group.consumers
            )
            assert isinstance(change, Tensor)
            changes[group.name] = change.abs().sum(0).cpu()
        return changes

    totals = {g.name: torch.zeros(g.n_units, dtype=torch.float64) for g in groups}
    for changes in calibration.ranks.each(one, range(len(calibration.batches))):
        for name, change in changes.items():
            totals[name] += change
    samples = sum(b.size for b in calibration.batches)
    return {name: total / samples for name, total in totals.items()}


def _products(
    calibration: Calibration, program: Program, batch: Batch, readers: set[int]
) -> dict[int, Tensor]:
    """Activation × gradient at the input of each of these operations."""
    activations: dict[int, Tensor] = {}

    def watch(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = activation(op)
        x = argument(op, name, args, kwargs)
        # Readers of the same value get a tensor of their own each, so that their gradients stay
        # apart.
        activations[op.index] = x.view_as(x) if x.requires_grad else x.detach().requires_grad_()
        args, kwargs = replaced(op, args, kwargs, {name: activations[op.index]})
        return op.func(*args, **kwargs)

    override: dict[int, Override] = dict.fromkeys(readers, watch)
    tensors = model_tensors(calibration.model, program)
    env = program.run(program.bind(batch.inputs), tensors, override=override, grad=True)
    with torch.enable_grad():
        output = program.fetch_output(program.answer, env, tensors)
        loss = label_loss(single(output), counted_labels(program, batch))
    order = list(activations)
    grads = torch.autograd.grad(loss, [activations[i] for i in order], allow_unused=True)
    return {
        i: torch.zeros_like(activations[i]) if g is None else (activations[i] * g).detach()
        for i, g in zip(order, grads, strict=True)
    }


def label_loss(output: Tensor, labels: Tensor | None) -> Tensor:
    """Cross-entropy of the output with the labels, summed over the samples.

    Classes lie in the last dimension (labels [N] or [N, length]) or in dimension 1 (labels [N,
    *spatial]).
    """
    if labels is None:
        raise DataError("the loss needs labels: give (inputs, labels) batches")
    if labels.is_floating_point():
        raise DataError(
            "the loss needs class numbers as labels, and these are fractions "
            f"({str(labels.dtype)[6:]})"
        )
    labels = labels.to(output.device)
    if labels.shape == output.shape[:-1]:
        return F.cross_entropy(output.flatten(0, -2), labels.flatten(), reduction="sum")
    if output.ndim > 2 and labels.shape == (output.shape[0], *output.shape[2:]):
        return F.cross_entropy(output, labels, reduction="sum")
    raise DataError(
        f"labels of shape {tuple(labels.shape)} do not fit the model's first output "
        f"{tuple(output.shape)}: there must be one class number for each sample; check the data, "
        "or pass a model that returns class scores first"
    )


def _unit_sums(product: Tensor, consumer: Consumer, size: int, n_units: int) -> Tensor:
    """Sums over each unit's positions, sample by sample: [samples, n_units]."""
    x = product.movedim(consumer.use.product.features, -1).double()
    if x.ndim > 2 and x.shape[0] != size and x.shape[1] == size:  # length first
        x = x.transpose(0, 1)
    samples = size if x.shape[0] % size == 0 else 1
    x = x.reshape(samples, -1, x.shape[-1]).sum(1)  # [samples, inputs]
    return by_unit(x, torch.as_tensor(consumer.units_of(x.shape[-1])), n_units)
