"""A folder in the manner of transformers: weights, config, model card, report."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from subprune.cutting.model_config import unloadable
from subprune.files import write_folder
from subprune.io.storage import save
from subprune.program.borrow import given_back
from subprune.report.card import card, files_of

if TYPE_CHECKING:
    from subprune.io.pruned import Pruned

__all__ = ["save_pretrained"]

_WEIGHTS = "subprune.safetensors"


@given_back
def save_pretrained(result: Pruned, folder: str | Path) -> Path:
    """Write the model with a card and its report, all or nothing.

    Where the config can say what the layers have become, the folder holds what the model's own
    ``save_pretrained`` writes, and ``from_pretrained`` loads it without this library. Else it holds
    what `subprune.save` writes, and the card says how to load that and why. In a folder that was
    written so before, those files are replaced, and others, such as a tokeniser's, stay; a folder
    of another origin is left alone.
    """
    model: Any = result.model
    folder = Path(folder)
    why = unloadable(model)

    def fill(place: Path) -> None:
        if why:
            save(result, place / _WEIGHTS)
        else:
            model.save_pretrained(place)
        (place / "report.json").write_text(result.report.to_json())
        written = ["README.md", *(path.name for path in place.iterdir())]
        (place / "README.md").write_text(card(result.report, _loading(model, why), written))
        _keep_others(folder, place)

    return write_folder(folder, fill, lambda old: _files(old) is not None)


def _files(folder: Path) -> list[str] | None:
    """What was written to the folder before; None if nothing was."""
    readme = folder / "README.md"
    return files_of(readme.read_text(errors="replace")) if readme.is_file() else None


def _keep_others(old: Path, new: Path) -> None:
    """Copy what somebody has put next to our files."""
    ours = {*(_files(old) or ()), *(path.name for path in new.iterdir())}
    for path in old.iterdir() if old.is_dir() else ():
        if path.name in ours:
            continue
        if path.is_dir():
            shutil.copytree(path, new / path.name)
        else:
            shutil.copy2(path, new / path.name)


def _loading(model: Any, why: str) -> str:
    kind = type(model)
    home = "transformers" if kind.__module__.startswith("transformers.") else kind.__module__
    if not why:
        return (
            f"from {home} import {kind.__name__}\nmodel = {kind.__name__}.from_pretrained(folder)"
        )
    return (
        f"# from_pretrained cannot load it: {why}\n"
        "import subprune\n"
        f'model = subprune.load(original, f"{{folder}}/{_WEIGHTS}")'
        f"  # original: the {kind.__name__} that was pruned"
    )
