"""Checks of what nodes tell before round 1, on which all that follows is built: kinds, limits, and that it adds up."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, get_args

import numpy as np

from fedskew.core.errors import FedskewError
from fedskew.core.streams import Ints
from fedskew.data.cells import OTHER, text_of
from fedskew.data.fitting import (
    BINS,
    ColumnFacts,
    Description,
    Interval,
    Kind,
    Moments,
    Request,
    step_of,
)
from fedskew.data.schema import Label
from fedskew.deploy.question_checks import shown
from fedskew.deploy.requests import RowCounts

MOST_ROWS = 10**8  # of a node: a server lays out as many numbers
MOST_NUMBERS = 2**28  # of a row: the smallest model has as many weights
_LONGEST_NAME = 200  # characters
_FORMULA = "=+-@"  # with which one begins, where the tables of a run are opened as a spreadsheet
_ROUNDING = 1e-9  # of the largest number of a column, by which a mean may be wrong


def checked_description(told: Description, request: Request) -> Description:
    """Return what a silo tells about itself; an error names the silo and the value that cannot be."""
    name = told.name
    good = isinstance(name, str) and 0 < len(name) <= _LONGEST_NAME and name.isprintable()
    _need(good, "its name", name, f"1 to {_LONGEST_NAME} characters that can be printed")
    _need(name[0] not in _FORMULA, "its name", name, "no formula: rename the file, or give --name")
    try:
        _whole(told.rows, "rows", 1, MOST_ROWS)
        by_name = type(told.columns) is dict and _texts(told.columns)
        _need(by_name, "columns", told.columns, "columns by name")
        for title, facts in told.columns.items():
            _check_column(facts, f"column {title!r}", told.rows)
        if told.shape is not None:
            _check_shape(told, told.shape)
        _check_classes(told, request)
    except FedskewError as problem:
        raise FedskewError(f"{name}: {problem}") from None
    return told


def _check_column(facts: ColumnFacts, what: str, rows: int) -> None:
    _need(isinstance(facts, ColumnFacts), what, facts, "facts about a column")
    known = isinstance(facts.kind, str) and facts.kind in get_args(Kind)
    _need(known, f"{what}: kind", facts.kind, "a kind of column")
    _need(isinstance(facts.example, str), f"{what}: example", facts.example, "a text")
    _whole(facts.missing, f"{what}: missing", 0, rows)
    _whole(facts.texts, f"{what}: texts", 0, rows)
    _whole(facts.rare, f"{what}: rare", 0, facts.texts)
    _check_ends(facts, f"{what}: low and high", rows)
    if facts.quartiles is not None:
        _check_quartiles(facts, facts.quartiles, f"{what}: quartiles")
    _check_categories(facts, f"{what}: counts", rows)


def _check_ends(facts: ColumnFacts, what: str, rows: int) -> None:
    """Refuse a smallest and a largest number of a column that cannot be; without numbers there are none."""
    ends = (facts.low, facts.high)
    _need(all(type(end) is float for end in ends), what, ends, "two numbers")
    if facts.kind == "number" and facts.missing < rows:
        for end in ends:
            _finite(end, what)
        _need(facts.low <= facts.high, what, ends, "the smaller one first")
    else:
        _need(ends == (math.inf, -math.inf), what, ends, "none without numbers")


def _check_quartiles(facts: ColumnFacts, quartiles: Any, what: str) -> None:
    """Refuse what is not three numbers in order, between the ends of the column."""
    _need(type(quartiles) is tuple and len(quartiles) == 3, what, quartiles, "3")
    for quartile in quartiles:
        _finite(quartile, what)
    in_order = [facts.low, *quartiles, facts.high]
    good = in_order == sorted(in_order)
    _need(good, what, quartiles, "numbers in order, from low to high")


def _check_categories(facts: ColumnFacts, what: str, rows: int) -> None:
    """Refuse counts of categories that do not add up to the rows of the column."""
    counts = facts.counts
    _counted(counts, what, 1, rows)
    _need(_texts(counts), what, counts, "categories by name")
    if facts.rare:
        _need(counts.get(OTHER, 0) >= facts.rare, what, counts, f"rows of {OTHER!r}")
    if facts.kind == "text" and not (facts.texts and not counts):
        _need(sum(counts.values()) == rows, what, counts, f"{rows} rows in all")


def _check_shape(told: Description, shape: tuple[int, ...]) -> None:
    good = _is_shape(shape) and math.prod(shape) <= MOST_NUMBERS
    _need(good, "shape", shape, f"sizes of at most {MOST_NUMBERS:,} numbers")
    width = 0
    if len(shape) == 1:
        width = shape[0]
    # A wide shape may be a lie: its names are made only where there are as many columns
    named = len(told.columns) == width and list(told.columns) == list(map(str, range(width)))
    _need(named, "columns", list(told.columns), f"those of arrays of shape {shape}")
    for title, facts in told.columns.items():
        complete = facts.kind == "number" and not facts.missing
        _need(complete, f"column {title!r}", facts, "numbers without gaps")


def _is_shape(shape: Any) -> bool:
    if type(shape) is not tuple or not shape:
        return False
    return all(type(size) is int and size > 0 for size in shape)


def _check_classes(told: Description, request: Request) -> None:
    classes = told.classes
    least = 0
    if request.target == "class":
        least = 1
    _counted(classes, "classes", least, MOST_ROWS)
    good = all(_is_class(one) for one in classes)
    _need(good, "classes", list(classes), "whole numbers or texts")
    if request.target == "class":
        enough = sum(classes.values()) >= told.rows
        _need(enough, "classes", classes, f"the classes of {told.rows} rows and more")
    elif request.target == "labels" and told.shape is not None:
        _need(len(classes) > 0 and _texts(classes), "classes", classes, "labels by name")
    else:
        _need(not classes, "classes", classes, "none")


def _is_class(value: Any) -> bool:
    if type(value) is float:
        return math.isfinite(value)
    return type(value) in (bool, int, str)


def checked_counts(
    told: Mapping[str, Any],
    asked: Mapping[str, Sequence[Interval]],
    expected: Mapping[str, Sequence[int]],
) -> Mapping[str, Any]:
    """Return how many numbers are in the bins of intervals; in each interval there are as many as it told before."""
    _names(told, expected, "counts")
    for title, totals in expected.items():
        found = told[title]
        what = f"counts of column {title!r}"
        good = type(found) is list and len(found) == len(totals)
        _need(good, what, found, f"{len(totals)} arrays")
        for counts, total, interval in zip(found, totals, asked[title], strict=True):
            _array(counts, what, BINS)
            inside = int(counts.sum())
            _need(inside == total, what, inside, f"{total} numbers in interval {interval}")
    return told


def inside(told: Sequence[tuple[Interval, Ints]], interval: Interval) -> int | None:
    """Return how many numbers are in an interval that is a bin of one that was counted; None if it is of none."""
    for whole, counts in told:
        if whole[0] <= interval[0] and interval[1] <= whole[1]:
            return int(counts[(interval[0] - whole[0]) // step_of(whole)])
    return None


def checked_moments(
    told: Mapping[str, Any], ends: Mapping[str, tuple[float, float]], count: int
) -> Mapping[str, Moments]:
    """Return the moments of columns, each of so many numbers between the ends of the column."""
    _names(told, ends, "moments")
    for title, (low, high) in ends.items():
        found = told[title]
        what = f"moments of column {title!r}"
        _need(isinstance(found, Moments), what, found, "moments")
        _whole(found.count, f"{what}: count", count, count)
        for part in ("mean", "error", "squares"):
            _finite(getattr(found, part), f"{what}: {part}")
        _need(found.squares >= 0, f"{what}: squares", found.squares, "a sum of squares")
        room = _ROUNDING * max(abs(low), abs(high))
        between = low - room <= found.mean <= high + room
        _need(between, f"{what}: mean", found.mean, f"one from {low} to {high}")
        _need(abs(found.error) <= room, f"{what}: error", found.error, f"one of at most {room}")
        spread = high - low + room
        most = count * spread * spread
        possible = found.squares <= most
        _need(possible, f"{what}: squares", found.squares, f"at most {most}, by its ends")
    return told


def ends_of(described: Description, title: str, fill: float) -> tuple[float, float]:
    """Return between which numbers a column is, with its gaps filled, by what a silo has told of itself."""
    if described.shape is not None and len(described.shape) > 1:
        return -math.inf, math.inf  # of images, no ends are told
    facts = described.columns.get(title)
    if facts is None:
        return fill, fill
    if not facts.missing:
        return facts.low, facts.high
    return min(facts.low, fill), max(facts.high, fill)


def checked_row_counts(
    told: RowCounts, described: Description, request: Request, label: Label, validation: bool
) -> RowCounts:
    """Return the numbers of rows of a client, which are those that it has described."""
    same_name = isinstance(told.name, str) and told.name == described.name
    _need(same_name, "its name", told.name, repr(described.name))
    total = _total_counts(told, label, validation)
    rows = int(told.train.sum())
    if request.window:  # rows are windows, of which there are at most as many
        _whole(rows, "train rows", 1, described.rows)
        return told
    _whole(rows, "train rows", described.rows, described.rows)
    if label.target == "class":
        own = dict.fromkeys(label.classes, 0)
        for value, count in described.classes.items():
            own[text_of(value)] += count
        expected = list(own.values())
        found = total.tolist()
        _need(found == expected, "rows of each class", found, str(expected))
    return told


def _total_counts(told: RowCounts, label: Label, validation: bool) -> Ints:
    """Return how many rows of each class there are in all parts; an error for parts that should not be there."""
    size = 1
    if label.target == "class":
        size = len(label.classes)
    total = np.zeros(size, dtype=np.int64)
    expected = {"train": True, "test": True, "validation": validation, "held_out": False}
    for part, there in expected.items():
        counts = getattr(told, part)
        what = f"{part} rows"
        if not there:
            _need(counts is None, what, counts, "none")
            continue
        _array(counts, what, size)
        _whole(int(counts.sum()), what, 1, MOST_ROWS)
        total += counts
    return total


def _need(good: bool, what: str, value: Any, expected: str) -> None:
    if not good:
        raise FedskewError(f"{what}: told {shown(value)}, expected {expected}")


def _whole(value: Any, what: str, low: int, high: int) -> None:
    expected = f"a whole number from {low:,} to {high:,}"
    if low == high:
        expected = f"{low:,}"
    _need(type(value) is int and low <= value <= high, what, value, expected)


def _finite(value: Any, what: str) -> None:
    _need(type(value) is float and math.isfinite(value), what, value, "a finite number")


def _texts(names: Mapping[Any, Any]) -> bool:
    return all(isinstance(name, str) for name in names)


def _counted(counts: Any, what: str, low: int, high: int) -> None:
    _need(type(counts) is dict, what, counts, "numbers by name")
    for name, count in counts.items():
        _whole(count, f"{what} of {name!r}", low, high)


def _names(told: Mapping[str, Any], expected: Mapping[str, Any], what: str) -> None:
    odd = sorted(str(name) for name in told.keys() ^ expected.keys())
    _need(not odd, f"{what}: columns", odd, "the columns that were asked for")


def _array(counts: Any, what: str, size: int) -> None:
    """Refuse what is not so many counts."""
    expected = f"int64 of shape {(size,)}"
    _need(isinstance(counts, np.ndarray), what, counts, expected)
    fits = counts.dtype == np.int64 and counts.shape == (size,)
    _need(fits, what, f"{counts.dtype} of shape {counts.shape}", expected)
    in_range = bool((counts >= 0).all() and (counts <= MOST_ROWS).all())
    _need(in_range, what, counts, f"numbers from 0 to {MOST_ROWS:,}")
