"""Every results page that is made from committed rows, made again.

    python scripts/pages.py [ROOT]

ROOT is the folder that holds docs/ and experiments/; by default the repository.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def _of_grid(page: str, grid: str) -> list[str]:
    """What makes the page of a grid from its committed rows."""
    rows = f"experiments/results/{grid}/cells.csv"
    return ["results_page.py", f"experiments/{grid}.toml", rows, "--page", f"docs/{page}"]


PAGES = {
    "results-lenet.md": ["lenet_findings.py"],
    "results-resnet56.md": _of_grid("results-resnet56.md", "resnet56-label-free"),
    "results-vgg11.md": _of_grid("results-vgg11.md", "vgg11-label-free"),
    "results-accuracy.md": ["accuracy_page.py"],
    "results-few-inputs.md": ["few_inputs.py", "--page"],
    "results-arena.md": ["arena/page.py"],
    "results-transformers.md": ["transformers_page.py"],
    "results-claims.md": ["claims.py"],
}
"""By their names, the scripts in experiments/ that make them, and what these are told."""


def make(root: Path) -> None:
    for script, *words in PAGES.values():
        path = root / "experiments" / script
        subprocess.run([sys.executable, path, *words], check=True, cwd=root)


if __name__ == "__main__":
    make(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent).resolve())
