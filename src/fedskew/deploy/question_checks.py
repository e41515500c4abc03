"""Checks of what a server asks a silo before round 1: a node answers the questions of a fit, and no others."""

import math
from typing import Any

from fedskew.core.errors import FedskewError
from fedskew.data.fitting import Description, Interval, Request

QUESTIONS = ("describe", "count", "add_up")
TOLD = 64  # different texts or classes that a node tells, even if they are most of its rows
_SHOWN = 80  # characters of a value in an error
_MEDIANS = 2  # numbers in the middle of a column, each with an interval of its own
_KEYS = 2**64  # of numbers, see ``keys_of``


def refuse_other_words(what: Any) -> None:
    """Raise an error for anything that is not the word of a question."""
    if type(what) is not str or what not in QUESTIONS:
        raise FedskewError(
            f"{shown(what)} is not a question of a fit, which are describe, count and add_up"
        )


def check_request(asked: Any, own: Request) -> None:
    """Raise an error unless a request is that of the run, as the node itself reads its options."""
    if not isinstance(asked, Request) or asked != own:
        raise FedskewError(
            f"describe: other options than those of the run, {shown(asked)}: use the same version of fedskew"
        )


def check_classes(described: Description, label: str) -> None:
    """Raise an error for a label with a class of its own for most rows, such as the name of a person."""
    classes = len(described.classes)
    rows = sum(described.classes.values())
    if classes > TOLD and 2 * classes > rows:
        raise FedskewError(
            f"label {label!r} has {classes} classes in {rows} rows, too many to be told: choose another"
        )


def checked_intervals(asked: Any) -> dict[str, list[Interval]]:
    """Return the intervals of a question, at most as many as the search for a median has at a time."""
    if not _by_title(asked) or not all(_is_search(each) for each in asked.values()):
        raise FedskewError(
            f"count: told {shown(asked)}, expected one or two intervals of keys for each column: "
            "use the same version of fedskew"
        )
    intervals: dict[str, list[Interval]] = asked
    return intervals


def checked_fills(asked: Any) -> dict[str, float]:
    """Return the numbers for gaps of a question."""
    if not _by_title(asked) or not all(_is_finite(fill) for fill in asked.values()):
        raise FedskewError(
            f"add_up: told {shown(asked)}, expected a finite number for each column: use the same version of fedskew"
        )
    fills: dict[str, float] = asked
    return fills


def _by_title(asked: Any) -> bool:
    return type(asked) is dict and all(type(title) is str for title in asked)


def _is_finite(fill: Any) -> bool:
    return type(fill) is float and math.isfinite(fill)


def _is_search(intervals: Any) -> bool:
    return (
        type(intervals) is list
        and 0 < len(intervals) <= _MEDIANS
        and all(map(_is_interval, intervals))
    )


def _is_interval(ends: Any) -> bool:
    if type(ends) is not tuple or len(ends) != 2:
        return False
    whole = all(type(end) is int for end in ends)
    return whole and 0 <= ends[0] <= ends[1] < _KEYS


def shown(value: Any) -> str:
    """Return a value as text for an error, of which the first characters must do."""
    text = repr(value)
    if len(text) <= _SHOWN:
        return text
    return f"{text[:_SHOWN]}…"
