"""``subprune export``"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from subprune.cli import arguments as a
from subprune.cli.console import print_json, print_text, say
from subprune.errors import DataError, OptionError
from subprune.files import write_atomic

if TYPE_CHECKING:
    from subprune.report.figures import Exported

__all__ = ["register"]

EXAMPLES = """Examples:

  subprune export small --model lenet-mnist --onnx
  subprune export small/model.safetensors --model lenet-mnist --onnx --torch-export
"""
_MODEL = "model.safetensors"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog=EXAMPLES)(export)


def export(
    saved: Annotated[
        Path,
        typer.Argument(
            metavar="PATH", help="A folder that prune wrote, or a model that it or save() saved."
        ),
    ],
    model: a.Model,
    onnx: Annotated[bool, typer.Option("--onnx", help="Write an ONNX file.")] = False,
    torch_export: Annotated[
        bool, typer.Option("--torch-export", help="Write a torch.export file.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option(help="Folder (default: where the model is).")
    ] = None,
    json: a.Json = False,
) -> None:
    """Write the small model as ONNX or torch.export, run the file, and compare it with PyTorch."""
    if not onnx and not torch_export:
        raise OptionError("nothing to write: give --onnx, --torch-export or both")
    saved = _saved_model(saved)
    from subprune.cli.loading import load_model
    from subprune.io.export import export as run

    small = load_model(model, saved)
    folder = output or saved.parent
    endings = ([".onnx"] if onnx else []) + ([".pt2"] if torch_export else [])
    done = tuple(run(small, folder / f"{saved.stem}{ending}") for ending in endings)
    _add_to_report(saved.parent / "report.json", done)
    if json:
        print_json([d.to_dict() for d in done])
        return
    for d in done:
        print_text(str(d))
    files = " and ".join(str(folder / d.path) for d in done)
    say(f"{files} {'was' if len(done) == 1 else 'were'} written.")


def _saved_model(path: Path) -> Path:
    """The file that is meant; a folder stands for the model in it."""
    file = path / _MODEL if path.is_dir() else path
    if file.is_file() and file.suffix == ".safetensors":
        return file
    why = "its name does not end in .safetensors" if file.is_file() else "there is no such file"
    if path.is_dir():
        why = f"the folder has no {_MODEL}"
    raise DataError(
        f"there is no saved model at {str(path)!r}: {why}; give a folder that `subprune prune` wrote, "
        "or a .safetensors file from it or from subprune.save"
    )


def _add_to_report(path: Path, done: tuple[Exported, ...]) -> None:
    """The report next to the model, if there is one, gets the new files."""
    from subprune.report.figures import Report

    if not path.is_file():
        return
    try:
        report = Report.from_json(path.read_bytes(), path.name)
    except DataError as error:
        say(f"the report was not changed: {error}")
        return
    names = {d.path for d in done}
    report = replace(report, exports=(*(x for x in report.exports if x.path not in names), *done))
    write_atomic(path, report.to_json().encode())
    report.save_html(path.with_suffix(".html"))
