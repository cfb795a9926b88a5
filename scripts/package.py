"""Build sdist and wheel, install the wheel into a clean environment, and try it there.

    .venv/bin/python scripts/package.py [--folder build/package]

The wheel is built from the sdist, so both are tested. It is installed with ``--no-deps``, and the
packages it needs come from the environment this script runs in: installing torch anew would fetch
gigabytes and might pick another build. What is declared in the wheel is compared with what is there
instead.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from importlib.metadata import Distribution, PackageNotFoundError, version
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
NEEDED = (
    "py.typed",
    "report/page.css",
    "report/page.js",
    "assets/lenet-mnist.safetensors",
    "experiments/configs/",
    "experiments/lenet_train.c",
)
TRY = """
import pathlib, subprune
from subprune.zoo.datasets import load
from subprune.zoo.models import shipped_lenet
assert "site-packages" in subprune.__file__, subprune.__file__
model, _ = shipped_lenet()
result = subprune.prune(model, load("mnist-sample", "train").inputs()[:128], compression=4)
subprune.save(result, "small.safetensors")
subprune.load(shipped_lenet()[0], "small.safetensors")
result.report.save_html("report.html")
"""


def main() -> None:
    """Build, look inside, install, try."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "package")
    folder = parser.parse_args().folder.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder / "dist", ROOT)
    wheel = next((folder / "dist").glob("*.whl"))
    look_inside(wheel)
    python = clean_environment(folder, wheel)
    place = folder / "try"
    place.mkdir()
    run(python, "-c", TRY, cwd=place)
    command = python.parent / "subprune"
    run(command, "--version", cwd=place)
    run(command, "prune", "--model", "lenet-mnist", "--data", "mnist-sample", "--compression", "4",
        "--n-samples", "64", "--output", "out", cwd=place)  # fmt: skip
    print(f"{wheel.name} and its sdist work in a clean environment")


def run(*command: object, cwd: Path | None = None) -> None:
    """Run a command; its output is shown only if it fails."""
    done = subprocess.run([str(c) for c in command], cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"error: {command[:4]} failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")


def look_inside(wheel: Path) -> None:
    """The files that code alone does not bring along, and the declared requirements."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    for part in NEEDED:
        if not any(n.startswith(f"subprune/{part}") for n in names):
            sys.exit(f"error: {wheel.name} lacks subprune/{part}")
    strangers = {n.split("/")[0] for n in names} - {"subprune"}
    if any(not n.endswith(".dist-info") for n in strangers):
        sys.exit(f"error: {wheel.name} holds more than the package: {sorted(strangers)}")


def clean_environment(folder: Path, wheel: Path) -> Path:
    """A new environment with the wheel, which sees this environment's other packages but not its
    subprune.
    """
    run(sys.executable, "-m", "venv", folder / "venv")
    python = folder / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel)
    site = next((folder / "venv" / "lib").glob("python*/site-packages"))
    (site / "lent.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    found = Distribution.at(next(site.glob("subprune-*.dist-info")))
    for line in found.requires or []:
        need = Requirement(line)
        if need.marker is None or need.marker.evaluate({"extra": ""}):
            try:
                have = version(need.name)
            except PackageNotFoundError:
                sys.exit(f"error: the wheel requires {line}, which is not installed here")
            if not need.specifier.contains(have, prereleases=True):
                sys.exit(f"error: the wheel requires {line}, here is {have}")
    return python


if __name__ == "__main__":
    main()
