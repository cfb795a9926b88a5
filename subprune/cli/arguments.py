"""The flags that several commands share, and those made from the table of options."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from subprune.keywords import Option, describe
from subprune.messages import FLAGS
from subprune.options.table import OPTIONS

__all__ = [
    "TABLED",
    "Data",
    "Download",
    "Json",
    "Model",
    "Preparation",
    "Weights",
    "read",
    "text_kind",
    "with_options",
    "with_reading",
]

Command = Callable[..., None]

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
Download = Annotated[
    bool,
    typer.Option(
        "--download", help="Fetch the weights of --model where they are not on this machine."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON, for machines.")]


def _reading(default: Any, help: str, **settings: Any) -> Any:
    """A field of `Preparation`: its flag, as typer's settings say it."""
    panel = {"rich_help_panel": "How images and texts are read"}
    return field(default=default, metadata={"flag": {"help": help, **panel, **settings}})


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """How data is found and read. A field is a flag of every command that takes `with_reading`."""

    data_dir: Path | None = _reading(
        None, "Where mnist or cifar10 is (default: $SUBPRUNE_DATA).", metavar="FOLDER"
    )
    resize: int | None = _reading(
        None, "Height and width that images, in folders and arrays, are brought to."
    )
    mean: str = _reading(
        "", "Subtracted from each channel of images, e.g. 0.485,0.456,0.406.", metavar="NUMBERS"
    )
    std: str = _reading(
        "",
        "What each channel is divided by after that, e.g. 0.229,0.224,0.225.",
        metavar="NUMBERS",
    )
    tokenizer: Path | None = _reading(
        None,
        "Tokenizer that reads the texts (default: the model's folder, if it has one).",
        metavar="FOLDER",
    )
    column: str | None = _reading(
        None,
        "Column of a table that holds the texts (default: found by its name).",
        metavar="NAME",
    )
    context: int | None = _reading(None, "Tokens in each piece of a text (default: 256).")


def with_reading(**changed: Mapping[str, Any]) -> Callable[[Command], Command]:
    """A command whose argument `preparation` is made of the flags of `Preparation`.

    changed: by flag, settings that differ for this command.
    """
    kinds = typing.get_type_hints(Preparation)
    flags = [
        inspect.Parameter(
            f.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=f.default,
            annotation=Annotated[
                kinds[f.name],
                typer.Option(**{**f.metadata["flag"], **changed.get(f.name, {})}),
            ],
        )
        for f in fields(Preparation)
    ]

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def call(**given: Any) -> None:
            chosen = {flag.name: given.pop(flag.name) for flag in flags}
            command(**given, preparation=Preparation(**chosen))

        own = [p for p in _parameters(command) if p.name != "preparation"]
        _show(call, own, flags)
        return call

    return decorate


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


def with_options(command: Command) -> Command:
    """A command whose ``**options`` are all flags of the table."""
    own = _parameters(command)
    last = [p for p in own if _panel(p)]
    first = [p for p in own if not _panel(p) and p.kind is not p.VAR_KEYWORD]
    _show(command, first, [*map(_parameter, TABLED.values()), *last])
    return command


def _parameters(command: Command) -> list[inspect.Parameter]:
    return list(inspect.signature(command, eval_str=True).parameters.values())


def _show(
    command: Command,
    own: Sequence[inspect.Parameter],
    more: Sequence[inspect.Parameter],
) -> None:
    """Let typer see these parameters: the command's own, then those that it shares with others."""
    rest = [p for p in own if p.kind is p.VAR_KEYWORD]  # stands last in a signature
    first = [p for p in own if p.kind is not p.VAR_KEYWORD]
    parameters = [*first, *(p.replace(kind=p.KEYWORD_ONLY) for p in more), *rest]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}


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
