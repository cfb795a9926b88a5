"""After a cut: the numbers that modules keep about themselves follow their tensors."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import nn

from subprune.cutting.attention import NarrowMultiheadAttention

if TYPE_CHECKING:
    from subprune.cutting.masking import Keep
    from subprune.program.program import Program
    from subprune.structure.groups import Group

__all__ = ["sync_attributes", "sync_modules"]

# Numbers of heads: they shrink with the units, whatever multiple of them they are.
_HEADS = {
    "num_heads",
    "num_attention_heads",
    "n_head",
    "n_heads",
    "num_key_value_heads",
    "num_kv_heads",
    "n_kv_heads",
    "heads",
    "nhead",
    "num_head",
}
# Widths of all heads or hidden units together: they shrink if they equal the old width.
_WIDTHS = {
    "all_head_size",
    "inner_dim",
    "split_size",
    "inner_size",
    "attn_dim",
    "intermediate_size",
    "hidden_features",
    "ffn_dim",
    "d_ff",
    "mlp_dim",
    "inner_features",
}
# Query heads per head of keys and values: they shrink if the queries' heads are cut and the others
# are not.
_SHARES = {"num_key_value_groups", "n_rep", "num_queries_per_kv", "kv_groups"}
_HEAD_SIZES = {"head_dim", "head_size", "attention_head_size", "dim_head", "d_kv", "d_head"}
# Channels of each part that a map is split into (C2PSA of YOLO11 and YOLO26).
_PARTS = {"c", "hidden_channels"}
_WIDTHS_IF_NEEDED = {
    "embed_dim",
    "hidden_size",
    "dim",
    "d_model",
    "n_embd",
    "width",
    "channels",
    "planes",
}


def sync_modules(model: nn.Module, keeps: Sequence[tuple[Group, Keep]], program: Program) -> None:
    """Standard layers take their numbers from their tensors' new shapes,
    once all of these are cut.
    """
    cut = {slot.tensor for group, _ in keeps for slot in group.slots}
    named = [
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    ]
    changed = {id(x) for name, x in named if name in cut}
    # tied ones under all their names
    touched = {name.rpartition(".")[0] for name, x in named if id(x) in changed}
    for name in sorted(touched):
        _sync_module(model.get_submodule(name))
        parent = name.rpartition(".")[0]
        if isinstance(model.get_submodule(parent), nn.MultiheadAttention) and parent not in touched:
            _sync_module(model.get_submodule(parent))
    _sync_bare_norms(model, keeps, program)


def _sync_bare_norms(
    model: nn.Module, keeps: Sequence[tuple[Group, Keep]], program: Program
) -> None:
    """Norms without parameters have no tensor to take a number from: the recorded run says what is
    left.
    """
    kept: dict[tuple[int, int, int], Keep] = {}
    for group, keep in keeps:
        for n in group.narrowings:
            on = (n.units < 0) | keep[n.units]
            place = (n.op, n.value, n.dim)
            kept[place] = kept[place] & on if place in kept else on
    for (op, value, dim), on in kept.items():
        module: Any = model.get_submodule(program.ops[op].module)
        if isinstance(module, nn.LayerNorm | nn.RMSNorm) and module.weight is None:
            shape = list(module.normalized_shape)
            shape[dim - len(program.values[value].shape)] = int(on.sum())
            module.normalized_shape = tuple(shape)
        elif isinstance(module, nn.GroupNorm) and module.weight is None:
            _set_group_norm(module, int(on.sum()))
        # batch × channels may be one dimension here
        elif isinstance(module, nn.modules.batchnorm._NormBase):
            module.num_features = module.num_features * int(on.sum()) // on.size


def _set_group_norm(module: nn.GroupNorm, channels: int) -> None:
    if module.num_groups == module.num_channels:
        module.num_groups = channels
    module.num_channels = channels


def _sync_module(module: nn.Module) -> None:
    m: Any = module
    if isinstance(module, nn.modules.conv._ConvNd):
        _sync_conv(m)
    elif isinstance(module, nn.Linear):
        m.out_features, m.in_features = m.weight.shape
    elif isinstance(module, nn.modules.batchnorm._NormBase):
        known = m.weight if m.weight is not None else m.running_mean
        m.num_features = m.num_features if known is None else known.shape[0]
    elif isinstance(module, nn.LayerNorm | nn.RMSNorm):
        m.normalized_shape = tuple(m.weight.shape) if m.weight is not None else m.normalized_shape
    elif isinstance(module, nn.GroupNorm):
        _set_group_norm(m, m.weight.shape[0])
    elif isinstance(module, nn.Embedding | nn.EmbeddingBag):
        m.num_embeddings, m.embedding_dim = m.weight.shape
    elif isinstance(module, nn.PReLU):
        m.num_parameters = m.weight.shape[0]
    elif isinstance(module, nn.MultiheadAttention):
        NarrowMultiheadAttention.adopt(module)
    elif type(module).__name__ == "Conv1D" and hasattr(m, "nf"):
        m.nf = m.weight.shape[1]
        if hasattr(m, "nx"):
            m.nx = m.weight.shape[0]


def _sync_conv(m: Any) -> None:
    # depthwise: one group a channel, before and after
    if m.transposed:  # its weight is [inputs, outputs / groups, *kernel]
        if m.groups > 1 and m.in_channels == m.groups:
            m.groups = m.weight.shape[0]
        m.in_channels, m.out_channels = m.weight.shape[0], m.weight.shape[1] * m.groups
        return
    if m.groups > 1 and m.in_channels == m.groups:
        m.groups = m.weight.shape[0] // (m.out_channels // m.groups)
    m.out_channels, m.in_channels = m.weight.shape[0], m.weight.shape[1] * m.groups


def sync_attributes(model: nn.Module, group: Group, keep: Keep, *, eager: bool) -> None:
    """Numbers that hand-written modules keep about themselves, in the modules around the group's
    layers.
    """
    widths = (set() if group.kind == "stream" else _WIDTHS) | (
        _WIDTHS_IF_NEEDED if eager else set()
    )
    # Two kinds of numbers: how many units there are, and widths that several positions for each
    # unit add up to (heads × head size), by the widths that the layers had.
    k, n = int(keep.sum()), group.n_units
    old_widths: dict[int, int] = {}
    for slot in group.slots:
        if slot.role == "producer" and (slot.units >= 0).all():
            old_widths[slot.units.size] = int(keep[slot.units].sum())
            if slot.units.size % 3 == 0:  # a fused projection of queries, keys and values
                old_widths.setdefault(slot.units.size // 3, int(keep[slot.units].sum()) // 3)
    for module in _around(model, group):
        if isinstance(module, nn.MultiheadAttention):
            continue
        if eager and group.kind == "head":
            _own_config(module, n, k)
        for name, value in list(vars(module).items()):
            if not isinstance(value, int) or isinstance(value, bool):
                continue
            if group.kind == "head" and name in _HEADS and value % n == 0:
                setattr(module, name, value // n * k)
            elif value == n and _counts_units(name, group, eager):
                setattr(module, name, k)
            elif name in widths and value in old_widths:
                setattr(module, name, old_widths[value])


def _own_config(module: Any, n: int, k: int) -> None:
    """A config that all layers hold, and whose number of heads a layer's code reads when it runs,
    becomes a copy of the layer's own, with its number of heads.
    """
    config = vars(module).get("config")
    if not hasattr(config, "to_dict"):
        return
    heads = {name: x for name in _HEADS if isinstance(x := getattr(config, name, None), int)}
    if any(x % n == 0 for x in heads.values()):
        module.config = copy.copy(config)
        for name, x in heads.items():
            if x % n == 0:
                setattr(module.config, name, x // n * k)


def _counts_units(name: str, group: Group, eager: bool) -> bool:
    """Whether an attribute of this name, with the number of units as its value, says how many there
    are.
    """
    if group.kind == "head":
        return name in _SHARES and _queries_alone(group)
    return eager and name in _HEAD_SIZES | _PARTS


def _queries_alone(group: Group) -> bool:
    """Whether units of attention are heads of queries without keys and values of their own: a unit
    is made in no more places than it is read in. (A fused projection is one layer, too.)
    """
    made = [s for s in group.slots if s.role == "producer" and not s.tensor.endswith("bias")]
    if len(made) != 1 or not group.consumers:
        return False
    return int((made[0].units == 0).sum()) == int((group.consumers[0].columns == 0).sum())


def _around(model: nn.Module, group: Group) -> list[nn.Module]:
    """The modules that hold the producers, up to the one that holds consumers too; not the model
    itself.
    """
    around: dict[str, nn.Module] = {}
    readers = [c.name for c in group.consumers]
    for producer in group.producers:
        parts = producer.split(".")
        for depth in range(len(parts), 0, -1):
            name = ".".join(parts[:depth])
            module = model.get_submodule(name)
            if not isinstance(module, nn.Linear | nn.modules.conv._ConvNd | nn.Embedding):
                around[name] = module
            if any(r.startswith(name + ".") for r in readers):
                break  # what lies further out holds other groups too
    return list(around.values())
