"""Saving a pruned model and loading it again: safetensors, with the plan as JSON in the metadata.

Nothing is ever unpickled. Loading takes the original, unpruned model, cuts it as the plan says and fills in
the saved tensors; a file that does not fit leaves the model as it was.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from subprune.errors import DataError, SubpruneError
from subprune.masking import keep_mask
from subprune.record import Inputs, record
from subprune.structure import analyse
from subprune.surgery import cut_in_place

if TYPE_CHECKING:
    from subprune.api import Result

__all__ = ["load", "save", "write_atomic"]

FORMAT = "subprune-1"


def save(result: Result, path: str | Path) -> Path:
    """Write the pruned model and its plan to one ``.safetensors`` file, all or nothing."""
    plan = json.dumps(result.plan.to_stored(), sort_keys=True)
    metadata = {"format": FORMAT, "plan": plan, "sha256": _digest(plan), "torch": torch.__version__}
    state = {name: x.detach().cpu().contiguous() for name, x in _unique_state(result.model).items()}
    return write_atomic(Path(path), to_bytes(state, metadata))


def load(model: nn.Module, path: str | Path) -> nn.Module:
    """The pruned model saved at `path`, made from `model`, a fresh instance of the original network.

    `model` itself is not changed, whatever happens.
    """
    path = Path(path)
    metadata, state = _read(path)
    plan = _plan(path, metadata)
    small = copy.deepcopy(model)
    try:
        structure = analyse(record(small, _inputs(plan["inputs"])))
        keeps = [(structure[name], keep_mask(structure[name], kept)) for name, kept in plan["kept"].items()]
        cut_in_place(small, keeps, structure.program)
    except (SubpruneError, KeyError, RuntimeError, ValueError, TypeError) as error:
        raise DataError(f"{path.name} was not saved from this kind of model ({type(model).__name__}): {error}") from error
    _fill(small, state, path)
    return small


def write_atomic(path: Path, content: bytes) -> Path:
    """Write a file so that it is either there whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return path


def _digest(plan: str) -> str:
    return hashlib.sha256(plan.encode()).hexdigest()


def _unique_state(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers, tied ones once."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _read(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    if not path.is_file():
        raise DataError(f"there is no file {path.name!r} to load")
    try:
        with safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a dict)
    except (SafetensorError, OSError, ValueError) as error:
        raise DataError(f"{path.name} is damaged or not a safetensors file: {error}") from error
    return metadata, state


def _plan(path: Path, metadata: dict[str, str]) -> dict[str, Any]:
    if metadata.get("format") != FORMAT:
        got = metadata.get("format", "no format mark")
        raise DataError(f"{path.name} was not saved by subprune.save: found {got!r}, allowed is {FORMAT!r}")
    text = metadata.get("plan", "")
    if _digest(text) != metadata.get("sha256"):
        raise DataError(f"the plan in {path.name} was altered: its checksum does not fit; save the model again")
    try:
        plan = json.loads(text)
        if not isinstance(plan["kept"], dict) or not isinstance(plan["inputs"], dict):
            raise TypeError("kept and inputs must be objects")
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"the plan in {path.name} cannot be read: {error}") from error
    return plan


def _fill(model: nn.Module, state: dict[str, Tensor], path: Path) -> None:
    expected = _unique_state(model)
    missing, extra = sorted(expected.keys() - state.keys()), sorted(state.keys() - expected.keys())
    if missing or extra:
        raise DataError(f"{path.name} does not fit the model: missing {missing[:3]}, unexpected {extra[:3]}")
    for name, x in expected.items():
        if x.shape != state[name].shape:
            raise DataError(
                f"{path.name}: {name} has shape {tuple(state[name].shape)}, the cut model needs {tuple(x.shape)}"
            )
    with torch.no_grad():
        for name, x in expected.items():
            x.copy_(state[name])


def describe_inputs(inputs: Inputs) -> dict[str, Any]:
    """Shapes and types of example inputs, as plain data."""

    def one(x: Any) -> Any:
        if isinstance(x, Tensor):
            return {"shape": list(x.shape), "dtype": str(x.dtype).removeprefix("torch.")}
        return {"value": x} if isinstance(x, bool | int | float | str | None) else {"value": None}

    return {"args": [one(x) for x in inputs[0]], "kwargs": {k: one(x) for k, x in inputs[1].items()}}


_DTYPES = {str(d).removeprefix("torch."): d for d in (torch.float32, torch.float64, torch.int64, torch.int32, torch.bool)}


def _inputs(described: dict[str, Any]) -> Inputs:
    """Empty inputs of the described shapes; they are only run on fake tensors."""

    def one(x: dict[str, Any]) -> Any:
        if "shape" not in x:
            return x["value"]
        return torch.empty([int(n) for n in x["shape"]], dtype=_DTYPES[x["dtype"]], device="meta")

    return tuple(one(x) for x in described["args"]), {k: one(x) for k, x in described["kwargs"].items()}
