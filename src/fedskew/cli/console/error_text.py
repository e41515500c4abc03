"""Errors as one line on stderr."""

import sys
from typing import Any


def complain(message: str, code: int = 2) -> int:
    """Print an error as one line, and return the exit code."""
    if message:  # without a command, Typer has shown the help
        print(f"fedskew: {' '.join(message.split())}", file=sys.stderr)
    return code


def usage_error_text(problem: Any) -> str:
    """Return what is wrong with a command line, and whose help to read; ``problem`` is an error of Click."""
    near = getattr(problem, "possibilities", None)
    if near and getattr(problem, "option_name", None):
        text = f"no such option {problem.option_name}: did you mean {near[0]}?"
    else:
        text = problem.format_message().rstrip(".")
    if problem.ctx and problem.message:
        text += f" (see {problem.ctx.command_path} --help)"
    return text


def system_error_text(problem: OSError) -> str:
    """Return the file and what is wrong with it, such as a missing permission or a failing disk."""
    if problem.filename:
        return f"{problem.filename}: {problem.strerror}"
    return str(problem)
