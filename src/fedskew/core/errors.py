"""The exception that users see: its message names what is wrong, the value and the fix."""

import difflib
from collections.abc import Iterable

_LONGEST = 1_500  # characters of a message
_FEW = 10  # names that are known, which are listed beside the nearest one


class FedskewError(ValueError):
    """Bad input or an impossible request; the message names the value and the fix, and fits on one line.

    Quoted input may contain anything: line breaks become spaces, control characters are shown as \ufffd, and the
    middle of a very long message is omitted.

    >>> str(FedskewError("two\\nlines"))
    'two lines'
    """

    def __init__(self, message: str) -> None:
        half = _LONGEST // 2
        if len(message) > _LONGEST:
            message = f"{message[:half]} … {message[-half:]}"
        line = " ".join(message.splitlines())
        signs = []
        for sign in line:
            if sign.isprintable():
                signs.append(sign)
            else:
                signs.append("\ufffd")
        super().__init__("".join(signs))


class DivergedError(FedskewError):
    """Raised when training becomes NaN or infinite; the message names the round and what to change."""


class Interrupted(KeyboardInterrupt):
    """Raised on Ctrl-C or a signal that ends a run; the message says how to resume, ``code`` is the exit code."""

    def __init__(self, message: str, code: int = 130) -> None:
        super().__init__(message)
        self.code = code


class BudgetSpentError(FedskewError):
    """Raised when the time of a study is up before its last run. The message says how to continue."""

    code = 75  # of the command: try again later


def unknown(kind: str, name: str, known: Iterable[str], more: str = "") -> FedskewError:
    """Return the error for a name that is not registered: the nearest known name, or all of them, and ``more`` last.

    >>> str(unknown("skew", "dirichlt", ["dirichlet", "iid"]))
    "unknown skew 'dirichlt': did you mean 'dirichlet'? Known: dirichlet, iid"
    """
    names = sorted(known)
    name = name[:_LONGEST]
    names = names[:_LONGEST]
    close = difflib.get_close_matches(name, names, n=1)
    if not close:
        return FedskewError(f"unknown {kind} {name!r}: Known: {', '.join(names)}{more}")
    text = f"unknown {kind} {name!r}: did you mean {close[0]!r}?"
    if len(names) <= _FEW:
        text += f" Known: {', '.join(names)}"
    return FedskewError(f"{text}{more}")


class UnansweredError(FedskewError):
    """Raised where a run cannot go on without answers; ``plain`` is the message without the words of nodes."""

    def __init__(self, plain: str, reasons: str) -> None:
        super().__init__(f"{plain}: {reasons}" if reasons else f"{plain} in time")
        self.plain = plain
