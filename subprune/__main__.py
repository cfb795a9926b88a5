"""``python -m subprune``: the command line."""

from subprune.cli.app import main

if __name__ == "__main__":
    main()
