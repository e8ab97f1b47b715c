"""``python -m bactrian``: the command line."""

from bactrian.cli import main

if __name__ == "__main__":
    main()
