"""Files that are there whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from subprune.errors import DataError

__all__ = ["write_atomic"]


def write_atomic(path: Path, content: bytes) -> Path:
    """Write to a temporary neighbour and rename it over `path`; whatever happens, no partial file
    stays.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError(f"{path} is a folder")
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
    except (OSError, ValueError) as error:
        raise DataError(f"{str(path)!r} cannot be written: {error}; give another place") from error
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException as error:
        Path(name).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise DataError(
                f"{str(path)!r} cannot be written: {error}; give another place"
            ) from error
        raise
    return path
