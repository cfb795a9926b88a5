"""`register_rule`: operations and modules that the library does not know, taught from outside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import nn

from subprune.errors import OptionError, closest
from subprune.program.ops import NORMS, PRODUCTS, Norm, Product, named_kind
from subprune.program.record import MODULES
from subprune.structure.flow import RULES, Flow, Rule
from subprune.structure.rules import index, linear, shape  # noqa: F401  (importing registers the rules)

if TYPE_CHECKING:
    from subprune.program.program import Op

__all__ = ["register_rule", "unregister_rule"]

POINTWISE, CHANNELS = "pointwise", "channels"


def register_rule(
    operation: Any,
    like: str | Product | Norm | Rule,
    *,
    parameters: Mapping[str, int] | None = None,
    dim: int | None = None,
) -> None:
    """Say what an operation, or a module, that the library does not know does to dimensions.

    Every cut is still checked: where the smaller model does not compute what the larger one does
    with the units switched off, the group is refused by name, and the rule was wrong.

    Args:
        operation: an operation of ``torch.library``, itself or by name such as "mylib::mixture"; or
            a class of modules, whose forward is then taken as one operation.
        like: "pointwise", where every position of the output depends on the same position of the
            inputs; "channels", where every channel (dimension 1) makes one channel of the output;
            the name of an operation that does the same to dimensions, such as "linear"; a
            `subprune.Product` for an activation times a weight, which is then refitted; a
            `subprune.Norm`; or a function of the flow of labels and the operation.
        parameters: of a module: its parameters and buffers that have one entry for each unit, with
            the dimension of each, such as ``{"scale": 0}``.
        dim: of a module: the dimension of its input that these parameters go with; by default the
            last one, with "channels" the second.
    """
    if isinstance(operation, type) and issubclass(operation, nn.Module):
        rule = _module_rule(operation, like, dict(parameters or {}), dim)
        if operation in MODULES:
            raise OptionError(_known(operation.__name__))
        MODULES[operation] = rule
        return
    if parameters is not None or dim is not None:
        raise OptionError(
            "parameters and dim are for modules; an operation's tensors are its arguments: name "
            "them with like=subprune.Product(...) or subprune.Norm(...)"
        )
    kind = _kind(operation)
    if kind in RULES:
        raise OptionError(_known(kind))
    if isinstance(like, Product):
        PRODUCTS[kind], RULES[kind] = like, RULES["convolution" if like.slides else "linear"]
    elif isinstance(like, Norm):
        NORMS[kind], RULES[kind] = like, RULES[_norm_of(like)]
    else:
        RULES[kind] = _rule(kind, like)
        _share_rows(kind, like)


def unregister_rule(operation: Any) -> None:
    """Forget what `register_rule` was told of an operation or a class of modules."""
    if isinstance(operation, type):
        gone = MODULES.pop(operation, None)
    else:
        kind = _kind(operation)
        gone = [table.pop(kind) for table in (RULES, PRODUCTS, NORMS) if kind in table]
    if not gone:
        name = getattr(operation, "__name__", operation)
        raise OptionError(f"there is no rule for {name!r}; give what register_rule was given")


def _known(name: str) -> str:
    return (
        f"there is a rule for {name!r} already; give the operation another name, or call "
        "subprune.unregister_rule first"
    )


def _kind(operation: Any) -> str:
    """The name by which rules are found."""
    # mylib::mixture, mylib.mixture.default, and what torch.library.custom_op gives
    text = operation if isinstance(operation, str) else getattr(operation, "_qualname", operation)
    parts = str(text).replace("::", ".").split(".")
    name = parts[1] if len(parts) > 1 else parts[0]
    if not name.isidentifier():
        raise OptionError(
            f"{operation!r:.80} is not an operation; give one of torch.library, its name such as "
            "'mylib::mixture', or a class of modules"
        )
    return named_kind(parts[0], name) if len(parts) > 1 else name


def _rule(name: str, like: Any) -> Rule:
    if like == POINTWISE:
        return RULES["relu"]
    if like == CHANNELS:
        return _channels
    if isinstance(like, str):
        if like not in RULES:
            known = [POINTWISE, CHANNELS, *RULES]
            raise OptionError(
                f"rule of {name!r}: like={like!r}: {closest(like, known)}allowed are "
                f"{POINTWISE!r}, {CHANNELS!r}, and operations that have a rule, such as 'linear', "
                "'convolution', 'layer_norm', 'mean'"
            )
        return RULES[like]
    if callable(like) and not isinstance(like, type):
        rule: Rule = like
        return rule
    raise OptionError(
        f"rule of {name!r}: like={like!r:.80}: allowed are {POINTWISE!r}, {CHANNELS!r}, the name "
        "of an operation, a subprune.Product, a subprune.Norm, or a function of flow and operation"
    )


def _share_rows(kind: str, like: Any) -> None:
    """What the table of operations says of the other holds for this one, too."""
    if isinstance(like, str) and like in PRODUCTS:
        PRODUCTS[kind] = PRODUCTS[like]
    if isinstance(like, str) and like in NORMS:
        NORMS[kind] = NORMS[like]


def _norm_of(norm: Norm) -> str:
    """A known norm that runs over the same dimensions."""
    if norm.stored is not None:
        return "batch_norm"
    return "layer_norm" if norm.sizes is not None else "group_norm"


def _channels(flow: Flow, op: Op) -> None:
    """Dimension 1 is carried over; what becomes of the others is not known, so they stay."""
    x = op.inputs[0]
    dims = flow.dims(x)
    for place, d in enumerate(dims):
        if place != 1:
            flow.freeze(op, d, "the operation is known by its channels alone")
    for out in op.outs:
        rank = len(flow.shape(out))
        flow.put(out, [dims[1] if place == 1 else None for place in range(rank)])


def _module_rule(
    kind: type[nn.Module], like: Any, parameters: dict[str, int], dim: int | None
) -> Rule:
    """A rule for a module as one operation, whose parameters follow a dimension of its input."""
    if isinstance(like, Product | Norm) or (isinstance(like, str) and like in {*PRODUCTS, *NORMS}):
        raise OptionError(
            f"rule of {kind.__name__}: a module is one operation, whose weights cannot be refitted; "
            f"allowed are {POINTWISE!r}, {CHANNELS!r} or a function. A product needs no rule "
            "where the module calls operations of PyTorch, or one that has a rule"
        )
    rule = _rule(kind.__name__, like)
    place = dim if dim is not None else 1 if like == CHANNELS else -1

    def module_rule(flow: Flow, op: Op) -> None:
        rule(flow, op)
        label = flow.dims(op.inputs[0])[place]
        for name, axis in parameters.items():
            slot = f"{op.func.name}.{name}", axis % _rank(flow, op, name)
            flow.match(op, [label, (flow.slots[slot],)], "belongs to a module of a rule of its own")

    return module_rule


def _rank(flow: Flow, op: Op, name: str) -> int:
    tensor = f"{op.func.name}.{name}"
    if (tensor, 0) not in flow.slots:
        known = [t for t, d in flow.slots if d == 0 and t.startswith(f"{op.func.name}.")]
        raise OptionError(
            f"the rule of {op.func.name!r} names {name!r}, which is not a parameter or buffer of "
            f"it; there are {', '.join(t.removeprefix(f'{op.func.name}.') for t in known) or 'none'}"
        )
    return sum(t == tensor for t, _ in flow.slots)
