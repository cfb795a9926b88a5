"""Makes docs/report.png: the HTML report of the README's quick start, in headless Chromium.

.venv/bin/python docs/make_picture.py
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

import subprune
from subprune.zoo.datasets import load
from subprune.zoo.models import shipped_lenet

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--window-size=1000,965",
)


def main() -> None:
    """Prune, write the page, take the picture."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("error: no chromium on this machine; apt-get install chromium")
    model, _ = shipped_lenet()
    sample = load("mnist-sample", "train")
    some = torch.randperm(len(sample), generator=torch.Generator().manual_seed(42))[:512]
    result = subprune.prune(model, sample.inputs(some), compression=4, time_calls=True)
    target = Path(__file__).resolve().parent / "report.png"
    with tempfile.TemporaryDirectory() as folder:
        page = result.report.save_html(Path(folder) / "report.html")
        profile = f"--user-data-dir={folder}/profile"
        subprocess.run(
            [browser, *FLAGS, profile, f"--screenshot={target}", page.as_uri()],
            check=True,
            timeout=120,
        )


if __name__ == "__main__":
    main()
