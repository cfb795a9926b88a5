"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = [
    "Data",
    "DataDir",
    "Json",
    "Mean",
    "Model",
    "Resize",
    "Samples",
    "Seed",
    "Std",
    "Weights",
]

Model = Annotated[
    str,
    typer.Option(
        "--model",
        metavar="MODEL",
        help="package.module:callable, file.py:callable, lenet-mnist, resnet56, vgg11, …",
    ),
]
Weights = Annotated[
    Path | None,
    typer.Option(
        "--weights",
        metavar="FILE",
        help=".safetensors, or .pt read as plain tensors (weights_only).",
    ),
]
Data = Annotated[
    str,
    typer.Option(
        "--data",
        metavar="DATA",
        help="mnist-sample, mnist, cifar10; a .npy, .npz or .safetensors file; a folder of images; or "
        "package.module:callable that gives what subprune.prune takes.",
    ),
]
DataDir = Annotated[
    Path | None, typer.Option(help="Folder of mnist or cifar10 [default: $SUBPRUNE_DATA].")
]
Samples = Annotated[
    int, typer.Option("--n-samples", help="How many inputs are used, drawn at random by --seed.")
]
Seed = Annotated[int, typer.Option(help="Of everything random.")]
Resize = Annotated[
    int | None, typer.Option(help="Bring images, in folders and arrays, to this height and width.")
]
Mean = Annotated[
    str, typer.Option(help="Subtracted from each channel of images, e.g. 0.485,0.456,0.406.")
]
Std = Annotated[str, typer.Option(help="Each channel is divided by it, e.g. 0.229,0.224,0.225.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON, for machines.")]
