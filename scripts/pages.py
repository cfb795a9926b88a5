"""Every results page that is made from committed rows, made again.

    python scripts/pages.py [ROOT]

ROOT is the folder that holds docs/ and experiments/; by default the repository.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PAGES = {
    "results-lenet.md": ["lenet_findings.py"],
    "results-resnet56.md": ["results_page.py", "resnet56-label-free"],
    "results-vgg11.md": ["results_page.py", "vgg11-label-free"],
    "results-accuracy.md": ["accuracy_page.py"],
    "results-transformers.md": ["transformers_page.py"],
    "results-claims.md": ["claims.py"],
}
"""By their names, the scripts that make them, and of a grid, its name."""


def make(root: Path) -> None:
    folder = root / "experiments"
    for name, (script, *grid) in PAGES.items():
        more: list[str | Path] = []
        if grid:
            rows = folder / "results" / grid[0] / "cells.csv"
            more = [folder / f"{grid[0]}.toml", rows, "--page", root / "docs" / name]
        subprocess.run([sys.executable, folder / script, *more], check=True, cwd=root)


if __name__ == "__main__":
    make(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent).resolve())
