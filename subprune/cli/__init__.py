"""The command line: ``subprune demo | inspect | prune | export | report | methods``, and commands
that other distributions add. It starts in `app`.
"""
