"""The command line: ``subprune demo | inspect | prune | export | report | methods``, and commands
that other distributions add.
"""

from subprune.cli.app import app, main

__all__ = ["app", "main"]
