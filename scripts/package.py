"""Build sdist and wheel of the library and of the paper's evaluation, install the wheels into a
clean environment, and try them there.

    .venv/bin/python scripts/package.py [--folder build/package]

The wheels are built from the sdists, so both are tested. They are installed with ``--no-deps``, and
the packages they need come from the environment this script runs in: installing torch again would
fetch gigabytes and might pick another build. What is declared in a wheel is compared with what is
there instead.

The library is tried twice: first in an environment that has what its wheel requires and what that
requires in turn, and nothing else; then with everything that is here, command line and evaluation
included.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from importlib.metadata import (
    Distribution,
    PackageNotFoundError,
    distribution,
    version,
)
from pathlib import Path

from packaging.requirements import Requirement

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
import subprune
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
    place = folder / "try"
    place.mkdir()
    run(clean_environment(folder / "alone", wheels[:1], all_packages=False), "-c", ALONE, cwd=place)
    python = clean_environment(folder / "venv", wheels)
    run(python, "-c", TRY, cwd=place)
    command = python.parent / "subprune"
    run(command, "--version", cwd=place)
    run(command, "prune", "--model", "lenet-mnist", "--data", "mnist-sample", "--compression", "4",
        "--n-samples", "64", "--output", "out", cwd=place)  # fmt: skip
    run(command, "experiment", "run", "smoke", "--only", "method=dense", cwd=place)
    names = " and ".join(wheel.name for wheel in wheels)
    print(f"{names} and their sdists work in a clean environment")


def run(*command: object, cwd: Path | None = None) -> None:
    """Run a command, with nothing of this checkout in its path; its output is shown only if it
    fails.
    """
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    words = [str(c) for c in command]
    done = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True)
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


def clean_environment(folder: Path, wheels: list[Path], all_packages: bool = True) -> Path:
    """A new environment with the wheels, which sees this environment's other packages but not its
    copies of these; or just the packages that the wheels require.
    """
    run(sys.executable, "-m", "venv", folder)
    python = folder / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", *wheels)
    site = next((folder / "lib").glob("python*/site-packages"))
    if all_packages:
        (site / "lent.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    else:
        lend(site, required(Distribution.at(next(site.glob("subprune-*.dist-info")))))
    own = [Distribution.at(metadata) for metadata in site.glob("subprune*.dist-info")]
    for wheel in own:
        check_requirements(wheel, {d.name: d.version for d in own})
    return python


def required(of: Distribution) -> set[str]:
    """The distributions that one requires, and those that they require in turn."""
    wanted: set[str] = set()
    pending = [Requirement(line) for line in of.requires or []]
    while pending:
        need = pending.pop()
        if need.name in wanted or (need.marker and not need.marker.evaluate({"extra": ""})):
            continue
        wanted.add(need.name)
        pending += [Requirement(line) for line in distribution(need.name).requires or []]
    return wanted


def lend(site: Path, names: set[str]) -> None:
    """Make the packages of these distributions visible in an environment, and no others."""
    home = Path(sysconfig.get_paths()["purelib"])
    for name in names:
        files = distribution(name).files or []
        for top in {file.parts[0] for file in files if file.parts[0] not in ("..", "__pycache__")}:
            if (home / top).exists() and not (site / top).exists():
                (site / top).symlink_to(home / top)


def check_requirements(wheel: Distribution, own: dict[str, str]) -> None:
    """What a wheel declares to need is here, in a version that it accepts; `own` are the versions
    of the wheels themselves.
    """
    for line in wheel.requires or []:
        need = Requirement(line)
        if need.marker is None or need.marker.evaluate({"extra": ""}):
            try:
                have = own.get(need.name) or version(need.name)
            except PackageNotFoundError:
                sys.exit(f"error: the wheel requires {line}, which is not installed here")
            if not need.specifier.contains(have, prereleases=True):
                sys.exit(f"error: the wheel requires {line}, here is {have}")


if __name__ == "__main__":
    main()
