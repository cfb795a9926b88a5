"""The paper's experiments: data sets, networks and training. Nothing in the library itself needs
them.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["assets_dir"]


def assets_dir() -> Path:
    """The folder of the data and weights that ship with the package."""
    return Path(__file__).resolve().parent.parent / "assets"
