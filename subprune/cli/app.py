"""The app, and the entry point that turns errors into one line and an exit code.

Exit codes: 0 done, 1 an error nobody foresaw, 2 bad input, 130 stopped with Ctrl-C.
"""

from __future__ import annotations

import itertools
import os
import sys
import traceback
from typing import Annotated

import typer
from rich.markup import escape

from subprune.cli import demo, evaluate, export, inspect, methods, prune, report
from subprune.cli.blame import cause, in_own_code, place
from subprune.cli.console import err, out
from subprune.cli.plugins import add_commands
from subprune.cli.switches import App
from subprune.cli.torchrun import rank_here
from subprune.errors import SubpruneError
from subprune.keywords import RENAMED
from subprune.messages import FLAGS, KEYS
from subprune.report.versions import VERSION

__all__ = ["app", "main"]

app = App(
    help=(
        "One-shot structured pruning: a smaller dense network in seconds to minutes, "
        "without labels or fine-tuning."
    ),
    epilog=(
        "Start with subprune demo, which needs nothing; then inspect and prune a model of your own. "
        "The help of every command ends with examples: subprune prune --help."
    ),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
for module in (demo, inspect, prune, evaluate, export, report, methods):
    module.register(app)
_ADDED = add_commands(app)

DEBUG = "--debug"
STOPPED = 130
# what libraries call the number they expected, and what it is called here
_NUMBERS = {"integer": "a whole number", "float": "a number", "number": "a number"}
_STOPPED = "stopped; no file was left half-written, and the same command resumes where it can"


def _version(value: bool) -> None:
    if value:
        out.print(f"subprune {VERSION}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
    debug: Annotated[
        bool,
        typer.Option(
            DEBUG, help="Show the traceback of an error; may be put after a command, too."
        ),
    ] = False,
) -> None: ...


def main() -> None:
    """Entry point: errors of ours are one line, not a traceback."""
    args = [a for a in sys.argv[1:] if a != DEBUG]
    try:
        code = app(args, prog_name="subprune", standalone_mode=False) or 0
        if code == STOPPED:  # newer command line libraries catch Ctrl-C themselves
            _fail(_STOPPED, STOPPED)
        sys.exit(code)
    except (KeyboardInterrupt, typer.Abort):
        _fail(_STOPPED, STOPPED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        if DEBUG in sys.argv[1:]:
            traceback.print_exc()
        _explain(error, args)


def _explain(error: Exception, args: list[str]) -> None:
    """One line on what went wrong, and the exit code that fits."""
    if isinstance(error, SubpruneError):
        added = bool(args) and args[0] in _ADDED  # whose options stand in a configuration file
        _fail(error.spelled(KEYS if added else FLAGS), 2)
    old = str(getattr(error, "option_name", "")).removeprefix("--").removeprefix("no-")
    if old.replace("-", "_") in RENAMED:
        _fail(RENAMED[old.replace("-", "_")].spelled(FLAGS), 2)
    words = _own_words(error, args)
    if words:
        _fail(words, 2)
    show = getattr(error, "show", None)
    if callable(show):  # an unknown option, a missing value: the command line library words these
        show()
        sys.exit(int(getattr(error, "exit_code", 2)))
    if in_own_code(error):
        _fail(f"your code failed in {place(error)}: {cause(error)}; {DEBUG} shows the traceback", 2)
    if isinstance(error, OSError):
        given = str(error.filename or "")[:200]
        advice = "; change its permissions, or give another" * isinstance(error, PermissionError)
        _fail(f"{error.strerror or error}: {given!r}{advice}", 2)
    if DEBUG not in sys.argv[1:]:
        traceback.print_exception(error)
    _fail(
        f"{type(error).__name__}: {error}. This is a bug in subprune; please "
        "report it with the lines above",
        1,
    )


def _own_words(error: Exception, args: list[str]) -> str:
    """What the command line library says too little about; empty for the rest."""
    if args[:1] == ["eval"] and getattr(error, "option_name", "") in ("--model", "--data"):
        return "eval takes model and data without flags: subprune eval MODEL DATA"
    said = str(getattr(error, "message", ""))
    kind = next((words for word, words in _NUMBERS.items() if word in said), "")
    for flag in getattr(getattr(error, "param", None), "opts", ()):
        given = [b for a, b in itertools.pairwise(args) if a == flag]
        given += [a.partition("=")[2] for a in args if a.startswith(f"{flag}=")]
        if kind and given:
            return f"{flag} must be {kind}, got {given[-1]!r}"
    return ""


def _fail(text: str, code: int) -> None:
    rank = rank_here()
    who = f" rank {rank}:" if rank else ""
    err.print(f"[red]error:[/red]{who} {escape(text)}", highlight=False, soft_wrap=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
