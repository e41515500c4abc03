"""The one exception that users see: what is wrong, with which value, and how to put it right."""

import difflib
from collections.abc import Iterable


class FedskewError(ValueError):
    """Bad input or an impossible request; the message names the value and the fix, and fits on one line."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a run; the message says how to go on."""


def unknown(kind: str, name: str, known: Iterable[str]) -> FedskewError:
    """Error for a name that is not registered, with the nearest known name first.

    >>> str(unknown("skew", "dirichlt", ["dirichlet", "iid"]))
    "unknown skew 'dirichlt': did you mean 'dirichlet'? Known: dirichlet, iid"
    """
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return FedskewError(f"unknown {kind} {name!r}: {hint}Known: {', '.join(names)}")
