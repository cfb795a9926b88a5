"""Where a long call keeps what it has finished, and whether what lies there is of the same call."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from subprune.budget.cache import fingerprint
from subprune.errors import DataError
from subprune.files import locked
from subprune.loop.journal import Journal
from subprune.report.versions import library_versions

if TYPE_CHECKING:
    from subprune.budget.demand import Demand
    from subprune.options.options import Options

__all__ = ["kept_steps"]

_LAYOUT = 1


@contextlib.contextmanager
def kept_steps(demand: Demand, options: Options) -> Iterator[Journal]:
    """The journal of this call in the folder that the options name; an empty one without.

    Every call has a folder of its own in there, named by a hash of everything that its result
    depends on: the model's weights and operations, all inputs and labels, the options, the parts
    with their knobs, the versions of the libraries. Checkpoints of other calls are left alone. A
    second process with the same call is refused.
    """
    ranks, key = demand.calibration.ranks, ""
    if options.checkpoint is not None or ranks.count > 1:
        key = fingerprint(*_key(demand, options))[:32]
        ranks.agree(lambda: key, "model, other data, other options or libraries")
    if options.checkpoint is None:
        yield Journal(None, ranks)
        return
    folder = Path(options.checkpoint)
    own_folder = folder / key
    try:
        others = [] if own_folder.is_dir() else _folders(folder)
    except OSError as error:
        raise DataError(
            f"the checkpoint {str(folder)!r} cannot be read: {error}; give another place"
        ) from error
    first = ranks.rank == 0  # the others read what it has written
    lock = (
        locked(own_folder, f"the checkpoint {str(folder)!r}") if first else contextlib.nullcontext()
    )
    with lock:
        journal = Journal(own_folder, ranks)
        if others:
            journal.remarks.append(
                f"{str(folder)!r} has {len(others)} checkpoints of other calls (another model, "
                "other data or options), which do not fit this one and are left alone"
            )
        yield journal


def _folders(folder: Path) -> list[Path]:
    return [p for p in folder.iterdir() if p.is_dir()] if folder.is_dir() else []


def _key(demand: Demand, options: Options) -> Iterator[Any]:
    setting, recipe = demand.setting, demand.recipe
    yield _LAYOUT, library_versions()
    yield options.to_dict()
    yield recipe, recipe.selector.version
    yield demand.calibration.folds, [g.name for g in demand.groups]
    yield demand.calibration
    for more in (setting.pool, demand.verification):
        yield "none" if more is None else more
