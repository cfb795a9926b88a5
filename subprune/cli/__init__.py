"""The command line: ``subprune demo | inspect | prune | export | report | methods | experiment``."""

from subprune.cli.app import app, main

__all__ = ["app", "main"]
