"""Shapes and types of example inputs as plain data, and empty inputs made from them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from subprune.errors import DataError
from subprune.program.program import Inputs, flat_tensors

__all__ = ["describe_inputs", "empty_inputs", "filled_inputs"]

_DTYPES = {
    str(d).removeprefix("torch."): d
    for d in (
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.bool,
        torch.complex64,
        torch.complex128,
    )
}
_DEEPEST = 6
_MOST_VALUES = 2**27


def describe_inputs(inputs: Inputs) -> dict[str, Any]:
    """Shapes and types of example inputs, as plain data."""
    return {
        "args": [_describe(x) for x in inputs[0]],
        "kwargs": {k: _describe(x) for k, x in inputs[1].items()},
    }


def _describe(x: Any) -> dict[str, Any]:
    if isinstance(x, Tensor):
        return {"shape": list(x.shape), "dtype": str(x.dtype).removeprefix("torch.")}
    if x is None or isinstance(x, bool | int | float | str):
        return {"value": x}
    if type(x) in (list, tuple):
        return {type(x).__name__: [_describe(y) for y in x]}
    if type(x) is dict and all(isinstance(k, str) for k in x):
        return {"dict": {k: _describe(y) for k, y in x.items()}}
    return {"object": type(x).__name__}


def empty_inputs(described: dict[str, Any]) -> Inputs:
    """Inputs of the described shapes on the meta device: they take no memory and are only run as
    fake tensors.
    """
    args = tuple(_empty(x) for x in described["args"])
    return args, {str(k): _empty(x) for k, x in described["kwargs"].items()}


def filled_inputs(described: dict[str, Any]) -> Inputs:
    """Real inputs of the described shapes: normal numbers, and zeros and ones where whole numbers
    go.
    """
    generator = torch.Generator().manual_seed(0)
    empty = empty_inputs(described)
    if sum(x.numel() for x in flat_tensors(empty)) > _MOST_VALUES:
        raise DataError("the described inputs are too large to be made; pass example=")

    def fill(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        if x.is_floating_point() or x.is_complex():
            return torch.randn(x.shape, dtype=x.dtype, generator=generator)
        return torch.randint(0, 2, x.shape, generator=generator).to(x.dtype)

    return tree_map(fill, empty)


def _empty(x: dict[str, Any], depth: int = 0) -> Any:
    if depth > _DEEPEST:
        raise DataError("the described inputs are nested too deeply")
    if "shape" in x:
        if x["dtype"] not in _DTYPES or any(
            type(n) is not int or not 0 <= n < 2**31 for n in x["shape"]
        ):
            raise DataError(
                f"an input of shape {str(x['shape'])[:60]} and type "
                f"{str(x['dtype'])[:20]} is not allowed"
            )
        return torch.empty(x["shape"], dtype=_DTYPES[x["dtype"]], device="meta")
    if "list" in x:
        return [_empty(y, depth + 1) for y in x["list"]]
    if "tuple" in x:
        return tuple(_empty(y, depth + 1) for y in x["tuple"])
    if "dict" in x:
        return {str(k): _empty(y, depth + 1) for k, y in x["dict"].items()}
    if "object" in x:
        raise DataError(
            f"the model was called with a {x['object']}, which no file describes; pass example="
        )
    value = x["value"]
    if value is not None and not isinstance(value, bool | int | float | str):
        raise DataError(f"an input of type {type(value).__name__} is not allowed")
    return value
