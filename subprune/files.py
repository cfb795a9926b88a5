"""Files and folders that are there whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from subprune.errors import DataError

__all__ = ["write_atomic", "write_folder"]


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


def write_folder(
    folder: Path, fill: Callable[[Path], None], is_own: Callable[[Path], bool]
) -> Path:
    """Fill a temporary neighbour and rename it to `folder`; whatever happens, no part of it stays.

    A folder that is there already is replaced if it is empty or `is_own` says so, and refused
    otherwise.
    """
    if folder.exists() and not (folder.is_dir() and (_empty(folder) or is_own(folder))):
        raise DataError(
            f"{str(folder)!r} is there already and was not written by subprune; give another folder"
        )
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        new = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".", suffix=".tmp"))
    except OSError as error:
        raise DataError(
            f"{str(folder)!r} cannot be written: {error}; give another place"
        ) from error
    try:
        fill(new)
        new.chmod(0o755)
        _exchange(new, folder)
    except OSError as error:
        raise DataError(
            f"{str(folder)!r} cannot be written: {error}; give another place"
        ) from error
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return folder


def _empty(folder: Path) -> bool:
    return not any(folder.iterdir())


def _exchange(new: Path, folder: Path) -> None:
    """Put the new folder in the place of the old one, which comes back if that fails."""
    if not folder.exists():
        new.rename(folder)
        return
    old = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".", suffix=".old"))
    folder.rename(old)
    try:
        new.rename(folder)
    except BaseException:
        old.rename(folder)
        raise
    shutil.rmtree(old, ignore_errors=True)
