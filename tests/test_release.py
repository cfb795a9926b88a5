"""What a release consists of: one version everywhere, few requirements, extras that exist."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import subprune

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

ROOT = Path(__file__).resolve().parent.parent


def project(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))
    return dict(content["project"])


def test_the_version_is_the_same_everywhere() -> None:
    version = subprune.__version__
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    assert project(ROOT)["version"] == version
    assert project(ROOT / "paper")["version"] == version
    assert f"subprune[cli]=={version}" in project(ROOT / "paper")["dependencies"]
    assert f"version: {version}\n" in (ROOT / "CITATION.cff").read_text("utf-8")
    assert f"\n## {version}" in (ROOT / "CHANGELOG.md").read_text("utf-8")


def test_the_library_needs_three_others() -> None:
    needed = [re.split(r"[<>=\[; ]", line)[0] for line in project(ROOT)["dependencies"]]
    assert needed == ["torch", "numpy", "safetensors"]


def test_extras_that_messages_name_exist() -> None:
    extras = project(ROOT)["optional-dependencies"]
    named = {
        extra
        for path in (ROOT / "subprune").rglob("*.py")
        for extra in re.findall(r"subprune\[(\w+)\]", path.read_text("utf-8"))
    }
    assert {"cli", "images", "tables", "text"} <= named <= set(extras)


def test_it_is_typed() -> None:
    assert (ROOT / "subprune" / "py.typed").is_file()
    assert "Typing :: Typed" in project(ROOT)["classifiers"]


def test_urls_are_addresses_and_no_placeholders() -> None:
    cited = (ROOT / "CITATION.cff").read_text("utf-8")
    for folder in (ROOT, ROOT / "paper"):
        urls = project(folder)["urls"]
        assert f"url: {urls['Paper']}\n" in cited
        assert all(re.fullmatch(r"https://[\w./-]+", url) for url in urls.values())
        assert not any("example" in url for url in urls.values())


def test_the_licence_is_said_once() -> None:
    """Package indexes refuse a classifier beside the expression."""
    for folder in (ROOT, ROOT / "paper"):
        assert project(folder)["license"] == "MIT"
        assert not [c for c in project(folder).get("classifiers", []) if c.startswith("License")]
