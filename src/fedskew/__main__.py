"""``python -m fedskew``: the command line without an installed script."""

from fedskew.cli.app import main

if __name__ == "__main__":
    main()
