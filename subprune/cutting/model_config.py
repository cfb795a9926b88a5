"""A transformers model's ``config`` follows its layers, where it can say what they have become.

Which number of the config describes which groups is found out by changing it: see
`subprune.cutting.skeleton`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from subprune.cutting.skeleton import Blueprint, Shapes, shapes_of

if TYPE_CHECKING:
    from subprune.structure.groups import Group, Structure

__all__ = ["Field", "Fields", "check_promise", "find_fields", "sync_config", "unloadable"]

# Numbers of heads: those of queries, and those of keys and values, shrink by the same share.
_HEADS = (
    "num_attention_heads",
    "num_heads",
    "n_head",
    "n_heads",
    "encoder_attention_heads",
    "decoder_attention_heads",
)
_KEY_VALUE_HEADS = ("num_key_value_heads", "num_kv_heads")
# A config without one takes the head size from the width and the heads.
_HEAD_SIZES = ("head_dim", "d_kv")
_STREAMS = ("hidden_size", "d_model", "n_embd", "dim")
_WIDTHS = (
    "intermediate_size",
    "ffn_dim",
    "d_ff",
    "n_inner",
    "encoder_ffn_dim",
    "decoder_ffn_dim",
    "hidden_dim",
    "ffn_hidden_size",
    "mlp_dim",
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
)
_TRIAL_WIDTH = 6  # of a field that holds no number


@dataclass(frozen=True, kw_only=True)
class Field:
    """A number of the config, with those that change with it, and the groups it describes."""

    section: str  # of the config; empty: the config itself
    kind: str  # "head" or "neuron"
    groups: tuple[str, ...]
    units: int  # of each of them
    factors: Mapping[str, int | None]  # name → its value for each unit; None: the number itself
    fixed: Mapping[str, int]  # what must be said too: the size of a head
    numbers: tuple[int, ...] = ()  # of units that the config's own checks take; none: any

    def values(self, k: int) -> dict[str, int]:
        """What the config says where each group has k units."""
        scaled = {name: k if f is None else f * k // self.units for name, f in self.factors.items()}
        return {**scaled, **self.fixed}


@dataclass(frozen=True)
class Fields:
    """All of what a config can say about groups."""

    each: tuple[Field, ...] = ()
    problem: str = ""  # why the config says nothing

    def of(self, group: str) -> Field | None:
        """The field that describes a group."""
        return next((f for f in self.each if group in f.groups), None)


def find_fields(model: nn.Module, structure: Structure) -> Fields | None:
    """What the model's config can say; None if the model has none."""
    blueprint = Blueprint.of(model)
    if blueprint is None:
        return None
    shapes = blueprint.shapes()
    if shapes is None:
        return Fields(problem=f"no {type(model).__name__} can be built from its config alone")
    if shapes != shapes_of(model):
        return Fields(problem="the model's layers differ already from what its config says")
    groups = [g for g in structure.groups if g.kind != "stream"]
    heads = [g for g in groups if g.kind == "head"]
    others = [g for g in groups if g.kind != "head"]
    fields: list[Field] = []
    for section, content in blueprint.sections.items():
        trials = [*_width_trials(section, content), *_head_trials(section, content, heads)]
        for trial in trials:
            able = heads if trial.kind == "head" else others
            field = _tried(trial, blueprint, shapes, able)
            # the first number that describes a group is the one that is written
            if field is not None and not any(set(f.groups) & set(field.groups) for f in fields):
                fields.append(field)
    return Fields(tuple(fields))


# ---- experiments ---------------------------------------------------------------------------------


def _width_trials(section: str, content: Mapping[str, Any]) -> Iterable[Field]:
    """Fields that may be the width of hidden layers; which groups they describe is not known yet."""
    for name in _WIDTHS:
        value = content.get(name, "")
        if value is None:
            yield Field(
                section=section, kind="neuron", groups=(), units=0, factors={name: None}, fixed={}
            )
        elif isinstance(value, int) and value > 1:
            yield Field(
                section=section,
                kind="neuron",
                groups=(),
                units=value,
                factors={name: value},
                fixed={},
            )


def _head_trials(
    section: str, content: Mapping[str, Any], groups: Sequence[Group]
) -> Iterable[Field]:
    """Numbers of heads, with the size of a head given next to them."""
    for name in _HEADS:
        heads = content.get(name)
        if not isinstance(heads, int):
            continue
        # A head keeps its size when there are fewer: where the config derives it from the width of
        # the stream, it has to say it from then on.
        width = next((content[n] for n in _STREAMS if isinstance(content.get(n), int)), 0)
        size = {n: content[n] for n in _HEAD_SIZES if isinstance(content.get(n), int)}
        for units in sorted({g.n_units for g in groups if heads % g.n_units == 0}):
            shared = {n: content[n] for n in _KEY_VALUE_HEADS if isinstance(content.get(n), int)}
            factors = {n: x for n, x in {name: heads, **shared}.items() if x % units == 0}
            fixed = size or {"head_dim": width // heads}
            yield Field(
                section=section, kind="head", groups=(), units=units, factors=factors, fixed=fixed
            )


def _tried(
    trial: Field, blueprint: Blueprint, shapes: Shapes, groups: Sequence[Group]
) -> Field | None:
    """The trial with the groups that it describes; None if it describes none, or more."""
    # About half of the units, a number that the config takes; a width that is not said gets one.
    numbers = _numbers(trial, blueprint)
    fewer = [k for k in numbers if k < trial.units]
    k = (
        _TRIAL_WIDTH
        if not trial.units
        else min(fewer, key=lambda k: abs(2 * k - trial.units), default=0)
    )
    if not k:
        return None
    new = blueprint.changed(trial.section, trial.values(k)).shapes()
    if new is None or new.keys() != shapes.keys():
        return None
    # Every dimension that is of another length now; all of them must belong to groups that have
    # become what they would be with k units.
    changed = {
        (name, dim): size
        for name, shape in new.items()
        for dim, size in enumerate(shape)
        if len(shape) == len(shapes[name]) and size != shapes[name][dim]
    }
    speaks_of = [g for g in groups if _follows(g, k, trial.units, changed)]
    covered = {(s.tensor, s.dim) for g in speaks_of for s in g.slots}
    if not speaks_of or not changed.keys() <= covered:
        return None
    units = speaks_of[0].n_units
    allowed = numbers if trial.kind == "head" else ()
    names = tuple(g.name for g in speaks_of)
    return Field(
        section=trial.section,
        kind=trial.kind,
        groups=names,
        units=units,
        factors=trial.factors,
        fixed=trial.fixed,
        numbers=allowed,
    )


def _numbers(trial: Field, blueprint: Blueprint) -> tuple[int, ...]:
    """Numbers of units that the config's own checks take; of widths one that stands for all."""
    if trial.kind != "head":
        return (trial.units // 2, trial.units)
    return tuple(
        k
        for k in range(1, trial.units + 1)
        if blueprint.changed(trial.section, trial.values(k)).accepted()
    )


def _follows(group: Group, k: int, units: int, changed: Mapping[tuple[str, int], int]) -> bool:
    """Whether every tensor of a group has become what it is with k units."""
    if units and group.n_units != units:
        return False
    for slot in group.slots:
        held = np.bincount(slot.units[slot.units >= 0], minlength=group.n_units)
        fixed = slot.units.size - int(held.sum())
        if held.min() != held.max():
            return False
        if changed.get((slot.tensor, slot.dim)) != fixed + k * int(held[0]):
            return False
    return True


# ---- after a cut ---------------------------------------------------------------------------------


def sync_config(
    model: nn.Module,
    structure: Structure,
    kept: Mapping[str, Sequence[int]],
    fields: Fields | None,
) -> list[str]:
    """Write new numbers of heads and hidden units into ``model.config``; what it cannot express
    comes back in words.

    fields: what `find_fields` says of the model before the cut.
    """
    if fields is None:
        return []
    cut = {n: len(units) for n, units in kept.items() if len(units) < structure[n].n_units}
    notes: list[str] = []
    uneven: list[tuple[Field, dict[str, int]]] = []
    for field in fields.each:
        numbers = {name: cut.get(name, field.units) for name in field.groups}
        if len(set(numbers.values())) == 1:
            _write(model, field.section, field.values(next(iter(numbers.values()))))
        else:
            uneven.append((field, numbers))
    if uneven and not _written_by_layer(model, uneven):
        notes += [_uneven(field, numbers, cut) for field, numbers in uneven]
    return [*notes, *_unsaid(structure, cut, fields)]


def unloadable(model: nn.Module) -> str:
    """In words, why ``from_pretrained`` could not load the model as it is; empty if it could."""
    blueprint = Blueprint.of(model)
    if blueprint is None:
        return f"a {type(model).__name__} has no config in the manner of transformers"
    shapes = blueprint.shapes()
    if shapes is None:
        return f"no {type(model).__name__} can be built from its config alone"
    actual = shapes_of(model)
    name = next((n for n in actual if shapes.get(n) != actual[n]), None)
    if name is None:
        return ""
    return f"its config cannot say that {name} has the shape {actual[name]}"


def check_promise(model: nn.Module) -> list[str]:
    """In words, that a config does not say what it was to say; nothing for models without one."""
    why = unloadable(model) if Blueprint.of(model) is not None else ""
    return [f"from_pretrained cannot load the result: {why}; use subprune.save"] if why else []


def _write(model: nn.Module, section: str, values: Mapping[str, int]) -> None:
    """Set the values in the config, and in the copies of it that parts of the model hold."""
    top: Any = model.config
    owner = getattr(top, section) if section else top
    held = {id(c): c for m in model.modules() if (c := getattr(m, "config", None)) is not None}
    for config in {id(owner): owner, **held}.values():
        if type(config) is type(owner):
            for name, value in values.items():
                setattr(config, name, value)


def _written_by_layer(model: nn.Module, uneven: Sequence[tuple[Field, Mapping[str, int]]]) -> bool:
    """Write numbers that differ from layer to layer, where the installed transformers builds such
    models; whether it does.
    """
    config: Any = model.config
    if not hasattr(type(config), "per_layer_config") or any(f.section for f, _ in uneven):
        return False
    # By the number of the layer in the names of its groups: "model.layers.3.mlp" is of layer 3.
    by_layer: dict[int, dict[str, int]] = {}
    for field, numbers in uneven:
        for name, k in numbers.items():
            layer = next((int(part) for part in name.split(".") if part.isdigit()), None)
            if layer is None:
                return False
            by_layer.setdefault(layer, {}).update(field.values(k))
    blueprint = Blueprint.of(model)
    if blueprint is None:
        return False
    content = {str(layer): values for layer, values in by_layer.items()}
    if blueprint.changed("", {"per_layer_config": content}).shapes() != shapes_of(model):
        return False
    config.per_layer_config = by_layer
    return True


def _unsaid(structure: Structure, cut: Mapping[str, int], fields: Fields) -> list[str]:
    """What was cut and no field describes."""
    silent = {name: k for name, k in cut.items() if fields.of(name) is None}
    kinds = {structure[name].kind for name in silent}
    if fields.problem and silent:
        return [f"the config still names the old numbers of units: {fields.problem}"]
    notes = []
    if "head" in kinds:
        notes.append(
            "the config cannot express fewer heads of the same size; the layers have "
            "them, the config does not"
        )
    if kinds - {"head", "stream"}:
        rest = {n: k for n, k in silent.items() if structure[n].kind not in ("head", "stream")}
        notes.append(f"the config has no place for numbers of hidden units ({_shown(rest)})")
    if "stream" in kinds:
        notes.append("the config still names the old width of the residual stream")
    return notes


def _uneven(field: Field, numbers: Mapping[str, int], cut: Mapping[str, int]) -> str:
    what = "heads" if field.kind == "head" else "hidden units"
    shown = _shown({name: numbers[name] for name in numbers if name in cut})
    return (
        f"the config has no place for numbers of {what} that differ from layer to layer ({shown})"
    )


def _shown(numbers: Mapping[str, int]) -> str:
    shown = ", ".join(f"{n}: {k}" for n, k in list(numbers.items())[:3])
    return f"{shown}{', …' if len(numbers) > 3 else ''}"
