"""The flags that several commands share, and those made from the table of options."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from subprune.keywords import Option, describe
from subprune.messages import FLAGS
from subprune.options.table import OPTIONS

__all__ = [
    "TABLED",
    "Column",
    "Context",
    "Data",
    "DataDir",
    "Download",
    "Json",
    "Mean",
    "Model",
    "Preparation",
    "Resize",
    "Std",
    "Tokenizer",
    "Weights",
    "read",
    "text_kind",
    "with_options",
]

Model = Annotated[
    str,
    typer.Option(
        "--model",
        metavar="MODEL",
        help="package.module:callable, file.py:callable, timm:NAME, torchvision:NAME, "
        "hf:FOLDER_OR_ID or a folder of the transformers library; lenet-mnist, resnet56, vgg11, …",
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
        help="mnist-sample, mnist, cifar10; a .npy, .npz or .safetensors file; a text (.txt) or a "
        "table (.csv, .tsv, .jsonl, .parquet); a folder of images, with classes as subfolders, or "
        "of a Hugging Face data set; or package.module:callable that gives what subprune.prune "
        "takes.",
    ),
]
DataDir = Annotated[
    Path | None, typer.Option(help="Folder of mnist or cifar10 [default: $SUBPRUNE_DATA].")
]
Resize = Annotated[
    int | None, typer.Option(help="Bring images, in folders and arrays, to this height and width.")
]
Mean = Annotated[
    str, typer.Option(help="Subtracted from each channel of images, e.g. 0.485,0.456,0.406.")
]
Std = Annotated[str, typer.Option(help="Each channel is divided by it, e.g. 0.229,0.224,0.225.")]
Tokenizer = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Of the tokenizer that reads texts [default: the model's folder, if it has one].",
    ),
]
Column = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Of a table, that holds the texts [default: by its name]."),
]
Context = Annotated[
    int | None, typer.Option(min=2, help="Tokens of a piece of text [default: 256].")
]
Download = Annotated[
    bool,
    typer.Option(
        "--download", help="Fetch the weights of --model where they are not on this machine."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON, for machines.")]


@dataclass(frozen=True)
class Preparation:
    """How data is found and read, as the flags say it."""

    data_dir: Path | None = None
    resize: int | None = None
    mean: str = ""
    std: str = ""
    tokenizer: Path | None = None
    column: str | None = None
    context: int | None = None


TABLED = {name: o for name, o in OPTIONS.items() if o.flag}
"""The options that have a flag."""

_MORE = {
    "train_data": " Given like --data, but all of it is used.",
    "verify_data": " Given like --data, but all of it is used. Of a built-in set its test images; "
    "with --allocate equal-accuracy or equal-agreement, which measure on it, training images that "
    "are not calibrated on.",
    "cache": " By default OUTPUT/cache.",
}
"""What only the command line has to say."""


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose ``**options`` are all flags of the table."""
    signature = inspect.signature(command, eval_str=True)
    parameters = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    parameters += [_parameter(o) for o in TABLED.values()]
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    return command


def _parameter(o: Option) -> inspect.Parameter:
    kind = text_kind(o)
    words = describe(o, FLAGS)
    words = words[:1].upper() + words[1:] if words.split()[0].islower() else words
    flag = FLAGS.name(o.name)
    names = [f"{flag}/--no-{flag[2:]}"] if o.switch else [flag]
    panel: dict[str, Any] = {"rich_help_panel": o.panel} if o.panel else {}
    # A default that is no text stays what it is.
    parser = o.parse if kind is str and not isinstance(o.default, str) else None
    info = typer.Option(
        *names,
        metavar=o.metavar or None,
        help=words + _MORE.get(o.name, ""),
        parser=parser,
        **panel,
    )
    return inspect.Parameter(
        o.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=o.default,
        annotation=Annotated[kind, info],
    )


def text_kind(o: Option) -> Any:
    """What the words after the flag are read as, before `Option.parse`."""
    if o.several:
        return list[str] | None
    members = typing.get_args(o.kind) or (o.kind,)
    simple = next((m for m in members if m in (bool, int, float)), str)
    if str in members or o.choices or o.variable:
        simple = str
    return simple | None if o.default is None else simple


def read(words: Mapping[str, Any]) -> dict[str, Any]:
    """What the flags say, as keywords of `subprune.prune`;
    those that were not given are left out.
    """
    keywords: dict[str, Any] = {}
    for name, o in TABLED.items():
        value = words[name]
        if value == o.default or (o.several and not value):
            continue
        keywords[name] = value if o.parse is None else o.parse(value)
    return keywords
