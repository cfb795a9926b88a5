"""Curves on disk, under a key of everything that matters to them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from subprune.errors import DataError
from subprune.files import write_atomic

__all__ = ["Cache", "fingerprint"]

_LAYOUT = 2


@runtime_checkable
class Contents(Protocol):
    """Something of which a part after the other is hashed, such as a calibration."""

    def contents(self) -> Iterable[tuple[str, Any]]: ...


def fingerprint(*parts: Any) -> str:
    """A hash of plain values, tensors, and calibrations (the model's weights and all batches)."""
    digest = hashlib.sha256()
    for part in parts:
        named = part.contents() if isinstance(part, Contents) else [("value", part)]
        for name, x in named:
            _feed(digest, name, x)
    return digest.hexdigest()


def _feed(digest: Any, name: str, x: Any) -> None:
    if isinstance(x, Tensor):
        digest.update(f"{name}{tuple(x.shape)}{x.dtype}".encode())
        # A size of 1 lets any stride count as contiguous.
        plain = x.detach().cpu().contiguous().as_strided((x.numel(),), (1,))
        digest.update(plain.view(torch.uint8).numpy().data)
    else:
        digest.update(f"{name}{x!r}".encode())


class Cache:
    """Entries by name in one JSON file, written after each; the file's name is the key."""

    def __init__(self, folder: str | Path, *key: Any) -> None:
        self.path = Path(folder) / f"curves-{fingerprint(_LAYOUT, *key)[:32]}.json"

    def read(self) -> dict[str, Any]:
        """What is there; a file that cannot be read is refused, not overwritten."""
        if not self.path.exists():
            return {}
        try:
            content = json.loads(self.path.read_text())
            return {
                str(name): (tuple(entry[0]), tuple(entry[1])) for name, entry in content.items()
            }
        except (ValueError, TypeError, IndexError, AttributeError) as error:
            raise DataError(
                f"the cache file {self.path.name} is damaged ({error}); delete it and run again"
            ) from error

    def write(self, name: str, entry: Any) -> None:
        content = {**self.read(), name: entry}
        write_atomic(self.path, json.dumps(content).encode())
