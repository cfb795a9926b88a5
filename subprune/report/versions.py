"""What a result was made with, as reports and stored plans note it."""

from __future__ import annotations

import platform

__all__ = ["VERSION", "library_versions"]

VERSION = "0.2.0"
"""Of this package; `subprune.__version__`."""


def library_versions() -> dict[str, str]:
    """What the result was made with."""
    import numpy as np
    import safetensors
    import torch

    return {
        "subprune": VERSION,
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "safetensors": str(safetensors.__version__),
        "python": platform.python_version(),
    }
