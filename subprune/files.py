"""Files and folders that are there whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from subprune.errors import DataError, OptionError

__all__ = ["check_folder", "locked", "write_atomic", "write_folder"]


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


def check_folder(folder: Path, option: str) -> None:
    """Refuse an unusable folder before the work, not after it; option: what named it."""
    if folder.exists() and not folder.is_dir():
        raise OptionError(f"{option} {str(folder)!r} is a file; give a folder")
    new = not folder.exists()
    write_atomic(folder / ".subprune", b"")
    (folder / ".subprune").unlink()
    if new:  # a goal that is refused leaves no empty folder behind
        folder.rmdir()


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


@contextlib.contextmanager
def locked(folder: Path, what: str) -> Iterator[None]:
    """Keep others out of a folder for a while: a second process, or thread, is refused at once.

    The lock is the operating system's and ends with the process, however that ends; the file that
    carries it goes when it is given back, and so do folders that were made for it and are empty at
    the end. what: the folder, for the message.
    """
    path = folder / ".lock"
    try:
        made = [p for p in (folder, *folder.parents) if not p.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        handle = _held(path)
    except OSError as error:
        raise DataError(f"{what} cannot be written: {error}; give another place") from error
    if handle is None:
        raise DataError(f"another process works in {what}; wait for it, or give another place")
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
        os.close(handle)
        with contextlib.suppress(OSError):  # one that is not empty
            for new in made:
                new.rmdir()


def _held(path: Path) -> int | None:
    """The lock file, open and locked; None if another has it."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            if not _lock(handle):
                os.close(handle)
                return None
            # The one before may have removed the file between our opening and locking it.
            if path.exists() and os.path.samestat(os.fstat(handle), path.stat()):
                return handle
        except BaseException:
            with contextlib.suppress(OSError):
                os.close(handle)
            raise
        os.close(handle)


def _lock(handle: int) -> bool:
    """Lock an open file without waiting; whether that succeeded."""
    try:
        import fcntl
    except ImportError:  # Windows
        import msvcrt

        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined, unused-ignore]
        except OSError:
            return False
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
