"""Consoles for stdout and stderr."""

import os

from rich.console import Console


class _Console(Console):
    """A console that raises BrokenPipeError, where Rich would exit with an error."""

    def on_broken_pipe(self) -> None:
        """Raise the error again, so that the command line can exit normally."""
        raise BrokenPipeError


def console_for(stderr: bool = False) -> Console:
    """Return a console; without a terminal it has no colours and is 200 columns wide."""
    console = _Console(stderr=stderr, highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = 200
    return console


def escape(text: str) -> str:
    """Return the text with brackets escaped, so that Rich prints it unchanged."""
    return text.replace("[", "\\[")
