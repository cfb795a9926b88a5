"""Build sdist and wheel of the library and of the paper's evaluation, install the wheels into a
clean environment, and try them there.

    .venv/bin/python scripts/package.py [--folder build/package]

The wheels are built from the sdists, so both are tested. They are installed with ``--no-deps``, and
the packages they need come from the environment this script runs in: installing torch again would
fetch gigabytes and might pick another build. What is declared in a wheel is compared with what is
there instead.

The library is tried twice: first where nothing can be imported but what its wheel requires and what
that requires in turn, then with everything that is here, command line and evaluation included.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from importlib.metadata import (
    Distribution,
    PackageNotFoundError,
    packages_distributions,
    requires,
    version,
)
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
# Folder of each distribution, and the files of its package that code alone does not bring along.
PROJECTS = {
    ROOT: (
        "subprune",
        ("py.typed", "report/page.css", "report/page.js", "zoo/assets/lenet-mnist.safetensors"),
    ),
    ROOT / "paper": (
        "subprune_paper",
        ("configs/smoke.toml", "lenet_train.c", "page.html", "paper_tables.csv"),
    ),
}
TRY = """
import pathlib, subprune
from subprune.zoo.datasets import load
from subprune.zoo.models import shipped_lenet
import subprune_paper
for package in (subprune, subprune_paper):
    assert "site-packages" in package.__file__, package.__file__
model, _ = shipped_lenet()
result = subprune.prune(model, load("mnist-sample", "train").inputs()[:128], compression=4)
subprune.save(result, "small.safetensors")
subprune.load(shipped_lenet()[0], "small.safetensors")
result.report.save_html("report.html")
"""


ALONE = """
import importlib.abc, pathlib, sys

class Only(importlib.abc.MetaPathFinder):
    # Refuses what an environment with the library's own requirements would not have.
    def find_spec(self, name, path=None, target=None):
        if path is None and name in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Only())
import subprune, torch
from subprune.zoo.datasets import load
from subprune.zoo.models import shipped_lenet
assert "site-packages" in subprune.__file__, subprune.__file__
model, _ = shipped_lenet()
x = load("mnist-sample", "train").inputs()[:64]
print(subprune.inspect(model, x))
result = subprune.prune(model, x, compression=4, progress=True)
print(result.report)
result.report.save_html("alone.html")
subprune.save(result, "alone.safetensors")
subprune.load(shipped_lenet()[0], "alone.safetensors")
from subprune.__main__ import main
try:
    main()
except SystemExit as left:
    assert "subprune[cli]" in str(left.code), left.code
else:
    raise AssertionError("the command line ran without its libraries")
"""


def main() -> None:
    """Build, look inside, install, try."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "package")
    folder = parser.parse_args().folder.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    wheels = []
    for project, (package, files) in PROJECTS.items():
        wheels.append(built(project, folder / "dist" / package))
        look_inside(wheels[-1], package, files)
    python = clean_environment(folder, wheels)
    place = folder / "try"
    place.mkdir()
    absent = f"ABSENT = {sorted(not_required(metadata_of(python, 'subprune')))!r}"
    run(python, "-c", absent + ALONE, cwd=place)
    run(python, "-c", TRY, cwd=place)
    command = python.parent / "subprune"
    run(command, "--version", cwd=place)
    run(command, "prune", "--model", "lenet-mnist", "--data", "mnist-sample", "--compression", "4",
        "--n-samples", "64", "--output", "out", cwd=place)  # fmt: skip
    run(command, "experiment", "run", "smoke", "--only", "method=dense", cwd=place)
    names = " and ".join(wheel.name for wheel in wheels)
    print(f"{names} and their sdists work in a clean environment")


def run(*command: object, cwd: Path | None = None) -> None:
    """Run a command; its output is shown only if it fails."""
    done = subprocess.run([str(c) for c in command], cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"error: {command[:4]} failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")


def built(project: Path, folder: Path) -> Path:
    """The wheel of a distribution, made from its sdist."""
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, project)
    return next(folder.glob("*.whl"))


def look_inside(wheel: Path, package: str, files: tuple[str, ...]) -> None:
    """The wheel holds these files of its package, and nothing but the package."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    for file in files:
        if f"{package}/{file}" not in names:
            sys.exit(f"error: {wheel.name} lacks {package}/{file}")
    strangers = {n.split("/")[0] for n in names} - {package}
    if any(not n.endswith(".dist-info") for n in strangers):
        sys.exit(f"error: {wheel.name} holds more than the package: {sorted(strangers)}")


def clean_environment(folder: Path, wheels: list[Path]) -> Path:
    """A new environment with the wheels, which sees this environment's other packages but not its
    copies of these.
    """
    run(sys.executable, "-m", "venv", folder / "venv")
    python = folder / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", *wheels)
    site = next((folder / "venv" / "lib").glob("python*/site-packages"))
    (site / "lent.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    for metadata in site.glob("subprune*.dist-info"):
        check_requirements(Distribution.at(metadata))
    return python


def metadata_of(python: Path, name: str) -> Distribution:
    """The metadata of an installed wheel."""
    site = next((python.parent.parent / "lib").glob("python*/site-packages"))
    return Distribution.at(next(site.glob(f"{name}-*.dist-info")))


def not_required(distribution: Distribution) -> set[str]:
    """Modules of this environment that neither the distribution nor what it requires asks for."""
    wanted, pending = set(), [Requirement(x) for x in distribution.requires or []]
    while pending:
        need = pending.pop()
        name = canonicalize_name(need.name)
        if name in wanted or (need.marker is not None and not need.marker.evaluate({"extra": ""})):
            continue
        wanted.add(name)
        try:
            pending += [Requirement(x) for x in requires(need.name) or []]
        except PackageNotFoundError:
            continue  # of another platform
    own = {"subprune", *wanted}
    return {
        module
        for module, owners in packages_distributions().items()
        if not {canonicalize_name(owner) for owner in owners} & own
    } - {"pip", "_distutils_hack"}


def check_requirements(distribution: Distribution) -> None:
    """What a wheel declares to need is here, in a version that it accepts."""
    for line in distribution.requires or []:
        need = Requirement(line)
        if need.marker is None or need.marker.evaluate({"extra": ""}):
            try:
                have = version(need.name)
            except PackageNotFoundError:
                sys.exit(f"error: the wheel requires {line}, which is not installed here")
            if not need.specifier.contains(have, prereleases=True):
                sys.exit(f"error: the wheel requires {line}, here is {have}")


if __name__ == "__main__":
    main()
