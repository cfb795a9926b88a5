"""Cutting units out of a model: tensors get smaller, and module attributes follow."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from subprune.attention import NarrowMultiheadAttention
from subprune.errors import StructureError
from subprune.masking import Keep, keep_mask, mask
from subprune.program import Inputs, flat_tensors
from subprune.record import eval_mode, plain
from subprune.structure import Group, Structure

__all__ = ["cut", "prove", "set_tensor"]

# Numbers of heads: they shrink with the units, whatever multiple of them they are.
_HEADS = {
    "num_heads", "num_attention_heads", "n_head", "n_heads", "num_key_value_heads", "num_kv_heads", "n_kv_heads",
    "heads", "nhead", "num_head",
}  # fmt: skip
# Widths of all heads or hidden units together: they shrink if they equal the old width.
_WIDTHS = {
    "all_head_size", "inner_dim", "split_size", "inner_size", "attn_dim", "intermediate_size", "hidden_features",
    "ffn_dim", "d_ff", "mlp_dim", "inner_features",
}  # fmt: skip
_WIDTHS_IF_NEEDED = {"embed_dim", "hidden_size", "dim", "d_model", "n_embd", "width", "channels", "planes"}


def cut(
    model: nn.Module, group: Group, kept: Sequence[int], *, inplace: bool = False, program: Any = None
) -> nn.Module:
    """The model without the group's other units; physically smaller, otherwise ordinary.

    Works on a copy unless ``inplace=True``. `group` comes from `find_groups` on this model; pass the
    structure's ``program`` to have tied parameters and norms without parameters follow as well.
    """
    keep = keep_mask(group, kept)
    target = model if inplace else copy.deepcopy(model)
    cut_in_place(target, [(group, keep)], program)
    return target


def cut_in_place(model: nn.Module, keeps: Sequence[tuple[Group, Keep]], program: Any, *, eager: bool = False) -> None:
    """Shrink the tensors of groups, all at once, and everything that follows from it."""
    _cut_tensors(model, keeps)
    for group, keep in keeps:
        _sync_modules(model, group, keep, program)
        _sync_attributes(model, group, keep, eager=eager)


def set_tensor(model: nn.Module, name: str, value: Tensor) -> None:
    """Replace a parameter or buffer by name, wherever the model holds the same object (tied weights)."""
    owner, _, leaf = name.rpartition(".")
    module = model.get_submodule(owner)
    table = module._parameters if leaf in module._parameters else module._buffers
    old = table[leaf]
    new: Any = value.contiguous()
    if isinstance(old, nn.Parameter):
        new = nn.Parameter(new, requires_grad=old.requires_grad)
    for other in model.modules():
        for entries in (other._parameters, other._buffers):
            for key, x in entries.items():
                if x is old:
                    entries[key] = new


def _cut_tensors(model: nn.Module, keeps: Sequence[tuple[Group, Keep]]) -> None:
    """A dimension may hold units of several groups (a concatenation): what all of them keep stays."""
    left: dict[str, dict[int, Keep]] = {}
    for group, keep in keeps:
        for slot in group.slots:
            on = (slot.units < 0) | keep[slot.units]
            dims = left.setdefault(slot.tensor, {})
            dims[slot.dim] = dims[slot.dim] & on if slot.dim in dims else on
    named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for name, dims in left.items():
        x = named[name].detach()
        for dim, on in dims.items():
            x = x.index_select(dim, torch.as_tensor(np.flatnonzero(on), device=x.device))
        set_tensor(model, name, x)


def _sync_modules(model: nn.Module, group: Group, keep: Keep, program: Any) -> None:
    """Standard layers take their numbers from their tensors' new shapes."""
    touched = {slot.tensor.rpartition(".")[0] for slot in group.slots}
    for name in touched:
        _sync_module(model.get_submodule(name))
        parent = name.rpartition(".")[0]
        if isinstance(model.get_submodule(parent), nn.MultiheadAttention):
            _sync_module(model.get_submodule(parent))
    for n in group.narrowings if program is not None else ():
        module = model.get_submodule(program.ops[n.op].module)
        if isinstance(module, nn.LayerNorm | nn.RMSNorm) and module.weight is None:
            shape = list(module.normalized_shape)
            shape[n.dim - len(program.values[n.value].shape)] = int(((n.units < 0) | keep[n.units]).sum())
            module.normalized_shape = tuple(shape)


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
        if m.num_groups == m.num_channels:
            m.num_groups = m.weight.shape[0]
        m.num_channels = m.weight.shape[0]
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
    if m.transposed:
        m.in_channels, m.out_channels = m.weight.shape[0], m.weight.shape[1] * m.groups
        return
    if m.groups > 1 and m.weight.shape[1] == 1:  # depthwise: one group a channel, before and after
        m.groups = m.weight.shape[0] // (m.out_channels // m.groups)
    m.out_channels, m.in_channels = m.weight.shape[0], m.weight.shape[1] * m.groups


def _sync_attributes(model: nn.Module, group: Group, keep: Keep, *, eager: bool) -> None:
    """Numbers that hand-written modules keep about themselves, in the modules around the group's layers."""
    widths = (set() if group.kind == "stream" else _WIDTHS) | (_WIDTHS_IF_NEEDED if eager else set())
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
        for name, value in list(vars(module).items()):
            if not isinstance(value, int) or isinstance(value, bool):
                continue
            if group.kind == "head" and name in _HEADS and value % n == 0:
                setattr(module, name, value // n * k)
            elif name in widths and value in old_widths:
                setattr(module, name, old_widths[value])


def _around(model: nn.Module, group: Group) -> list[nn.Module]:
    """The modules that hold the producers, up to the one that holds consumers too; not the model itself."""
    found: dict[str, nn.Module] = {}
    readers = [c.name for c in group.consumers]
    for producer in group.producers:
        parts = producer.split(".")
        for depth in range(len(parts), 0, -1):
            name = ".".join(parts[:depth])
            module = model.get_submodule(name)
            if not isinstance(module, nn.Linear | nn.modules.conv._ConvNd | nn.Embedding):
                found[name] = module
            if any(r.startswith(name + ".") for r in readers):
                break
    return list(found.values())


def prove(
    model: nn.Module,
    structure: Structure,
    kept: Mapping[str, Sequence[int]],
    inputs: Inputs,
    tolerance: float = 1e-5,
) -> nn.Module:
    """Cut a copy of the model and check that it equals the masked twin on `inputs`; return the copy.

    Raises `StructureError` with the name of the group and the operation that broke it. The model given is
    not touched.
    """
    expected = mask(model, structure, kept)(inputs)
    problem: Exception | str = "no attempt was made"
    for eager in (False, True):
        small = copy.deepcopy(model)
        keeps = [(structure[name], keep_mask(structure[name], units)) for name, units in kept.items()]
        cut_in_place(small, keeps, structure.program, eager=eager)
        try:
            problem = _difference(expected, _outputs(small, inputs), tolerance)
        except Exception as error:
            problem = error
        if not problem:
            return small
    raise StructureError(_broken(structure, kept, problem))


def _outputs(model: nn.Module, inputs: Inputs) -> list[Tensor]:
    with eval_mode(model), torch.no_grad():
        return flat_tensors(plain(model(*inputs[0], **inputs[1])))


def _difference(expected: Sequence[Tensor], found: Sequence[Tensor], tolerance: float) -> str:
    """Empty if all outputs agree relative to their largest entry."""
    for i, (a, b) in enumerate(zip(expected, found, strict=True)):
        if a.shape != b.shape:
            return f"output {i} has shape {tuple(b.shape)}, the masked model's has {tuple(a.shape)}"
        if not a.is_floating_point() or a.numel() == 0:
            continue
        scale = float(a.abs().max()) or 1.0
        gap = float((a - b).abs().max()) / scale
        if not gap <= tolerance:
            return f"output {i} of the cut model differs from the masked one by {gap:.1e} (relative)"
    return ""


def _broken(structure: Structure, kept: Mapping[str, Sequence[int]], problem: Exception | str) -> str:
    text = str(problem).strip().split("\n")[0]
    names = ", ".join(repr(n) for n in kept)
    kind = f"{type(problem).__name__}: " if isinstance(problem, Exception) else ""
    ops = sorted({structure.program.ops[n.op].where for name in kept for n in structure[name].narrowings})
    where = f" (norms or means on the way: {', '.join(ops[:3])})" if ops else ""
    return f"group {names} cannot be cut: {kind}{text}{where}; the model was left as it is"
