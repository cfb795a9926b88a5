"""``python -m subprune``: the command line."""

from subprune.cli import main

if __name__ == "__main__":
    main()
