"""The table of operations: what it says about an operation is what the operation does."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import subprune
from subprune.program.ops import (
    activation,
    argument,
    narrowed,
    norm,
    product,
    replaced,
    window,
)
from subprune.program.program import Op, model_tensors
from subprune.program.record import record


class Call(nn.Module):
    """A function of the input and of parameters of its own."""

    def __init__(self, function: Callable[..., Tensor], *shapes: tuple[int, ...]) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.own = nn.ParameterList(torch.randn(s, generator=generator) for s in shapes)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, *self.own)


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


PRODUCTS: dict[str, tuple[nn.Module, Tensor]] = {
    "linear": (nn.Linear(4, 3), normal(2, 5, 4)),
    "linear without bias": (nn.Linear(4, 3, bias=False), normal(2, 4)),
    "linear by keywords": (
        Call(lambda x, w, b: F.linear(bias=b, weight=w, input=x), (3, 4), (3,)),
        normal(2, 4),
    ),
    "mm": (Call(torch.mm, (4, 3)), normal(2, 4)),
    "addmm": (Call(lambda x, w, b: torch.addmm(b, x, w), (4, 3), (3,)), normal(2, 4)),
    "addmm with factors": (
        Call(lambda x, w, b: torch.addmm(b, x, w, beta=0.5, alpha=2), (4, 3), (3,)),
        normal(2, 4),
    ),
    "conv1d": (nn.Conv1d(4, 3, 2), normal(2, 4, 6)),
    "conv2d": (nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2), normal(2, 4, 6, 6)),
    "conv3d": (nn.Conv3d(4, 3, 2, dilation=2, bias=False), normal(2, 4, 5, 5, 5)),
    "transposed": (nn.ConvTranspose2d(4, 3, 3, stride=2, output_padding=1), normal(2, 4, 6, 6)),
    "grouped transposed": (nn.ConvTranspose1d(4, 6, 3, groups=2), normal(2, 4, 6)),
}


def called(model: nn.Module, x: Tensor, found: Callable[[Op], Any]) -> tuple[Op, Any, Any]:
    """The operation that is looked for, and what it is called with."""
    program = record(model, ((x,), {}))
    tensors = {n: p.detach() for n, p in model_tensors(model, program).items()}
    seen: list[tuple[Any, Any]] = []
    (op,) = (op for op in program.ops if found(op))

    def watch(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        seen.append((args, kwargs))
        return op.func(*args, **kwargs)

    program.call(((x,), {}), tensors, override={op.index: watch})
    return op, *seen[0]


@pytest.mark.parametrize("name", PRODUCTS)
def test_product_and_bias_make_the_output(name: str) -> None:
    model, x = PRODUCTS[name]
    op, args, kwargs = called(model.eval(), x, product)
    entry = product(op)
    assert entry is not None
    assert argument(op, entry.activation, args, kwargs) is x
    assert activation(op) == entry.activation
    with torch.no_grad():
        expected = model(x)
        y, bias = entry.without_bias(op, args, kwargs)
        torch.testing.assert_close(entry.with_bias(op, y, bias), expected)
        # without bias it is linear: zero for zero
        zero = replaced(op, args, kwargs, {entry.activation: torch.zeros_like(x)})
        assert not entry.without_bias(op, *zero)[0].any()
    weight = argument(op, entry.weight, args, kwargs)
    groups = 1 if (own := window(op)) is None else own.groups
    first = entry.outputs_first(weight, groups)
    assert first.shape[0] == expected.shape[entry.output]
    assert first.shape[1] * groups == x.shape[entry.features]
    back = entry.outputs_first(first, groups)
    assert torch.equal(back, weight)


NORMS: dict[str, tuple[nn.Module, nn.Module, Tensor, dict[int, list[int]]]] = {
    "layer norm": (nn.LayerNorm(6), nn.LayerNorm(3), normal(2, 5, 6), {2: [0, 2, 5]}),
    "layer norm of two": (
        nn.LayerNorm([4, 6]),
        nn.LayerNorm([2, 3]),
        normal(5, 4, 6),
        {1: [1, 2], 2: [0, 2, 5]},
    ),
    "group norm": (nn.GroupNorm(2, 6), nn.GroupNorm(2, 4), normal(2, 6, 5), {1: [0, 2, 3, 5]}),
    "a group a channel": (nn.GroupNorm(6, 6), nn.GroupNorm(2, 2), normal(2, 6, 5), {1: [0, 3]}),
    "bare batch norm": (
        nn.BatchNorm1d(6, affine=False, track_running_stats=False),
        nn.BatchNorm1d(2, affine=False, track_running_stats=False),
        normal(4, 6, 3),
        {1: [1, 4]},
    ),
}


@pytest.mark.parametrize("name", NORMS)
def test_narrowed_norm_is_the_norm_of_what_is_kept(name: str) -> None:
    large, small, x, kept = NORMS[name]
    with torch.no_grad():
        for p, q in zip(large.parameters(), small.parameters(), strict=True):
            p.copy_(normal(*p.shape))
            first = x.ndim - p.ndim if isinstance(large, nn.LayerNorm) else 1
            part = p.detach()
            for d, places in kept.items():
                part = part.index_select(max(0, d - first), torch.tensor(places))
            q.copy_(part)
        op, args, kwargs = called(large.eval(), x, norm)
        index = {d: torch.tensor(places) for d, places in kept.items()}
        wide = narrowed(op, args, kwargs, index)
        wide = wide if isinstance(wide, Tensor) else wide[0]
        part, found = x, wide
        for d, places in index.items():
            part, found = part.index_select(d, places), found.index_select(d, places)
        torch.testing.assert_close(found, small.eval()(part))
    assert wide.shape == x.shape
    assert int(wide.count_nonzero()) <= part.numel()


def test_arguments_that_were_not_given_are_the_defaults() -> None:
    op, _, _ = called(nn.Softmax(-1), normal(2, 3), lambda op: "softmax" in op.kind)
    assert argument(op, "dim") in (-1, 1)
    assert argument(op, "no such argument") is None


def test_what_operations_mean_is_said_in_the_table_and_the_rules_alone() -> None:
    """Nobody else asks for an operation's name or counts its arguments."""
    root = Path(subprune.__file__).parent
    allowed = {root / "program" / "ops.py", *(root / "structure" / "rules").glob("*.py")}
    asks = re.compile(
        r"\.kind (==|!=|in|not in) .*(conv|linear|mm\b|norm|embedding|aten)|op\.args\["
    )
    found = [
        f"{path.relative_to(root)}: {line.strip()}"
        for path in sorted(root.rglob("*.py"))
        if path not in allowed
        for line in path.read_text().splitlines()
        if asks.search(line) or re.search(r"\bop\.kind\b(?!\))", line)
    ]
    assert found == []
