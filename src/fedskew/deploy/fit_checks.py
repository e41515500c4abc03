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

MOST_ROWS = 10**8  # of a node: the server allocates as many numbers
MOST_NUMBERS = 2**28  # of a row: the smallest model has as many weights
_LONGEST_NAME = 200  # characters
# A name that begins so becomes a formula where a run's tables are opened as a spreadsheet
_FORMULA = "=+-@"
_ROUNDING = 1e-9  # by which a mean may be off, as a share of the column's largest number


def checked_description(told: Description, request: Request) -> Description:
    """Return what a silo tells about itself; an error names the silo and the value that cannot be."""
    name = told.name
    good = isinstance(name, str) and 0 < len(name) <= _LONGEST_NAME and name.isprintable()
    _require(good, "its name", name, f"1 to {_LONGEST_NAME} characters that can be printed")
    _require(
        name[0] not in _FORMULA, "its name", name, "no formula: rename the file, or give --name"
    )
    try:
        _check_whole(told.rows, "rows", 1, MOST_ROWS)
        by_name = type(told.columns) is dict and _are_texts(told.columns)
        _require(by_name, "columns", told.columns, "columns by name")
        for title, facts in told.columns.items():
            _check_column(facts, f"column {title!r}", told.rows)
        if told.shape is not None:
            _check_shape(told, told.shape)
        _check_classes(told, request)
    except FedskewError as problem:
        raise FedskewError(f"{name}: {problem}") from None
    return told


def _check_column(facts: ColumnFacts, what: str, rows: int) -> None:
    _require(isinstance(facts, ColumnFacts), what, facts, "facts about a column")
    known = isinstance(facts.kind, str) and facts.kind in get_args(Kind)
    _require(known, f"{what}: kind", facts.kind, "a kind of column")
    _require(isinstance(facts.example, str), f"{what}: example", facts.example, "a text")
    _check_whole(facts.missing, f"{what}: missing", 0, rows)
    _check_whole(facts.texts, f"{what}: texts", 0, rows)
    _check_whole(facts.rare, f"{what}: rare", 0, facts.texts)
    _check_whole(facts.numerals, f"{what}: numerals", 0, facts.texts)
    _check_ends(facts, f"{what}: low and high", rows)
    _check_numbers(facts, what, rows)
    if facts.quartiles is not None:
        _check_quartiles(facts, facts.quartiles, f"{what}: quartiles")
    _check_categories(facts, f"{what}: counts", rows)


def _check_ends(facts: ColumnFacts, what: str, rows: int) -> None:
    """Refuse a smallest and a largest number of a column that cannot be; without numbers there are none."""
    ends = (facts.low, facts.high)
    _require(all(type(end) is float for end in ends), what, ends, "two numbers")
    if facts.kind == "number" and facts.missing < rows:
        for end in ends:
            _check_finite(end, what)
        _require(facts.low <= facts.high, what, ends, "the smaller one first")
    else:
        _require(ends == (math.inf, -math.inf), what, ends, "none without numbers")


def _check_numbers(facts: ColumnFacts, what: str, rows: int) -> None:
    """Refuse what cannot be told of the different numbers of a column, by which it is a feature or an id."""
    most = 0
    if facts.kind == "number":
        most = rows - facts.missing
    _check_whole(facts.distinct, f"{what}: distinct", 0, most)
    for name in ("whole", "dates"):
        value = getattr(facts, name)
        told = type(value) is bool and (facts.kind == "number" or not value)
        _require(told, f"{what}: {name}", value, "true or false, and false without numbers")
    if facts.distinct:
        ends = (facts.low, facts.high)
        one = (facts.distinct == 1) == (facts.low == facts.high)
        _require(
            one, f"{what}: distinct", facts.distinct, f"so many numbers from {ends[0]} to {ends[1]}"
        )
        whole = not facts.whole or all(map(float.is_integer, ends))
        _require(whole, f"{what}: whole", facts.whole, f"false for ends of {ends}")


def _check_quartiles(facts: ColumnFacts, quartiles: Any, what: str) -> None:
    """Refuse what is not three numbers in order, between the ends of the column."""
    _require(type(quartiles) is tuple and len(quartiles) == 3, what, quartiles, "3")
    for quartile in quartiles:
        _check_finite(quartile, what)
    in_order = [facts.low, *quartiles, facts.high]
    good = in_order == sorted(in_order)
    _require(good, what, quartiles, "numbers in order, from low to high")


def _check_categories(facts: ColumnFacts, what: str, rows: int) -> None:
    """Refuse counts of categories that do not add up to the rows of the column."""
    counts = facts.counts
    _check_named_counts(counts, what, 1, rows)
    _require(_are_texts(counts), what, counts, "categories by name")
    if facts.rare:
        _require(counts.get(OTHER, 0) >= facts.rare, what, counts, f"rows of {OTHER!r}")
    too_many_to_tell = facts.texts > 0 and not counts
    if facts.kind == "text" and not too_many_to_tell:
        _require(sum(counts.values()) == rows, what, counts, f"{rows} rows in all")


def _check_shape(told: Description, shape: tuple[int, ...]) -> None:
    good = _is_shape(shape) and math.prod(shape) <= MOST_NUMBERS
    _require(good, "shape", shape, f"sizes of at most {MOST_NUMBERS:,} numbers")
    width = 0
    if len(shape) == 1:
        width = shape[0]
    # A wide shape may be a lie: its names are made only where there are as many columns
    named = len(told.columns) == width and list(told.columns) == list(map(str, range(width)))
    _require(named, "columns", list(told.columns), f"those of arrays of shape {shape}")
    for title, facts in told.columns.items():
        complete = facts.kind == "number" and not facts.missing
        _require(complete, f"column {title!r}", facts, "numbers without gaps")


def _is_shape(shape: Any) -> bool:
    if type(shape) is not tuple or not shape:
        return False
    return all(type(size) is int and size > 0 for size in shape)


def _check_classes(told: Description, request: Request) -> None:
    classes = told.classes
    least = 0
    if request.target == "class":
        least = 1
    _check_named_counts(classes, "classes", least, MOST_ROWS)
    good = all(_is_class(name) for name in classes)
    _require(good, "classes", list(classes), "whole numbers or texts")
    if request.target == "class":
        enough = sum(classes.values()) >= told.rows
        _require(enough, "classes", classes, f"the classes of {told.rows} rows and more")
    elif request.target == "labels" and told.shape is not None:
        _require(len(classes) > 0 and _are_texts(classes), "classes", classes, "labels by name")
    else:
        _require(not classes, "classes", classes, "none")


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
    _check_names(told, expected, "counts")
    for title, totals in expected.items():
        arrays = told[title]
        what = f"counts of column {title!r}"
        good = type(arrays) is list and len(arrays) == len(totals)
        _require(good, what, arrays, f"{len(totals)} arrays")
        for counts, total, interval in zip(arrays, totals, asked[title], strict=True):
            _check_array(counts, what, BINS)
            counted = int(counts.sum())
            _require(counted == total, what, counted, f"{total} numbers in interval {interval}")
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
    _check_names(told, ends, "moments")
    for title, (low, high) in ends.items():
        moments = told[title]
        what = f"moments of column {title!r}"
        _require(isinstance(moments, Moments), what, moments, "moments")
        _check_whole(moments.count, f"{what}: count", count, count)
        for part in ("mean", "error", "squares"):
            _check_finite(getattr(moments, part), f"{what}: {part}")
        _require(moments.squares >= 0, f"{what}: squares", moments.squares, "a sum of squares")
        room = _ROUNDING * max(abs(low), abs(high))
        between = low - room <= moments.mean <= high + room
        _require(between, f"{what}: mean", moments.mean, f"one from {low} to {high}")
        _require(
            abs(moments.error) <= room, f"{what}: error", moments.error, f"one of at most {room}"
        )
        spread = high - low + room
        most = count * spread * spread
        possible = moments.squares <= most
        _require(possible, f"{what}: squares", moments.squares, f"at most {most}, by its ends")
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
    _require(same_name, "its name", told.name, repr(described.name))
    total = _total_counts(told, label, validation)
    rows = int(told.train.sum())
    if request.window:  # rows are windows, of which there are at most as many
        _check_whole(rows, "train rows", 1, described.rows)
        return told
    _check_whole(rows, "train rows", described.rows, described.rows)
    if label.target == "class":
        own = dict.fromkeys(label.classes, 0)
        for value, count in described.classes.items():
            own[text_of(value)] += count
        expected = list(own.values())
        found = total.tolist()
        _require(found == expected, "rows of each class", found, str(expected))
    return told


def _total_counts(told: RowCounts, label: Label, validation: bool) -> Ints:
    """Return how many rows of each class there are in all parts; an error for parts that should not be there."""
    size = 1
    if label.target == "class":
        size = len(label.classes)
    total = np.zeros(size, dtype=np.int64)
    expected = {"train": True, "test": True, "validation": validation, "held_out": False}
    for part, is_expected in expected.items():
        counts = getattr(told, part)
        what = f"{part} rows"
        if not is_expected:
            _require(counts is None, what, counts, "none")
            continue
        _check_array(counts, what, size)
        _check_whole(int(counts.sum()), what, 1, MOST_ROWS)
        total += counts
    return total


def _require(good: bool, what: str, value: Any, expected: str) -> None:
    """Raise an error that says what was told and what is expected, unless the value is good."""
    if not good:
        raise FedskewError(f"{what}: told {shown(value)}, expected {expected}")


def _check_whole(value: Any, what: str, low: int, high: int) -> None:
    expected = f"a whole number from {low:,} to {high:,}"
    if low == high:
        expected = f"{low:,}"
    _require(type(value) is int and low <= value <= high, what, value, expected)


def _check_finite(value: Any, what: str) -> None:
    _require(type(value) is float and math.isfinite(value), what, value, "a finite number")


def _are_texts(names: Mapping[Any, Any]) -> bool:
    return all(isinstance(name, str) for name in names)


def _check_named_counts(counts: Any, what: str, low: int, high: int) -> None:
    _require(type(counts) is dict, what, counts, "numbers by name")
    for name, count in counts.items():
        _check_whole(count, f"{what} of {name!r}", low, high)


def _check_names(told: Mapping[str, Any], expected: Mapping[str, Any], what: str) -> None:
    odd = sorted(str(name) for name in told.keys() ^ expected.keys())
    _require(not odd, f"{what}: columns", odd, "the columns that were asked for")


def _check_array(counts: Any, what: str, size: int) -> None:
    """Refuse what is not so many counts."""
    expected = f"int64 of shape {(size,)}"
    _require(isinstance(counts, np.ndarray), what, counts, expected)
    fits = counts.dtype == np.int64 and counts.shape == (size,)
    _require(fits, what, f"{counts.dtype} of shape {counts.shape}", expected)
    in_range = bool((counts >= 0).all() and (counts <= MOST_ROWS).all())
    _require(in_range, what, counts, f"numbers from 0 to {MOST_ROWS:,}")
