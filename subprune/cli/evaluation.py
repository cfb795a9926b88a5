"""The work of ``subprune eval``: load, measure, print."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from subprune.cli import arguments as a
from subprune.cli.console import print_json, print_text
from subprune.cli.data import DataChoice, load_data, load_verification
from subprune.cli.hubs import Loaded
from subprune.cli.loading import load
from subprune.errors import DataError, OptionError
from subprune.measure.quality import evaluate as measure
from subprune.measure.quality import is_text
from subprune.reading.reader import ARRAYS
from subprune.reading.sentences import SUFFIXES, load_text
from subprune.zoo.datasets import dataset_names

__all__ = ["Text", "print_evaluation"]

Named = tuple[str | None, Path | None]  # a model, and its weights
_ALL = 10**9  # lines


@dataclass(frozen=True)
class Text:
    """Which windows of a text are measured."""

    stride: int | None
    tokens: int | None
    skip: int


def print_evaluation(
    *,
    models: tuple[Named, Named],
    data: str,
    preparation: a.Preparation,
    text: Text,
    n_samples: int | None,
    download: bool,
    json: bool,
) -> None:
    """Measure the first model, and compare it with the second if there is one, and print the figures."""
    (model, weights), (dense, dense_weights) = models
    assert model is not None
    loaded = load(model, weights, download=download)
    other = None if dense is None else load(dense, dense_weights, download=download).model
    if dense is None and dense_weights is not None:
        raise OptionError("--dense-weights are those of --dense, which is not given; give both")
    inputs = _inputs(loaded, data, preparation, n_samples)
    if is_text(inputs):
        inputs = _after(inputs, text.skip)
        context = preparation.context
        words: dict[str, Any] = {"context": context, "stride": text.stride, "tokens": text.tokens}
    else:
        _refuse_windows(data, preparation, text)
        words = {"n_samples": n_samples}
    progress = False if json else None
    evaluation = measure(loaded.model, inputs, dense=other, progress=progress, **words)
    if text.skip:
        evaluation = replace(
            evaluation, protocol=f"from token {text.skip:,} on: {evaluation.protocol}"
        )
    if json:
        print_json(evaluation.to_dict())
        return
    print_text(str(evaluation))


def _refuse_windows(data: str, how: a.Preparation, text: Text) -> None:
    """Options about the windows of a text, where the data is something else."""
    windows = {"--stride": text.stride, "--tokens": text.tokens, "--skip": text.skip or None}
    if Path(data).suffix in ARRAYS or data in dataset_names() or Path(data).is_dir():
        windows["--context"] = how.context
    given = [flag for flag, value in windows.items() if value is not None]
    if given:
        are, them = ("is", "it") if len(given) == 1 else ("are", "them")
        raise OptionError(f"{' and '.join(given)} {are} for texts, one row of tokens; omit {them}")


def _inputs(loaded: Loaded, data: str, how: a.Preparation, n_samples: int | None) -> Any:
    """A text as one row of tokens, or as sentences; other data as for pruning, all of it."""
    path = Path(data)
    if path.suffix in SUFFIXES:
        if not path.is_file():
            raise DataError(
                f"DATA {data!r} is not a file; check the path, which starts at {str(Path.cwd())!r}"
            )
        folder = how.tokenizer or loaded.folder
        if folder is None:
            raise OptionError("a text is read with a tokenizer: give its folder with --tokenizer")
        return load_text(path, loaded.model, folder, n_samples or _ALL, how.context)
    if how.tokenizer is not None and (data in dataset_names() or path.suffix in ARRAYS):
        raise OptionError(f"--tokenizer is for texts ({', '.join(SUFFIXES)}) and tables; omit it")
    used = how if how.tokenizer or how.column else replace(how, context=None)
    choice = DataChoice(data, n_samples, 0, used, option="DATA", loaded=loaded)
    if data in dataset_names():
        return load_verification(choice, data, measured=False)[0]
    return load_data(choice)


def _after(text: Any, skip: int) -> Any:
    if not 0 <= skip <= len(text) - 2:
        raise OptionError(
            f"--skip must be from 0 to {len(text) - 2}, since the text has {len(text)} tokens; "
            f"got {skip}"
        )
    return text[skip:]
