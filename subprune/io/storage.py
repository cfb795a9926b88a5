"""Saving a pruned model and loading it again: safetensors, with the plan as JSON in the metadata.

Nothing is ever unpickled. Loading takes the original, unpruned model, cuts a copy of it as the plan
says and fills in the saved tensors. Everything in the file is compared with the model first: names,
shapes, numbers of units, checksums. The model given is never changed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from subprune.cutting.masking import keep_mask
from subprune.cutting.surgery import cut_in_place, duplicate
from subprune.data.batches import examples
from subprune.errors import DataError, OptionError, SubpruneError
from subprune.files import write_atomic
from subprune.plan import HISTORY, history_of
from subprune.program.accept import kind_of
from subprune.program.borrow import given_back
from subprune.program.record import record
from subprune.program.shapes import empty_inputs, filled_inputs
from subprune.report.versions import library_versions
from subprune.structure.grouping import analyse

if TYPE_CHECKING:
    from subprune.io.pruned import Pruned
    from subprune.program.program import Program

__all__ = ["fingerprint_of", "load", "read_report", "save"]

FORMAT = "subprune-2"
_KNOWN_FORMATS = (FORMAT,)
_MOST_STEPS = 64
_PICKLED = (".pt", ".pth", ".bin", ".ckpt", ".pkl")  # what others would read the file as


@given_back
def save(result: Pruned | nn.Module, path: str | Path) -> Path:
    """Write a pruned model to one ``.safetensors`` file, all or nothing.

    Give the result of `prune`, or the pruned model itself, for instance after fine-tuning.
    """
    model = result if isinstance(result, nn.Module) else result.model
    history = history_of(model)
    if not history:
        raise DataError(
            f"this {type(model).__name__} was not made by subprune.prune, so there is no plan to "
            "save with it; save its state_dict instead"
        )
    if Path(path).suffix in _PICKLED:
        raise OptionError(
            f"{str(path)!r} ends as files of torch.save do, and this one is safetensors; give "
            f"{str(Path(path).with_suffix('.safetensors'))!r}"
        )
    state = {name: x.detach().cpu().contiguous() for name, x in _state(model).items()}
    plan = {
        "model": type(model).__name__,
        "steps": list(history),
        "versions": library_versions(),
        "tensors": {
            name: [str(x.dtype).removeprefix("torch."), *x.shape] for name, x in state.items()
        },
        "content": _digest_tensors(state),
    }
    texts = {"plan": json.dumps(plan, sort_keys=True)}
    if not isinstance(result, nn.Module):
        texts["report"] = json.dumps(result.report.to_dict())
    metadata = {"format": FORMAT, **texts, "sha256": _digest(texts)}
    return write_atomic(Path(path), to_bytes(state, metadata))


@given_back
def load(model: nn.Module, path: str | Path, *, example: Any = None) -> nn.Module:
    """The pruned model saved at `path`, made from `model`, a fresh instance of the original
    network.

    `model` itself is not changed, whatever happens. `example` is an example input, needed only for
    models whose inputs are objects that cannot be described in a file.
    """
    if not isinstance(model, nn.Module):
        raise DataError(
            f"load needs an instance of the original model, got {kind_of(model)}; "
            "give one with any weights, as in subprune.load(Net(), path)"
        )
    path = Path(path)
    metadata, state = _read(path, tensors=True)
    plan = _plan(path, metadata)
    _check_content(path, plan, state)
    small = duplicate(model)
    for number, step in enumerate(plan["steps"]):
        try:
            _replay(small, step, example)
        except (
            SubpruneError,
            KeyError,
            RuntimeError,
            ValueError,
            TypeError,
            AttributeError,
            IndexError,
        ) as error:
            which = f"step {number + 1} of its plan: " if len(plan["steps"]) > 1 else ""
            raise DataError(
                f"{path.name} was not saved from this kind of model ({type(model).__name__}, the "
                f"file has a pruned {plan['model']}): {which}{_words(error)}; build the model "
                "that was pruned"
            ) from error
    _fill(small, state, path)
    setattr(small, HISTORY, tuple(plan["steps"]))
    return small


def fingerprint_of(model: nn.Module) -> str:
    """A number for the names and values of all its parameters and buffers."""
    return _digest_tensors({name: x.detach().cpu() for name, x in _state(model).items()})


def read_report(path: str | Path) -> str:
    """The report stored in a saved model, as JSON text; no tensors are read."""
    path = Path(path)
    metadata, _ = _read(path, tensors=False)
    _plan(path, metadata)
    if "report" not in metadata:
        raise DataError(
            f"{path.name} has no report inside; it was saved from a model, not from a result"
        )
    return metadata["report"]


# ---- one step of the plan ------------------------------------------------------------------------


def _replay(model: nn.Module, step: Mapping[str, Any], example: Any) -> None:
    """Make one cut in place, after comparing every group and tensor of the step with the model."""
    groups = step["groups"]
    shapes = {name: tuple(x.shape) for name, x in _state(model).items()}
    for group in groups.values():
        for name, shape in group["shapes"].items():
            if shapes.get(name) != tuple(shape):
                has = f"has {shapes[name]} here" if name in shapes else "is not in the model"
                raise DataError(f"{name} of shape {tuple(shape)} is to be cut, but {has}")
    structure = analyse(_recorded(model, step, example))
    keeps = []
    for name, group in groups.items():
        if name not in structure.names:
            raise DataError(f"the model has no group {name!r}")
        present = structure[name]
        if present.n_units != group["units"] or {s.tensor for s in present.slots} != set(
            group["shapes"]
        ):
            raise DataError(
                f"group {name!r} has {group['units']} units in the file, {present.n_units} here"
            )
        keeps.append((present, keep_mask(present, group["kept"])))
    cut_in_place(model, keeps, structure.program, eager=step["eager"])


def _recorded(model: nn.Module, step: Mapping[str, Any], example: Any) -> Program:
    """One run of the model, on fake tensors; on real ones where a forward depends on values."""
    if example is not None:
        return record(model, examples(model, example))
    described = dict(step["inputs"])
    try:
        return record(model, empty_inputs(described))
    except SubpruneError:
        raise
    except Exception:
        return record(model, filled_inputs(described))


def _words(error: BaseException) -> str:
    text = str(error).strip().split("\n")[0]
    return (
        text[:300] if isinstance(error, SubpruneError) else f"{type(error).__name__}: {text[:200]}"
    )


# ---- the file ------------------------------------------------------------------------------------


def _digest(texts: Mapping[str, str]) -> str:
    digest = hashlib.sha256()
    for name in sorted(texts):
        digest.update(f"{name} {len(texts[name])} ".encode() + texts[name].encode())
    return digest.hexdigest()


def _digest_tensors(state: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(state):
        digest.update(name.encode())
        digest.update(state[name].contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _state(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers, tied ones once."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _read(path: Path, tensors: bool) -> tuple[dict[str, str], dict[str, Tensor]]:
    if not path.is_file():
        why = f"{str(path)!r} is {'a folder' if path.is_dir() else 'not a file'}"
        inside = path / "model.safetensors"
        what = (
            f"give {str(inside)!r}" if inside.is_file() else "give a file that subprune.save wrote"
        )
        raise DataError(f"there is nothing to load: {why}; {what}")
    try:
        with safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
            state = {name: file.get_tensor(name) for name in file.keys()} if tensors else {}  # noqa: SIM118  (not a dict)
    except (SafetensorError, OSError, ValueError) as error:
        raise DataError(
            f"{path.name} is damaged or not a safetensors file ({error}); give one that "
            "subprune.save wrote"
        ) from error
    return metadata, state


def _plan(path: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    """The checked plan."""
    if metadata.get("format") not in _KNOWN_FORMATS:
        got = metadata.get("format", "no format mark")
        raise DataError(
            f"{path.name} was not saved by this version of subprune.save: found {got[:40]!r}, "
            f"allowed is {', '.join(map(repr, _KNOWN_FORMATS))}; plain weights go into the model "
            "with model.load_state_dict"
        )
    texts = {name: metadata[name] for name in ("plan", "report") if name in metadata}
    if _digest(texts) != metadata.get("sha256"):
        raise DataError(
            f"the plan in {path.name} was altered: its checksum does not match; save the model again"
        )
    try:
        plan = json.loads(texts["plan"])
        _check_plan(plan)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(
            f"the plan in {path.name} cannot be read: {type(error).__name__}: {error}"
        ) from error
    return plan


def _check_plan(plan: Any) -> None:
    """Types of everything that `load` relies on; wrong ones raise."""
    steps = plan["steps"]
    if (
        not isinstance(plan["tensors"], dict)
        or not isinstance(plan["model"], str)
        or not isinstance(steps, list)
    ):
        raise TypeError("model, tensors and steps are not of the right types")
    if not 1 <= len(steps) <= _MOST_STEPS:
        raise ValueError(f"{len(steps)} steps, allowed are 1 to {_MOST_STEPS}")
    for step in steps:
        if not isinstance(step["inputs"], dict) or not isinstance(step["eager"], bool):
            raise TypeError("inputs and eager are not of the right types")
        for group in step["groups"].values():
            numbers = [
                group["units"],
                *group["kept"],
                *(n for shape in group["shapes"].values() for n in shape),
            ]
            if any(type(n) is not int or n < 0 for n in numbers):
                raise TypeError("units, kept and shapes must be whole numbers")


def _check_content(path: Path, plan: Mapping[str, Any], state: Mapping[str, Tensor]) -> None:
    shapes = {name: [str(x.dtype).removeprefix("torch."), *x.shape] for name, x in state.items()}
    if shapes != plan["tensors"] or _digest_tensors(state) != plan.get("content"):
        raise DataError(
            f"the tensors in {path.name} were altered: they do not fit the "
            "plan; save the model again"
        )


def _fill(model: nn.Module, state: Mapping[str, Tensor], path: Path) -> None:
    expected = _state(model)
    missing, extra = sorted(expected.keys() - state.keys()), sorted(state.keys() - expected.keys())
    if missing or extra:
        raise DataError(
            f"{path.name} does not fit the model: missing {missing[:3]}, unexpected {extra[:3]}"
        )
    for name, x in expected.items():
        if x.shape != state[name].shape:
            raise DataError(
                f"{path.name}: {name} has shape {tuple(state[name].shape)}, the cut "
                f"model needs {tuple(x.shape)}"
            )
    with torch.no_grad():
        for name, x in expected.items():
            x.copy_(state[name])
