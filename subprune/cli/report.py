"""``subprune report``"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from subprune.cli import arguments as a
from subprune.cli.console import line_width, print_json, print_text, say
from subprune.errors import DataError

if TYPE_CHECKING:
    from subprune.report.figures import Report

__all__ = ["register"]

EXAMPLES = """Examples:

  subprune report small
  subprune report small --html page.html
  subprune report small/model.safetensors --html page.html
"""
_MOST_BYTES = 2**28


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog=EXAMPLES)(report)


def report(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="PATH", help="A folder that prune wrote, a report.json, or a saved model."
        ),
    ],
    html: Annotated[Path | None, typer.Option(help="Write the HTML page here.")] = None,
    json: a.Json = False,
) -> None:
    """Show the report of a pruning again, or write its HTML page."""
    from subprune.report.terminal import report_text

    saved = _read(source / "report.json" if source.is_dir() else source)
    if html is not None:
        saved.save_html(html)
        say(f"{html} was written.")
    if json:
        print_json(saved.to_dict())
    elif html is None:
        print_text(report_text(saved, line_width()))


def _read(path: Path) -> Report:
    from subprune.io.storage import read_report
    from subprune.report.figures import Report

    if not path.is_file():
        raise DataError(
            f"there is no report at {str(path)!r}; give a folder that `subprune prune` wrote"
        )
    if path.suffix == ".safetensors":
        return Report.from_json(read_report(path), path.name)
    if path.stat().st_size > _MOST_BYTES:
        raise DataError(f"{path} is too large for a report")
    return Report.from_json(path.read_bytes(), path.name)
