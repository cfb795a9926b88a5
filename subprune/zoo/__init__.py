"""Networks and images to try the library on: the shipped LeNet and MNIST sample, and the networks
and data sets that the command line knows by name.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["assets_dir"]


def assets_dir() -> Path:
    """The folder of the data and weights that ship with the package."""
    return Path(__file__).resolve().parent / "assets"
