"""``subprune eval``"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from torch import nn

from subprune.cli import options as o
from subprune.cli.console import out, print_json
from subprune.cli.data import DataChoice, load_data, load_verification
from subprune.cli.models import load_model
from subprune.cli.text import SUFFIXES, load_text
from subprune.errors import DataError, OptionError
from subprune.measure.quality import evaluate as measure
from subprune.measure.quality import is_text
from subprune.zoo.datasets import dataset_names

__all__ = ["register"]

EXAMPLES = """Examples:

* `subprune eval lenet-mnist mnist-sample`
* `subprune eval lenet-mnist mnist-sample --weights small/model.safetensors --dense lenet-mnist`
* `subprune eval SmolLM2-135M/ wiki.test.raw --context 1024 --stride 1024 --tokens 8192`
"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("eval", epilog=EXAMPLES)(evaluate)


def evaluate(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="As for --model of `subprune prune`.")
    ],
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help="As for --data of `subprune prune`, all of it; of a built-in set its test images. "
            "A text file (.txt, .raw, …) is read with --tokenizer; an array of one dimension is a "
            "row of tokens.",
        ),
    ],
    weights: o.Weights = None,
    dense: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Another model, for agreement or cosine with it."),
    ] = None,
    dense_weights: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Its weights, as --weights.")
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Of a tokenizer [default: MODEL, where that is a folder]."
        ),
    ] = None,
    context: Annotated[
        int | None,
        typer.Option(help="Tokens of a window of text [default: 1024, or what the model takes]."),
    ] = None,
    stride: Annotated[
        int | None, typer.Option(help="Tokens between windows [default: those of a window].")
    ] = None,
    tokens: Annotated[
        int | None, typer.Option(help="How many tokens of a text are read [default: all].")
    ] = None,
    skip: Annotated[int, typer.Option(help="How many tokens of a text are left out first.")] = 0,
    n_samples: Annotated[
        int | None, typer.Option(help="How many inputs are used [default: all].")
    ] = None,
    data_dir: o.DataDir = None,
    resize: o.Resize = None,
    mean: o.Mean = "",
    std: o.Std = "",
    json: o.Json = False,
) -> None:
    """Measure a model: perplexity of texts, top-1 and top-5 with labels, agreement with another.

    The protocol is printed with the figures.
    """
    net = load_model(model, weights)
    other = None if dense is None else load_model(dense, dense_weights)
    if dense is None and dense_weights is not None:
        raise OptionError("--dense-weights are those of --dense, which is not given; give both")
    choice = DataChoice(data, n_samples, 0, data_dir, resize, mean, std, option="DATA", model=net)
    if Path(data).suffix in SUFFIXES:
        folder = tokenizer or Path(model)
        inputs: Any = _text(Path(data), net, folder, choice.n_samples, context)
    elif tokenizer is not None:
        raise OptionError(f"--tokenizer is for text files ({', '.join(SUFFIXES)}); omit it")
    else:
        inputs = _inputs(choice)
    if is_text(inputs):
        inputs = _after(inputs, skip)
        words: dict[str, Any] = {"context": context, "stride": stride, "tokens": tokens}
    elif skip:
        raise OptionError("--skip is for texts, one row of tokens; omit it")
    else:
        words = {"n_samples": n_samples}
    found = measure(net, inputs, dense=other, progress=False if json else None, **words)
    if skip:
        found = replace(found, protocol=f"from token {skip:,} on: {found.protocol}")
    if json:
        print_json(found.to_dict())
        return
    out.print(str(found), highlight=False, markup=False, soft_wrap=True)


def _inputs(choice: DataChoice) -> Any:
    if choice.spec in dataset_names():
        return load_verification(choice, choice.spec, measured=False)[0]
    return load_data(choice)


def _text(path: Path, net: nn.Module, folder: Path, count: int | None, context: int | None) -> Any:
    if not path.is_file():
        raise DataError(
            f"DATA {str(path)!r} is not a file; check the path, it starts at {str(Path.cwd())!r}"
        )
    if not folder.is_dir():
        raise OptionError("a text is read with a tokenizer: give its folder with --tokenizer")
    return load_text(path, net, folder, 10**9 if count is None else count, context)


def _after(text: Any, skip: int) -> Any:
    if not 0 <= skip <= len(text) - 2:
        raise OptionError(
            f"--skip must be from 0 to {len(text) - 2}, since the text has {len(text)} tokens; "
            f"got {skip}"
        )
    return text[skip:]
