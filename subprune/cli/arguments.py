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
        help="Yours: file.py:callable, package.module:callable, a folder of the transformers "
        "library, hf:FOLDER_OR_ID, timm:NAME or torchvision:NAME. Built in: lenet-mnist, resnet56, "
        "vgg11, …",
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
        help="Yours: a .npy, .npz or .safetensors file; a text (.txt) or a table (.csv, .tsv, "
        ".jsonl, .parquet); a folder of images, with classes as subfolders, or of a Hugging Face "
        "data set; or package.module:callable that gives what subprune.prune takes. Built in: "
        "mnist-sample, mnist, cifar10.",
    ),
]
_READING = "How images and texts are read"
DataDir = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Where mnist or cifar10 is (default: $SUBPRUNE_DATA).",
        rich_help_panel=_READING,
    ),
]
Resize = Annotated[
    int | None,
    typer.Option(
        help="Height and width that images, in folders and arrays, are brought to.",
        rich_help_panel=_READING,
    ),
]
Mean = Annotated[
    str,
    typer.Option(
        metavar="NUMBERS",
        help="Subtracted from each channel of images, e.g. 0.485,0.456,0.406.",
        rich_help_panel=_READING,
    ),
]
Std = Annotated[
    str,
    typer.Option(
        metavar="NUMBERS",
        help="What each channel is divided by after that, e.g. 0.229,0.224,0.225.",
        rich_help_panel=_READING,
    ),
]
Tokenizer = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Tokenizer that reads the texts (default: the model's folder, if it has one).",
        rich_help_panel=_READING,
    ),
]
Column = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Column of a table that holds the texts (default: found by its name).",
        rich_help_panel=_READING,
    ),
]
Context = Annotated[
    int | None,
    typer.Option(
        help="Tokens in each piece of a text (default: 256).",
        rich_help_panel=_READING,
    ),
]
Download = Annotated[
    bool,
    typer.Option(
        "--download", help="Fetch the weights of --model where they are not on this machine."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON, for machines.")]


@dataclass(frozen=True, kw_only=True)
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
    own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    last = [p.replace(kind=p.KEYWORD_ONLY) for p in own if _panel(p)]
    parameters = [p for p in own if not _panel(p)]
    parameters += [_parameter(o) for o in TABLED.values()] + last
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    return command


def _panel(p: inspect.Parameter) -> Any:
    """The heading under which a flag of a command is listed; those without stand first."""
    info = (*getattr(p.annotation, "__metadata__", ()), None)[0]
    return getattr(info, "rich_help_panel", None)


def _parameter(o: Option) -> inspect.Parameter:
    kind = text_kind(o)
    words = describe(o, FLAGS)
    words = words[:1].upper() + words[1:] if words.split()[0].islower() else words
    flag = FLAGS.name(o.name)
    names = [f"{flag}/--no-{flag[2:]}"] if o.switch else [flag]
    panel: dict[str, Any] = {"rich_help_panel": o.panel} if o.panel else {}
    # A default that is not text stays what it is.
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
