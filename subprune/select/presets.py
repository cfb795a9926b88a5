"""Named methods: each is a preset of the parts, one registered function that ranks the units of a
group.
"""

from __future__ import annotations

from subprune.select.forward_selection import greedy_loss
from subprune.select.greedy import KeepOrder, greedy, stochastic_greedy
from subprune.select.registry import METHODS, Method, Ranker, Ranking, find_method, method, order_by
from subprune.select.scores import act_grad, normalised, uniform, weight_counts, weight_norms
from subprune.select.sensitivity import sampled

__all__ = ["METHODS", "Method", "Ranker", "Ranking", "find_method", "method"]


def _input_change(ranker: Ranker) -> KeepOrder:
    if ranker.epsilon is not None:
        k = ranker.k or ranker.n_units
        return stochastic_greedy(
            ranker.statistics, ranker.n_units, k, ranker.epsilon, ranker.generator
        )
    return greedy(ranker.statistics, ranker.n_units)


@method("layer-in-change", form="layer", statistics_only=True)
def layer_in_change(ranker: Ranker) -> KeepOrder:
    """Greedy on the reweighted input change, every layer in the dense model on its own."""
    return _input_change(ranker)


@method("seq-in-change", form="sequential", statistics_only=True)
def seq_in_change(ranker: Ranker) -> KeepOrder:
    """Greedy on the reweighted input change, on the activations of the model pruned so far."""
    return _input_change(ranker)


@method("asym-in-change", form="asymmetric", statistics_only=True)
def asym_in_change(ranker: Ranker) -> KeepOrder:
    """Greedy on the reweighted input change of the model pruned so far, aiming at the dense model's
    values.
    """
    return _input_change(ranker)


@method("layer-greedy-fs", needs_labels=True)
def layer_greedy_fs(ranker: Ranker) -> Ranking:
    """Greedy on the loss of one batch at a time, outgoing weights scaled (Ye et al. 2020)."""
    return greedy_loss(ranker)


@method("layer-greedy-fs-fd", needs_train_data=True)
def layer_greedy_fs_fd(ranker: Ranker) -> Ranking:
    """Greedy on the loss, as layer-greedy-fs, with batches drawn from a training set of its own."""
    return greedy_loss(ranker, ranker.setting.train_data)


@method("layer-sampling", allocate="sampling")
def layer_sampling(ranker: Ranker) -> Ranking:
    """Units drawn in proportion to their sensitivity (Liebenwein et al. 2020)."""
    return sampled(ranker)


@method("act-grad", needs_labels=True, allocate="score")
def global_act_grad(ranker: Ranker) -> Ranking:
    """|activation × gradient|, of length 1 in every layer, ranked over all layers (Molchanov et al.
    2017).
    """
    scores = normalised(act_grad(ranker))
    return Ranking(order_by(scores), scores)


@method("layer-act-grad", needs_labels=True)
def layer_act_grad(ranker: Ranker) -> Ranking:
    """|activation × gradient|, every layer on its own."""
    return Ranking(order_by(act_grad(ranker)))


@method("weight-norm", allocate="score")
def global_weight_norm(ranker: Ranker) -> Ranking:
    """Mean size of a unit's outgoing weights, ranked over all layers (He et al. 2014)."""
    scores = weight_norms(ranker) / weight_counts(ranker).clamp(min=1)
    return Ranking(order_by(scores), scores)


@method("layer-weight-norm")
def layer_weight_norm(ranker: Ranker) -> Ranking:
    """ℓ1 norm of a unit's outgoing weights, every layer on its own (Li et al. 2017)."""
    return Ranking(order_by(weight_norms(ranker)))


@method("random", allocate="score")
def global_random(ranker: Ranker) -> Ranking:
    """Uniform scores, ranked over all layers."""
    scores = uniform(ranker)
    return Ranking(order_by(scores), scores)


@method("layer-random")
def layer_random(ranker: Ranker) -> Ranking:
    """A uniform random order in every layer."""
    return Ranking(order_by(uniform(ranker)))
