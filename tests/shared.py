"""Where the large data and weights are, if anywhere: the folder `shared` beside the repository."""

from __future__ import annotations

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parent.parent.parent / "shared"
needs_shared = pytest.mark.skipif(
    not (SHARED / "data").is_dir(), reason="needs the official data sets and weights in ../shared"
)
