"""``subprune eval``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from subprune.cli import arguments as a

__all__ = ["register"]

EXAMPLES = """Examples:

  subprune eval lenet-mnist mnist-sample
  subprune eval lenet-mnist mnist-sample --weights small/model.safetensors --dense lenet-mnist
  subprune eval SmolLM2-135M/ wiki.test.raw --context 1024 --stride 1024 --tokens 8192
"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("eval", epilog=EXAMPLES)(evaluate)


@a.with_reading(
    context={
        "help": "Tokens of a window of text (default: 1024, or what the model takes).",
        "min": None,  # the evaluation says what is allowed
        "rich_help_panel": None,  # listed with those of the windows
    }
)
def evaluate(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="As for --model of subprune prune.")
    ],
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help="As for --data of subprune prune, all of it; of a built-in set its test images. "
            "A text file (.txt, .raw, …) is read with --tokenizer; an array of one dimension is a "
            "row of tokens.",
        ),
    ],
    weights: a.Weights = None,
    dense: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Another model, for agreement or cosine with it."),
    ] = None,
    dense_weights: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Its weights, as --weights.")
    ] = None,
    stride: Annotated[
        int | None, typer.Option(help="Tokens between windows (default: those of a window).")
    ] = None,
    tokens: Annotated[
        int | None, typer.Option(help="How many tokens of a text are read (default: all).")
    ] = None,
    skip: Annotated[int, typer.Option(help="How many tokens of a text are left out first.")] = 0,
    n_samples: Annotated[
        int | None, typer.Option(help="How many inputs are used (default: all).")
    ] = None,
    download: a.Download = False,
    json: a.Json = False,
    *,
    preparation: a.Preparation,
) -> None:
    """Measure a model: perplexity of texts, top-1 and top-5 with labels, agreement with another.

    The protocol is printed with the figures.
    """
    from subprune.cli.evaluation import Text, print_evaluation

    print_evaluation(
        models=((model, weights), (dense, dense_weights)),
        data=data,
        preparation=preparation,
        text=Text(stride, tokens, skip),
        n_samples=n_samples,
        download=download,
        json=json,
    )
