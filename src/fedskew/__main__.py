"""``python -m fedskew``: the command line without an installed script."""

from fedskew.cli import main

if __name__ == "__main__":
    main()
