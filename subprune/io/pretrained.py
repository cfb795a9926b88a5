"""A folder in the manner of transformers: weights, config, model card, report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from subprune.cutting.model_config import unloadable
from subprune.files import write_folder
from subprune.io.storage import save
from subprune.program.borrow import given_back
from subprune.report.card import MARK, card

if TYPE_CHECKING:
    from subprune.io.pruned import Pruned

__all__ = ["save_pretrained"]

_WEIGHTS = "subprune.safetensors"


@given_back
def save_pretrained(result: Pruned, folder: str | Path) -> Path:
    """Write the model with a card and its report, all or nothing.

    Where the config can say what the layers have become, the folder holds what the model's own
    ``save_pretrained`` writes, and ``from_pretrained`` loads it without this library. Else it holds
    what `subprune.save` writes, and the card says how to load that and why. A folder that was
    written so before is replaced; any other is left alone.
    """
    model: Any = result.model
    folder = Path(folder)
    why = unloadable(model)

    def fill(place: Path) -> None:
        if why:
            save(result, place / _WEIGHTS)
        else:
            model.save_pretrained(place)
        (place / "README.md").write_text(card(result.report, _loading(model, why)))
        (place / "report.json").write_text(result.report.to_json())

    return write_folder(folder, fill, _is_own)


def _is_own(folder: Path) -> bool:
    readme = folder / "README.md"
    return readme.is_file() and MARK in readme.read_text(errors="replace")


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
