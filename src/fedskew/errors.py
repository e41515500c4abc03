"""The one exception that users see: what is wrong, with which value, and how to put it right."""

import difflib
from collections.abc import Iterable


class FedskewError(ValueError):
    """Bad input or an impossible request; the message names the value and the fix, and fits on one line."""


class DivergedError(FedskewError):
    """Training left the numbers that floating point can hold; the message says in which round, and what to change."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, or a signal that ends a run; the message says how to go on, and ``code`` is the exit code of the command."""

    def __init__(self, message: str, code: int = 130) -> None:
        super().__init__(message)
        self.code = code


def unknown(kind: str, name: str, known: Iterable[str]) -> FedskewError:
    """Error for a name that is not registered, with the nearest known name first.

    >>> str(unknown("skew", "dirichlt", ["dirichlet", "iid"]))
    "unknown skew 'dirichlt': did you mean 'dirichlet'? Known: dirichlet, iid"
    """
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return FedskewError(f"unknown {kind} {name!r}: {hint}Known: {', '.join(names)}")
