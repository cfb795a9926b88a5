"""``python -m subprune`` and ``subprune``: the command line, if what it needs is installed."""

from __future__ import annotations

import sys

__all__ = ["main"]

_NEEDED = ("typer", "rich", "click")


def main() -> None:
    """Run the command line; where its libraries are missing, say how to get them."""
    try:
        from subprune.cli.app import main as run
    except ModuleNotFoundError as error:
        if error.name not in _NEEDED:
            raise
        sys.exit(
            f"error: the command line needs {error.name}, which is not installed; "
            "run pip install 'subprune[cli]'. The library works without it: import subprune"
        )
    run()


if __name__ == "__main__":
    main()
