"""Fitting a schema from what clients answer: counts and sums that are added up, and never their rows.

A silo is asked three kinds of questions, each about all columns at once: what it has (``describe``), how many of its
values lie in given intervals (``count``), and the moments of its numbers (``add_up``). The median over all silos is
found by counting: every round of questions divides the interval that holds it by 4,096, so that five or six rounds
find it exactly.
"""

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedskew.core.errors import FedskewError
from fedskew.core.streams import Floats, Ints
from fedskew.data.cells import (
    MISSING,
    OTHER,
    is_number,
    label_columns,
    names_in_order,
    need_column,
    refuse_one_class,
)
from fedskew.data.class_spellings import refuse_other_spellings
from fedskew.data.dates import AsNumbers
from fedskew.data.left_out import FEWEST_ROWS, columns_left_out
from fedskew.data.schema import Categories, Label, Numeric, Schema
from fedskew.data.targets import Target

Kind: TypeAlias = Literal["number", "text", "time", "empty"]
Interval: TypeAlias = tuple[int, int]  # first and last key, see ``keys_of``
# Options of a fit
ASKED = (
    "label",
    "target",
    "categorical",
    "max_categories",
    "standardize",
    "window",
    "stride",
    "labels",
    "keep",
    "dates",
)
BINS = 4096  # into which an interval is divided by one question


@dataclass(frozen=True)
class Request:
    """What is to be fitted: the label, which columns are categories, and how many of these become features.

    ``labels`` are the spellings of classes, if the user says them. ``keep`` are columns that are features whatever they
    hold; None: all are. ``dates`` says what becomes of dates.
    """

    label: str
    target: Target = "class"
    categorical: tuple[str, ...] = ()
    max_categories: int = 64
    standardize: bool = True
    window: int = 0
    stride: int = 0
    labels: tuple[str, ...] = ()
    keep: tuple[str, ...] | None = None
    dates: AsNumbers | None = None
    # Whether silos also tell the quartiles of their numbers, to be compared with each other's
    compared: bool = False

    @property
    def targets(self) -> tuple[str, ...]:
        """Return the columns of the label."""
        return label_columns(self.label, self.target)

    def examines(self, title: str) -> bool:
        """Return whether a column may be no feature, by what it holds."""
        return self.keep is not None and title not in (*self.keep, *self.categorical)


@dataclass(frozen=True)
class ColumnFacts:
    """What a silo tells about a column: over its training rows, except for the kind and the example.

    ``low`` and ``high`` are the ends of its numbers, ``quartiles`` its quartiles where they were asked for, ``counts``
    its categories; of a column of mostly different texts, which nobody should see, there is only how many. ``rare`` is
    how many categories of few rows are counted together as ``other``, by a silo that does not name them. ``distinct``
    is how many different numbers there are, ``whole`` whether all are whole, ``dates`` whether they are days of
    dates; ``numerals`` is how many of the different texts are numbers.
    """

    kind: Kind
    example: str
    missing: int
    low: float = math.inf
    high: float = -math.inf
    quartiles: tuple[float, float, float] | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    texts: int = 0
    rare: int = 0
    distinct: int = 0
    whole: bool = False
    dates: bool = False
    numerals: int = 0

    def without_rare(self) -> "ColumnFacts":
        """Return the facts without categories of fewer than ``FEWEST_ROWS`` rows: neither their names nor their rows.

        They are ``other``. Where even all of them together have fewer rows, some of the commonest category are counted
        with them, so that the total is right and the number of rare rows is not told.

        >>> ColumnFacts("text", "", 0, counts={"icu": 9, "mayor": 1, "other": 5}).without_rare().counts
        {'icu': 9, 'other': 6}
        >>> ColumnFacts("text", "", 0, counts={"icu": 9, "ward": 7, "mayor": 1}).without_rare().counts
        {'icu': 5, 'ward': 7, 'other': 5}
        """
        counts: dict[str, int] = {}
        rare = 0
        rows = 0
        for value, count in self.counts.items():
            if count >= FEWEST_ROWS or value == MISSING:
                counts[value] = count
            else:
                rare += 1
                rows += count
        if rare:
            named = sorted(counts.keys() - {MISSING, OTHER})
            counts[OTHER] = counts.pop(OTHER, 0) + rows
            lacking = FEWEST_ROWS - counts[OTHER]
            if lacking > 0 and named:
                counts[max(named, key=counts.__getitem__)] -= lacking
                counts[OTHER] += lacking
        return replace(self, counts=counts, rare=rare)


@dataclass(frozen=True)
class Description:
    """What a silo tells about itself: its training rows, its columns, and its rows of each class (test rows too).

    ``shape`` is that of a row of arrays, of which those of one dimension have columns by number; None for tables.
    """

    name: str
    rows: int
    columns: Mapping[str, ColumnFacts]
    classes: Mapping[Any, int]
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Moments:
    """How many numbers there are, their mean, its rounding error and the sum of squared differences from it.

    The rounding error makes differences between means exact where numbers are far from zero.

    >>> parts = Moments.of(np.array([1.0, 2.0])), Moments.of(np.array([6.0]))
    >>> Moments.merged(parts)
    Moments(count=3, mean=3.0, error=0.0, squares=14.0)
    """

    count: int
    mean: float
    error: float
    squares: float

    @classmethod
    def of(cls, values: Floats) -> "Moments":
        """Return the moments of at least one number."""
        with np.errstate(over="ignore", invalid="ignore"):
            mean = values.mean()
            apart = values - mean
            error = apart.mean()
            # Around the mean, and not the rounded one
            squares = np.square(apart).sum() - len(values) * error**2
            return cls(len(values), float(mean), float(error), float(max(squares, 0.0)))

    @staticmethod
    def merged(parts: "Sequence[Moments]") -> "Moments":
        """Return the moments of the numbers of all parts; the order of the parts does not matter."""
        base = max(parts, key=lambda part: (part.count, part.mean, part.error))
        count = sum(part.count for part in parts)
        try:
            shift = math.fsum(part.count * part._apart(base) for part in parts) / count
            squares = []
            for part in parts:
                squares.append(part.squares + part.count * (part._apart(base) - shift) ** 2)
            return Moments(count, base.mean + shift, base.error, math.fsum(squares))
        except (OverflowError, ValueError):  # numbers too large to add up
            return Moments(count, math.nan, math.nan, math.nan)

    def _apart(self, base: "Moments") -> float:
        """Return by how much the mean is above that of ``base``."""
        return (self.mean - base.mean) + (self.error - base.error)

    @property
    def deviation(self) -> float:
        """Return the standard deviation."""
        return math.sqrt(self.squares / self.count)


class Silos(Protocol):
    """The tables of all clients, here or on other machines; what each answers is about its training rows.

    Every question goes to all of them, and the answers are in the order of the clients.
    """

    def describe(self, request: Request) -> Sequence[Description]:
        """Say what the tables have."""

    def count(
        self, intervals: Mapping[str, Sequence[Interval]]
    ) -> Sequence[Mapping[str, Sequence[Ints]]]:
        """Count the numbers of some columns in the bins of intervals, see ``in_bins``."""

    def add_up(self, fills: Mapping[str, float]) -> Sequence[Mapping[str, Moments]]:
        """Return the moments of some columns, with missing numbers filled."""


@dataclass(frozen=True)
class Fitted:
    """A schema, what the silos told about themselves, and which columns are not features, with the reason of each."""

    schema: Schema
    described: tuple[Description, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)


def fit(name: str, silos: Silos, request: Request) -> Fitted:
    """Fit one schema for all silos."""
    described = tuple(silos.describe(request))
    titles = _titles(name, described, request)
    left_out = columns_left_out(titles, described, request)
    titles = [title for title in titles if title not in left_out]
    if not titles:
        raise _nothing_left(name, left_out)
    numeric = {}
    for title in titles:
        if _kind(name, title, described) == "number":
            numeric[title] = _column(title, described)
    fills = medians(silos, numeric)
    moments: dict[str, Moments] = {}
    if request.standardize and fills:
        moments = _moments(silos, fills)
    columns: list[Numeric | Categories] = []
    for title in titles:
        optional = any(title not in one.columns for one in described)
        if title in numeric:
            fill = fills.get(title)
            made = _numeric(name, title, fill, moments.get(title), numeric[title], optional)
            columns.append(replace(made, dates=_are_days(title, described)))
        else:
            columns.append(_categories(name, title, described, request, optional))
    label = Label(request.targets, request.target, _classes(name, described, request))
    schema = Schema(tuple(columns), label, request.window, request.stride)
    return Fitted(schema, described, left_out)


def _titles(name: str, described: Sequence[Description], request: Request) -> list[str]:
    """Return the columns of all silos; an error for one that is asked for and that none has."""
    titles: dict[str, None] = {}
    for one in described:
        titles |= dict.fromkeys(one.columns)
    for column in (*request.categorical, *(request.keep or ())):
        need_column(name, column, titles)
    return list(titles)


def _nothing_left(name: str, left_out: Mapping[str, str]) -> FedskewError:
    said = [f"{title} ({reason})" for title, reason in left_out.items()]
    return FedskewError(
        f"{name}: no feature column is left: {', '.join(said)}: say keep={'+'.join(left_out)} to keep them"
    )


def _are_days(title: str, described: Sequence[Description]) -> bool:
    """Return whether the numbers of a column are the days of dates."""
    return any(title in one.columns and one.columns[title].dates for one in described)


def _classes(name: str, described: Sequence[Description], request: Request) -> tuple[str, ...]:
    if request.target in ("labels", "numbers"):
        return request.targets
    if request.target == "number":
        return ()
    what = f"column {request.label!r}"
    own = {one.name: one.classes for one in described}
    refuse_other_spellings(name, what, own, request.labels)
    names = names_in_order(own.values())
    refuse_one_class(name, what, names)
    return names


# -- kinds of columns --------------------------------------------------------------------------------------------------


def _kind(name: str, title: str, described: Sequence[Description]) -> Kind:
    """Return what a column holds, or raise an error that names two silos that disagree."""
    found: dict[Kind, Description] = {}
    for one in described:
        if title in one.columns:
            found.setdefault(one.columns[title].kind, one)
    if "time" in found:
        raise FedskewError(
            f"{_of(name, found['time'])}: column {title!r} holds dates or times; leave it out with drop={title}, or "
            f"say dates=days for numbers{_not_everywhere(found)}"
        )
    found.pop("empty", None)
    if len(found) == 2:
        text = found["text"]
        number = found["number"]
        raise FedskewError(
            f"{_of(name, text)}: column {title!r} holds text ({text.columns[title].example!r}), and numbers in "
            f"{number.name} ({number.columns[title].example}): correct it, or say categorical={title} or drop={title}"
        )
    if not found:
        raise _no_value(name, title)
    return next(iter(found))


def _not_everywhere(found: Mapping[Kind, Description]) -> str:
    """Return which silo has something else where another has dates; empty if none has."""
    for kind, one in found.items():
        if kind in ("number", "text"):
            return f"; {one.name} has no dates there"
    return ""


def _of(name: str, one: Description) -> str:
    if one.name:
        return f"{name}: {one.name}"
    return name


def _no_value(name: str, title: str) -> FedskewError:
    return FedskewError(f"{name}: column {title!r} has no value in any training row; drop={title}")


# -- categories --------------------------------------------------------------------------------------------------------


def _categories(
    name: str, title: str, described: Sequence[Description], request: Request, optional: bool
) -> Categories:
    """Return the categories of all silos, the rarest pooled, from how often each has them."""
    counts, pooled = _category_counts(name, title, described)
    seen = [value for value, count in counts.items() if count]
    seen.sort(key=lambda value: (-counts[value], value))
    if seen == [MISSING]:
        raise _no_value(name, title)
    if title not in request.categorical:
        present = [value for value in seen if value != MISSING]
        _refuse_numbers_as_text(name, title, present)
    most = request.max_categories
    rows = sum(one.rows for one in described)
    if len(seen) <= most:
        return Categories(title, tuple(sorted(seen)), pooled, optional)
    if 2 * len(seen) > rows:
        raise FedskewError(
            f"{name}: column {title!r} has {len(seen)} texts in {rows} training rows; drop={title}"
        )
    return Categories(
        title, tuple(sorted(seen[: most - 1])), pooled + len(seen) - most + 1, optional
    )


def _category_counts(
    name: str, title: str, described: Sequence[Description]
) -> tuple[dict[str, int], int]:
    """Return the rows of each category over all silos, and how many rare ones a silo does not name."""
    counts: dict[str, int] = {}
    pooled = 0
    for one in described:
        facts = one.columns.get(title)
        if facts is None or facts.kind == "empty":
            counts[MISSING] = counts.get(MISSING, 0) + one.rows
            continue
        if facts.texts and not facts.counts:
            raise FedskewError(
                f"{_of(name, one)}: column {title!r} has {facts.texts} texts in {one.rows} training rows; drop={title}"
            )
        pooled = max(pooled, facts.rare)  # at least so many: silos may have the same ones
        for value, count in facts.counts.items():
            counts[value] = counts.get(value, 0) + count
    if pooled:
        counts.pop(OTHER)  # which is the feature of all that are pooled
    return counts, pooled


def _refuse_numbers_as_text(name: str, title: str, values: list[str]) -> None:
    """Raise an error for a column of numbers with a few typing errors, which would become thousands of categories."""
    odd = [value for value in values if not is_number(value)]
    if 2 * len(odd) < len(values):
        what = "numbers kept as text"
        if odd:
            what = f"{odd[0]!r} among numbers"
        raise FedskewError(
            f"{name}: column {title!r} holds {what}; correct it, or say categorical={title} or drop={title}"
        )


# -- numbers -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Numbers:
    """The numbers of a column in all silos: how many, and their ends."""

    present: int
    low: float
    high: float


def _column(title: str, described: Sequence[Description]) -> _Numbers:
    present = 0
    low = math.inf
    high = -math.inf
    for one in described:
        facts = one.columns.get(title)
        if facts is not None:
            present += one.rows - facts.missing
            low = min(low, facts.low)
            high = max(high, facts.high)
    return _Numbers(present, low, high)


def _moments(silos: Silos, fills: Mapping[str, float]) -> dict[str, Moments]:
    """Return the moments of columns over all silos, with missing numbers filled."""
    parts = silos.add_up(fills)
    merged = {}
    for title in fills:
        merged[title] = Moments.merged([part[title] for part in parts])
    return merged


def _numeric(
    name: str,
    title: str,
    fill: float | None,
    moments: Moments | None,
    found: _Numbers,
    optional: bool,
) -> Numeric:
    if fill is None:
        raise _no_value(name, title)
    if moments is None:
        return Numeric(title, fill, 0.0, 1.0, optional)
    if not math.isfinite(moments.mean) or not math.isfinite(moments.squares):
        raise FedskewError(
            f"{name}: column {title!r} holds numbers too large to add up; drop={title}"
        )
    deviation = moments.deviation
    # The deviation is also 0 where its square is too small a number
    if found.low == found.high or deviation == 0:
        deviation = 1.0
    return Numeric(title, fill, moments.mean, deviation, optional)


def keys_of(values: Floats) -> NDArray[np.uint64]:
    """Return whole numbers in the order of these numbers, one for each that float64 has."""
    bits = (values + 0.0).view(np.uint64)  # -0.0 becomes 0.0
    negative = bits >> np.uint64(63) != 0
    return np.where(negative, ~bits, bits | np.uint64(1 << 63))


def _value_of(key: int) -> float:
    if key >> 63:
        bits = key ^ (1 << 63)
    else:
        bits = ~key & (1 << 64) - 1
    return float(struct.unpack("<d", struct.pack("<Q", bits))[0])


def step_of(interval: Interval) -> int:
    """Return how many keys each bin of an interval has; the last may have fewer."""
    return -(-(interval[1] - interval[0] + 1) // BINS)


def in_bins(keys: NDArray[np.uint64], interval: Interval) -> Ints:
    """Return how many of these keys, all inside the interval, are in each of its bins."""
    place = (keys - np.uint64(interval[0])) // np.uint64(step_of(interval))
    return np.bincount(place.astype(np.int64), minlength=BINS)


@dataclass
class _Search:
    """The interval that still holds the number of some rank, and its rank therein."""

    interval: Interval
    rank: int

    @property
    def done(self) -> bool:
        return self.interval[0] == self.interval[1]

    def narrow(self, counts: Ints) -> None:
        """Go on with the bin that holds the rank."""
        upto = np.cumsum(counts)
        place = int(np.searchsorted(upto, self.rank, side="right"))
        first = self.interval[0] + place * step_of(self.interval)
        last = min(self.interval[1], first + step_of(self.interval) - 1)
        self.rank -= int(upto[place] - counts[place])
        self.interval = first, last


def medians(silos: Silos, numeric: Mapping[str, _Numbers]) -> dict[str, float]:
    """Return the median of each column that has numbers, exactly, from counts."""
    searches: dict[str, list[_Search]] = {}
    for title, numbers in numeric.items():
        if numbers.present:
            searches[title] = _middle_of(numbers)
    while asked := _asked(searches):
        answers = silos.count(asked)
        for title, intervals in asked.items():
            told = [answer[title] for answer in answers if title in answer]
            _narrow(searches[title], intervals, told)
    found: dict[str, float] = {}
    for title, both in searches.items():
        values = [_value_of(search.interval[0]) for search in both]
        found[title] = sum(values) / len(values)
    return found


def _middle_of(numbers: _Numbers) -> list[_Search]:
    """Return a search for the number in the middle, or for each of the two."""
    low, high = keys_of(np.array([numbers.low, numbers.high])).tolist()
    ranks = (numbers.present - 1) // 2, numbers.present // 2
    return [_Search((low, high), rank) for rank in dict.fromkeys(ranks)]


def _asked(searches: Mapping[str, Sequence[_Search]]) -> dict[str, list[Interval]]:
    """Return the intervals of each column whose bins are to be counted next."""
    asked = {}
    for title, both in searches.items():
        intervals = [search.interval for search in both if not search.done]
        if intervals:
            asked[title] = list(dict.fromkeys(intervals))
    return asked


def _narrow(
    searches: Sequence[_Search], intervals: Sequence[Interval], told: Sequence[Sequence[Ints]]
) -> None:
    """Go on with what each silo told of each interval."""
    total = {}
    for place, interval in enumerate(intervals):
        total[interval] = np.sum([counts[place] for counts in told], axis=0)
    for search in searches:
        if not search.done:
            search.narrow(total[search.interval])
