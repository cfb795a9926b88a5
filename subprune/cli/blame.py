"""Where in somebody's own code an error arose, for messages of one line."""

from __future__ import annotations

import functools
import sys
import sysconfig
import traceback
from pathlib import Path

from subprune.cli.plugins import own_packages

__all__ = ["cause", "in_own_code", "place"]

_PYTHON = Path(sysconfig.get_path("stdlib"))
_INSTALLED = {"site-packages", "dist-packages"}


def place(error: BaseException) -> str:
    """``net.py, line 12, in build``: the innermost line of the user's code, if any is theirs."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_short(error.filename)}, line {error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return "an unknown place"
    frame = next((f for f in reversed(frames) if _is_theirs(f.filename)), frames[-1])
    return f"{_short(frame.filename)}, line {frame.lineno}, in {frame.name}"


def cause(error: BaseException) -> str:
    """Type and first line of the message."""
    if isinstance(error, SystemExit):
        return f"it left Python with exit code {error.code!r}"
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__


def in_own_code(error: BaseException) -> bool:
    """Whether the user's code raised it, or a library that this code called."""
    files = [f.filename for f in traceback.extract_tb(error.__traceback__)]
    for file in reversed(files):
        if _is_theirs(file):
            return True
        if _is_ours(file):
            return False
    return False


def _is_theirs(file: str) -> bool:
    path = Path(file)
    known = _is_ours(file) or path.is_relative_to(_PYTHON)
    return not known and not _INSTALLED & set(path.parts) and not file.startswith("<")


def _is_ours(file: str) -> bool:
    return any(Path(file).is_relative_to(folder) for folder in _our_folders())


@functools.cache
def _our_folders() -> list[Path]:
    """Where this project's packages lie, as far as they have been imported."""
    modules = (sys.modules.get(name) for name in own_packages())
    return [Path(m.__file__).parent for m in modules if m is not None and m.__file__]


def _short(file: str) -> str:
    """Relative to the working folder, where it lies in it."""
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file
