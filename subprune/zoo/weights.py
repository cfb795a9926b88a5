"""Weights in safetensors files: checked against the model before a byte is loaded, written all or
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from subprune.errors import DataError
from subprune.files import write_atomic

__all__ = ["check_fit", "listed", "load_weights", "save_weights"]

_SHOWN = 4
# Old checkpoints lack this counter; BatchNorm only reads it when momentum is None.
_OPTIONAL = "num_batches_tracked"


def load_weights(model: nn.Module, path: str | Path) -> dict[str, str]:
    """Load a safetensors file into `model`, every name and shape matching, and return the file's
    metadata.

    Nothing is loaded unless everything fits: names and shapes are compared from the header first.
    """
    path = Path(path)
    if not path.is_file():
        raise DataError(f"{path} is not a file; give the path of a .safetensors file with weights")
    try:
        with safe_open(path, framework="pt") as file:
            names = list(file.keys())
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in names}
            check_fit(str(path), type(model).__name__, shapes, model.state_dict())
            tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in names}
            metadata = dict(file.metadata() or {})
    except (SafetensorError, OSError) as error:
        raise DataError(
            f"{path} cannot be read as safetensors ({error}); it is damaged or of another kind: get it again"
        ) from error
    model.load_state_dict(tensors, strict=True)
    return metadata


def check_fit(
    file: str, kind: str, stored: Mapping[str, tuple[int, ...]], wanted: Mapping[str, Tensor]
) -> None:
    """Raise a DataError that lists what is missing, unknown or of another shape."""
    missing = [name for name in wanted if name not in stored and not name.endswith(_OPTIONAL)]
    unknown = [name for name in stored if name not in wanted]
    other = [
        f"{name} (file {list(stored[name])}, model {list(tensor.shape)})"
        for name, tensor in wanted.items()
        if name in stored and stored[name] != tuple(tensor.shape)
    ]
    unfit = {"not in the file": missing, "not in the model": unknown, "of another shape": other}
    problems = [f"{words}: {listed(names)}" for words, names in unfit.items() if names]
    if problems:
        raise DataError(
            f"{file} does not fit {kind} ({'; '.join(problems)}); build the model that it was saved "
            "from"
        )


def listed(names: list[str]) -> str:
    """The first few names, and how many more there are."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def save_weights(model: nn.Module, path: str | Path, metadata: Mapping[str, str]) -> None:
    """Write the model's state and text metadata as safetensors; the file appears whole or not at
    all.
    """
    path = Path(path)
    state = {
        name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()
    }
    write_atomic(path, save(state, dict(metadata)))
